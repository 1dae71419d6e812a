"""Tests of PCIe traffic: from counters that wrap early, or measured outside of the ticks."""

from __future__ import annotations

from gswarm_agent.probes.pcie import GpuPoller
from tests.cluster.standin import Return, Scenario
from tests.integration.probe_driver import AS_AGENTS_S, NamedSamples
from tests.integration.probe_stage import Stage, about, values

# At 10 GB/s a counter wraps (2**32 bytes) every 430 ms; ticks are further apart.
FAST_MB_S, READ_EVERY_S = 10_000, 0.5


class IdlePoller(GpuPoller):
    """Waits for an hour."""

    def pause(self) -> float:
        return 3600.0

    def visit(self, gpu: object) -> None:
        raise AssertionError(gpu)


def test_a_poller_can_be_closed_twice() -> None:
    poller = IdlePoller("idle", [])
    poller.start()
    assert [poller.close(60), poller.close(60)] == [True, True]


def test_a_pcie_counter_can_wrap_between_ticks(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, has_gpm=0, pcie_tx_bytes_per_s=FAST_MB_S * 10**6))
    with stage.node() as node:
        node.read()
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S)] * 2, every_s=READ_EVERY_S
        )


def test_a_hanging_gpu_does_not_hide_wraps_of_the_others(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, has_gpm=0, pcie_tx_bytes_per_s=FAST_MB_S * 10**6))
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S)] * 2, every_s=READ_EVERY_S
        )
        stage.scenario.gpus[0].delays_ms["nvmlDeviceGetFieldValues"] = 8000
        stage.write()
        rates: list[object] = []

        def lost(reading: NamedSamples) -> bool:
            rates.append(values(reading, "pcie_tx_mb_s")[1])
            return values(reading, "temp_c") == ["lost", 30]

        node.until(lost, every_s=READ_EVERY_S)
        # During the wait for it, the other's counter wrapped unseen.
        assert [rate for rate in rates if rate is not None and rate != about(FAST_MB_S)] == []
        for _ in range(3):
            node.until(
                lambda reading: values(reading, "pcie_tx_mb_s") == ["lost", about(FAST_MB_S)],
                every_s=READ_EVERY_S,
            )


def test_pcie_is_measured_in_the_background_without_counters(stage: Stage) -> None:
    scenario = Scenario.of(
        "n", 2, has_gpm=0, pcie_tx_bytes_per_s=1024 * 10**6, pcie_rx_bytes_per_s=2048 * 10**6
    )
    scenario.gpus[1].answers = {197: Return.NOT_SUPPORTED, 198: Return.NOT_SUPPORTED}
    stage.set(scenario)
    with stage.node() as node:
        node.until(
            lambda reading: (
                values(reading, "pcie_tx_mb_s") == [about(1024)] * 2
                and values(reading, "pcie_rx_mb_s") == [about(2048)] * 2
            )
        )
        assert not {name for name in node.facts().capabilities if "pcie" in name}


def test_pcie_that_can_t_be_measured_is_listed_in_the_capabilities(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, has_gpm=0)
    for gpu in scenario.gpus:
        gpu.answers = {197: 3, 198: 3, "nvmlDeviceGetPcieThroughput": Return.NOT_SUPPORTED}
        gpu.delays_ms = {}  # an unsupported call returns at once
    stage.set(scenario)
    with stage.node() as node:
        assert {"pcie_tx_mb_s", "pcie_rx_mb_s"} <= set(node.facts().capabilities)
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]


def test_hanging_pcie_throughput_is_disabled_with_a_note_on_its_gpu_only(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, has_gpm=0, pcie_tx_bytes_per_s=1024 * 10**6)
    for gpu in scenario.gpus:
        gpu.answers = {197: Return.NOT_SUPPORTED, 198: Return.NOT_SUPPORTED}
    stage.set(scenario)
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024)] * 2)
        stage.scenario.gpus[0].delays_ms["nvmlDeviceGetPcieThroughput"] = 8000
        stage.write()
        reading = node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [None, about(1024)])
        assert {(note.kind, note.gpu) for note in reading.notes} == {("unmeasured", 0)}
        assert node.facts().capabilities["gpu0.pcie_tx_mb_s"] == "the driver is slow or hangs"


def test_pcie_is_measured_by_gpm_where_the_gpu_has_it(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=FAST_MB_S * 10**6)
    scenario.gpus[1].gpm = {20: 1000.0, 21: 2000.0}  # MiB/s, other than what its counters count
    stage.set(scenario)
    with stage.node() as node:
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]
        node.until(
            lambda reading: (
                values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S), about(1048.576)]
                and values(reading, "pcie_rx_mb_s") == [0, about(2097.152)]
            ),
            every_s=READ_EVERY_S,
        )
        node.switch("core")
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]
        node.switch("core", "pcie")
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]
        node.until(lambda reading: values(reading, "pcie_tx_mb_s")[1] == about(1048.576))


def test_counters_are_used_when_gpm_fails_for_good(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=FAST_MB_S * 10**6)
    scenario.gpus[0].gpm = {20: 1000.0}
    scenario.gpus[1].answers = {"nvmlGpmSampleGet": Return.NO_PERMISSION}
    stage.set(scenario)
    with stage.node() as node:
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(1048.576), about(FAST_MB_S)],
            every_s=READ_EVERY_S,
        )
        stage.scenario.gpus[0].answers["nvmlGpmSampleGet"] = Return.UNKNOWN
        stage.write()
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S)] * 2, every_s=READ_EVERY_S
        )
        assert not {name for name in node.facts().capabilities if "pcie" in name}
