"""PCIe traffic, from counters that go round early or measured beside the ticks."""

from __future__ import annotations

from gswarm_agent.probes.pcie import Rounds
from tests.cluster.standin import Return, Scenario
from tests.unit.probe_driver import NamedSamples
from tests.unit.probe_stage import Stage, about, values

# 10 GB/s go round 2**32 bytes every 430 ms, and readings are further apart.
FAST_MB_S, READ_EVERY_S = 10_000, 0.5


class Idle(Rounds):
    """Nothing to do, for an hour."""

    def pause(self) -> float:
        return 3600.0

    def visit(self, gpu: object) -> None:
        raise AssertionError(gpu)


def test_rounds_may_be_ended_twice() -> None:
    rounds = Idle("idle", [])
    rounds.start()
    assert [rounds.close(60), rounds.close(60)] == [True, True]


def test_a_pcie_counter_may_go_round_between_readings(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, pcie_counts_wrap=1, pcie_tx_bytes_per_s=FAST_MB_S * 10**6))
    with stage.node() as node:
        node.read()
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S)] * 2, every_s=READ_EVERY_S
        )


def test_a_gpu_that_hangs_leaves_the_wraps_of_the_others_to_be_seen(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2, pcie_counts_wrap=1, pcie_tx_bytes_per_s=FAST_MB_S * 10**6))
    with stage.node() as node:
        node.until(
            lambda reading: values(reading, "pcie_tx_mb_s") == [about(FAST_MB_S)] * 2, every_s=READ_EVERY_S
        )
        stage.scenario.gpus[0].delays_ms["nvmlDeviceGetFieldValues"] = 8000
        stage.write()
        told: list[object] = []

        def lost(reading: NamedSamples) -> bool:
            told.append(values(reading, "pcie_tx_mb_s")[1])
            return values(reading, "temp_c") == ["lost", 30]

        node.until(lost, every_s=READ_EVERY_S)
        # While it was waited for, the other's counter went round unseen.
        assert [rate for rate in told if rate is not None and rate != about(FAST_MB_S)] == []
        for _ in range(3):
            node.until(
                lambda reading: values(reading, "pcie_tx_mb_s") == ["lost", about(FAST_MB_S)],
                every_s=READ_EVERY_S,
            )


def test_without_counters_pcie_is_measured_in_the_background(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=1024 * 10**6, pcie_rx_bytes_per_s=2048 * 10**6)
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


def test_pcie_that_can_t_be_measured_at_all_is_a_capability(stage: Stage) -> None:
    scenario = Scenario.of("n", 2)
    for gpu in scenario.gpus:
        gpu.answers = {197: 3, 198: 3, "nvmlDeviceGetPcieThroughput": Return.NOT_SUPPORTED}
        gpu.delays_ms = {}  # what a driver can't do takes no time
    stage.set(scenario)
    with stage.node() as node:
        assert {"pcie_tx_mb_s", "pcie_rx_mb_s"} <= set(node.facts().capabilities)
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]


def test_pcie_throughput_that_hangs_is_given_up_and_told_and_the_others_go_on(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=1024 * 10**6)
    for gpu in scenario.gpus:
        gpu.answers = {197: Return.NOT_SUPPORTED, 198: Return.NOT_SUPPORTED}
    stage.set(scenario)
    with stage.node() as node:
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024)] * 2)
        stage.scenario.gpus[0].delays_ms["nvmlDeviceGetPcieThroughput"] = 8000
        stage.write()
        reading = node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [None, about(1024)])
        assert {(note.kind, note.gpu) for note in reading.notes} == {("unmeasured", 0)}
        assert node.facts().capabilities["gpu0.pcie_tx_mb_s"] == "the driver is slow or hangs"
