"""Tests of PCIe traffic: from GPM, or from a slow call on GPUs without it."""

from __future__ import annotations

from tests.cluster.standin import Return, Scenario
from tests.integration.probe_driver import AS_AGENTS_S
from tests.integration.probe_stage import Stage, about, values

THROUGHPUT = "nvmlDeviceGetPcieThroughput"


def test_pcie_is_read_every_few_seconds_without_gpm(stage: Stage) -> None:
    scenario = Scenario.of(
        "n", 2, has_gpm=0, pcie_tx_bytes_per_s=1024 * 10**6, pcie_rx_bytes_per_s=2048 * 10**6
    )
    stage.set(scenario)
    with stage.node() as node:
        node.until(
            lambda reading: (
                values(reading, "pcie_tx_mb_s") == [about(1024)] * 2
                and values(reading, "pcie_rx_mb_s") == [about(2048)] * 2
            )
        )
        assert not {name for name in node.facts().capabilities if "pcie" in name}
        for gpu in stage.scenario.gpus:
            gpu.pcie_tx_bytes_per_s = 10**9
        stage.write()
        changed = [values(node.read(), "pcie_tx_mb_s").count(about(1000)) for _ in range(6)]
        assert changed == sorted(changed)
        assert changed[-1] == 2


def test_pcie_that_can_t_be_measured_is_listed_in_the_capabilities(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, has_gpm=0)
    for gpu in scenario.gpus:
        gpu.answers = {THROUGHPUT: Return.NOT_SUPPORTED}
    stage.set(scenario)
    with stage.node() as node:
        assert {"pcie_tx_mb_s", "pcie_rx_mb_s"} <= set(node.facts().capabilities)
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]


def test_a_gpu_whose_pcie_throughput_hangs_is_left_out(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, has_gpm=0, pcie_tx_bytes_per_s=1024 * 10**6)
    stage.set(scenario)
    with stage.node(wait_s=AS_AGENTS_S) as node:
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024)] * 2)
        stage.scenario.gpus[0].delays_ms[THROUGHPUT] = 8000
        stage.write()
        reading = node.until(lambda reading: values(reading, "pcie_tx_mb_s") == ["lost", about(1024)])
        assert {(note.kind, note.gpu) for note in reading.notes} == {("late", 0)}
        assert node.facts().capabilities["gpu0"] == "the driver is slow or hangs"


def test_pcie_is_measured_by_gpm_where_the_gpu_has_it(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=1024 * 10**6)
    scenario.gpus[0].has_gpm = 0
    scenario.gpus[1].gpm = {20: 1000.0, 21: 2000.0}  # MiB/s, other than its throughput
    stage.set(scenario)
    with stage.node() as node:
        assert values(node.read(), "pcie_tx_mb_s")[1] is None
        node.until(
            lambda reading: (
                values(reading, "pcie_tx_mb_s") == [about(1024), about(1048.576)]
                and values(reading, "pcie_rx_mb_s") == [0, about(2097.152)]
            )
        )
        node.switch("core")
        assert values(node.read(), "pcie_tx_mb_s") == [None, None]
        node.switch("core", "pcie")
        assert values(node.read(), "pcie_tx_mb_s")[1] is None
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024), about(1048.576)])


def test_throughput_is_used_when_gpm_fails_for_good(stage: Stage) -> None:
    scenario = Scenario.of("n", 2, pcie_tx_bytes_per_s=1024 * 10**6)
    scenario.gpus[0].gpm = {20: 1000.0}
    scenario.gpus[1].answers = {"nvmlGpmSampleGet": Return.NO_PERMISSION}
    stage.set(scenario)
    with stage.node() as node:
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1048.576), about(1024)])
        stage.scenario.gpus[0].answers["nvmlGpmSampleGet"] = Return.UNKNOWN
        stage.write()
        node.until(lambda reading: values(reading, "pcie_tx_mb_s") == [about(1024)] * 2)
        assert not {name for name in node.facts().capabilities if "pcie" in name}
