"""Tests of how GPUs are connected, on the NVML stand-in and a folder like /sys."""

from __future__ import annotations

from pathlib import Path

from gswarm_agent.probes.gpus.nvidia_links import (
    NvLink,
    find_adapters,
    nvlink_faults,
    pci_kind,
    read_numa_node,
)
from tests.cluster.standin import Scenario
from tests.integration.probe_stage import Stage


def test_gpus_behind_nvswitches_are_connected_by_all_nvlinks(stage: Stage) -> None:
    stage.set(Scenario.of("n", 4))
    with stage.node() as node:
        links = {(link.gpu, link.peer): link for link in node.links()}
    for gpu in range(4):
        for peer in (f"GPU{other}" for other in range(4) if other != gpu):
            assert links[gpu, peer].kind == "NV18"
        switch, host = links[gpu, "NVSwitch"], links[gpu, "host"]
        assert (switch.links, switch.version, round(switch.gb_s or 0)) == (18, "4.0", 478)
        assert (host.kind, host.links, host.version, round(host.gb_s or 0)) == ("PCIe", 16, "5.0", 63)


def test_gpus_with_direct_nvlinks_reach_others_over_pcie(stage: Stage) -> None:
    scenario = Scenario.of("n", 8, nvlink_links=12, nvlink_version=4)
    for index, gpu in enumerate(scenario.gpus):
        gpu.nvlink_peer = index ^ 1
    scenario.gpus[6].nvlink_links = scenario.gpus[7].nvlink_links = None
    stage.set(scenario)
    with stage.node() as node:
        links = {(link.gpu, link.peer): link for link in node.links()}
    kinds = [links[0, f"GPU{peer}"].kind for peer in range(1, 8)]
    assert kinds == ["NV12", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert (links[0, "GPU1"].version, links[6, "GPU7"].kind) == ("3.0", "PIX")
    assert round(links[6, "GPU7"].gb_s or 0) == 63
    assert not [peer for _, peer in links if peer == "NVSwitch"]


def test_nvlink_that_is_down_at_the_start_or_goes_down_is_noted(stage: Stage) -> None:
    scenario = Scenario.of("n", 2)
    scenario.gpus[1].nvlink_down = 0b101
    stage.set(scenario)
    with stage.node() as node:
        (note,) = node.read().notes
        assert (note.kind, note.severity, note.gpu) == ("nvlink_degraded", "warning", 1)
        assert note.message == "2 of 18 NVLinks down: 0, 2"
        assert {link.kind for link in node.links() if link.peer == "GPU0"} == {"NV16"}
        stage.scenario.gpus[0].nvlink_slow = 0b10
        stage.scenario.gpus[1].nvlink_down = 0
        stage.write()
        node.read(61)
        notes = node.read().notes
        assert [(note.kind, note.gpu, note.message) for note in notes] == [
            ("nvlink_degraded", 0, "1 of 18 NVLinks slow, 13.3 instead of 26.6 GB/s: 1"),
            ("nvlink_restored", 1, "all NVLinks are up again, at full speed"),
        ]
        assert {link.kind for link in node.links() if link.peer == "GPU0"} == {"NV18"}


def test_nvlinks_are_not_read_again_while_switched_off(stage: Stage) -> None:
    stage.set(Scenario.of("n", 2))
    with stage.node() as node:
        node.read()
        node.switch("core")
        stage.scenario.gpus[0].nvlink_down = 1
        stage.write()
        assert not node.read(61).notes
        assert not node.read().notes


def test_gpu_without_any_nvlink_up_has_no_fault_beside_bridged_ones() -> None:
    up, down = NvLink(True, 26_562), NvLink(False, None)
    assert nvlink_faults({0: [up] * 12, 1: [up] * 12, 2: [down] * 12, 3: []}, {}) == {}
    assert nvlink_faults({2: [down] * 12}, {2: range(12)}) == {2: "12 of 12 NVLinks down: all"}


def test_ways_between_pci_devices_are_named_as_by_nvidia_smi(tmp_path: Path) -> None:
    def device(path: str, numa: int) -> str:
        folder = tmp_path / "devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{numa}\n")
        return str(folder)

    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    gpu = device(f"{switch}/0000:17:00.0/0000:18:00.0", 0)
    same_switch = device(f"{switch}/0000:17:01.0/0000:19:00.0", 0)
    behind_another = device(f"{switch}/0000:17:02.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0", 0)
    same_bridge = device("pci0000:15/0000:15:03.0/0000:20:00.0", 0)
    same_node = device("pci0000:37/0000:37:01.0/0000:38:00.0", 0)
    elsewhere = device("pci0000:97/0000:97:01.0/0000:98:00.0", 1)
    kinds = [pci_kind(gpu, one) for one in (same_switch, behind_another, same_bridge, same_node, elsewhere)]
    assert kinds == ["PIX", "PXB", "PHB", "NODE", "SYS"]
    assert [read_numa_node(one) for one in (gpu, elsewhere, device("virtual", -1))] == [0, 1, None]


def test_adapters_are_found_with_their_rates(tmp_path: Path) -> None:
    for name, rate in (("mlx5_10", "400 Gb/sec (4X NDR)\n"), ("mlx5_2", "")):
        port = tmp_path / "class" / "infiniband" / name / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text(rate)
    found = [(one.name, one.gb_s) for one in find_adapters(str(tmp_path))]
    assert found == [("mlx5_2", None), ("mlx5_10", 50)]
    assert find_adapters(str(tmp_path / "none")) == []
