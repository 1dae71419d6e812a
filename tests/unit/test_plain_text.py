"""The fleet in plain sentences."""

from __future__ import annotations

import math

from gswarm_agent.metrics import GPU_COLUMNS, REASON_HW_THERMAL
from gswarm_tui.fleet.plain_text import fleet_sentences, silent_nodes
from gswarm_tui.fleet.snapshot import node_objects
from tests.tui.scene import Scene, scene
from tests.unit.store_recording import arrived, listings


def test_fleet_nodes_and_gpus_have_a_sentence_each() -> None:
    made = scene(2, 4, 60)
    idle = made.fleet.nodes["gpu01"].gpus[1]
    idle[GPU_COLUMNS.index("util_pct")] = idle[GPU_COLUMNS.index("mem_used_mib")] = 0
    whole, first, *gpus = fleet_sentences(made.fleet, made.time)
    assert whole.startswith("2 of 2 simulated nodes send data: 7 of 8 GPUs busy, mean utilisation 8")
    assert whole.endswith(" GiB.")
    assert "lowest on gpu01:1" in whole
    assert first.startswith("gpu01: 4 × NVIDIA H100 80GB HBM3 (simulated), CPU 3")
    assert " host memory 0.29 of 1.97 TiB." in first
    assert gpus[:2] == [
        "  gpu01:0: utilisation 92 %, memory 70.7 of 79.6 GiB, power 593 W, temperature 69 °C, rank 0, "
        "process 41389 of demo: train.py --config llama-8b.yaml.",
        "  gpu01:1: utilisation 0 %, memory 0 of 79.6 GiB, power 692 W, temperature 72 °C, rank 1, "
        "process 41406 of demo: train.py --config llama-8b.yaml.",
    ]
    assert len(gpus) == 4 + 1 + 4
    assert silent_nodes(made.fleet, made.time) == []


def test_odd_ports_are_named_in_the_sentence_of_their_node() -> None:
    made = scene(1, 2, 5)
    listed = listings("eth1", state=1)
    listed["ports"] += listings("mlx5_0/1", state=1, phys_state=2)["ports"]
    listed["ports"] += listings("mlx5_1/1", state=4, phys_state=5, new_errors=3)["ports"]
    made.hub.publish(arrived(99, (None, None), "gpu01", "life-gpu01", ts=made.time, listed=listed))
    made.hub.flush()
    (line,) = [line for line in fleet_sentences(made.fleet, made.time) if line.startswith("gpu01: ")]
    assert line.endswith(", ports down: mlx5_0/1, new errors on ports: mlx5_1/1.")


def test_no_sentence_contains_a_sign_or_colour() -> None:
    made = scene(4, 8, 90)
    made.fleet.nodes["gpu01"].gpus[0, GPU_COLUMNS.index("clock_reasons")] = REASON_HW_THERMAL
    made.fleet.nodes["gpu01"].gpus[1, GPU_COLUMNS.index("power_w")] = math.nan
    lines = fleet_sentences(made.fleet, made.time)
    for line in lines:
        assert not set(line) - {"×", "°"} - set(map(chr, range(32, 127))), line
        assert line.endswith(".")
    assert lines[1] == "throttled by thermal (hardware): gpu01:0."
    assert "throttled by thermal (hardware)" in lines[3]
    assert "power not measured" in lines[4]


def test_what_is_wrong_with_a_gpu_comes_before_the_nodes() -> None:
    made = scene(2, 4, 60)
    odd = {"recovery_action": 4, "remap_pending": 1, "pcie_gen": 4, "pcie_width": 8, "nvlink_errors": 137}
    for name, value in odd.items():
        made.fleet.nodes["gpu01"].gpus[2, GPU_COLUMNS.index(name)] = value
    made.fleet.nodes["gpu02"].gpus[0, GPU_COLUMNS.index("remap_pending")] = 1
    # NULL as of a GPU that idles below its maximum is no fault.
    made.fleet.nodes["gpu02"].gpus[1, GPU_COLUMNS.index("pcie_gen")] = math.nan
    lines = fleet_sentences(made.fleet, made.time)
    assert lines[1:4] == [
        "the driver asks to drain the GPU, then reset it: gpu01:2.",
        "a memory row waits to be replaced: reset the GPU: gpu01:2, gpu02:0.",
        "PCIe 4.0 x8 under load, 5.0 x16 is possible: gpu01:2.",
    ]
    (its_own,) = [line for line in lines if line.startswith("  gpu01:2: ")]
    assert "reset the GPU, PCIe 4.0 x8 under load" in its_own
    assert "137 NVLink errors since the driver was loaded" in its_own
    healthy, odd_one = node_objects(made.fleet, made.time)[0]["gpus"][1:3]
    areas = ("recovery action", "remapped memory", "memory errors", "PCIe link", "NVLinks", "fabric")
    assert healthy["health"] == {"found": (), "counted": (), "clear": areas, "unmeasured": ()}
    assert odd_one["health"]["clear"] == ("memory errors", "fabric")


def test_nodes_without_data_say_why() -> None:
    made = Scene(4, 2).connect("gpu01", "gpu02")
    made.advance(3)
    made.lose("gpu02", "connection reset by peer", "check that the node is up")
    made.lose("gpu03", "its name does not resolve", "check --nodes for a typo")
    made.forget_gpu("gpu01", 1).advance(1)
    lines = fleet_sentences(made.fleet, made.time)
    assert lines[0].startswith("1 of 4 simulated nodes send data: ")
    assert lines[1:5] == [
        "gpu01:1: does not respond.",
        "gpu02: lost: connection reset by peer; check that the node is up.",
        "gpu03: unreachable: its name does not resolve; check --nodes for a typo.",
        "gpu04: no data yet.",
    ], "problems come first"
    assert "  gpu01:1: does not respond." in lines
    assert len([line for line in lines if line.startswith("gpu02: ")]) == 1
    assert silent_nodes(made.fleet, made.time) == ["gpu02", "gpu03", "gpu04"]


def test_throttled_gpus_are_named_before_the_nodes() -> None:
    made = scene(2, 12, 5)
    for node in made.fleet.nodes.values():
        node.gpus[:, GPU_COLUMNS.index("clock_reasons")] = 0
    made.fleet.nodes["gpu02"].gpus[:, GPU_COLUMNS.index("clock_reasons")] = REASON_HW_THERMAL
    lines = fleet_sentences(made.fleet, made.time)
    named = ", ".join(f"gpu02:{gpu}" for gpu in range(8))
    assert lines[1] == f"throttled by thermal (hardware): {named} and 4 more."
    assert "stale, so these are its last values" in " ".join(fleet_sentences(made.fleet, made.time + 5))


def test_fleet_without_data_is_one_sentence_and_its_nodes() -> None:
    made = Scene(1, 2)
    assert fleet_sentences(made.fleet, made.time) == [
        "0 of 1 nodes send data; no GPU was measured.",
        "gpu01: no data yet.",
    ]
