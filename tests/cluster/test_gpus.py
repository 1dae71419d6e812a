"""Failing GPUs and drivers: unmeasured metrics are NULL with a reason, all others are still recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import (
    ask,
    closed_properly,
    event_line,
    every_tick_is_a_frame,
    leave,
    seated,
    start,
)
from tests.cluster.standin import Return, Scenario
from tests.cluster.terminal import Terminal

INTERVAL_S = 0.5
NODES = ("gpu01", "gpu02", "gpu03", "gpu04")


@pytest.fixture
def scenarios(cluster: Cluster) -> Iterator[dict[str, Scenario]]:
    """Write scenarios with faults from the start; restore them at the end."""
    made = {name: Scenario.of(name, cluster[name].gpus) for name in NODES}
    made["gpu01"].gpus[5].lost_from_start = True
    temperatures = "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"
    made["gpu02"].answers = dict.fromkeys(temperatures, Return.FUNCTION_NOT_FOUND)
    made["gpu03"].gpus[0].mig_mode = 1
    for name, scenario in made.items():
        scenario.write(cluster[name].scenario)
    yield made
    for name in NODES:
        Scenario.of(name, cluster[name].gpus).write(cluster[name].scenario)


def cells(node: str, numbers: str) -> re.Pattern[str]:
    """Return a pattern for a node's line of the heatmap with these numbers, whatever findings mark."""
    return re.compile(rf"^ {node}(?: !)? +" + "!? +".join(numbers.split()) + "!? ", re.MULTILINE)


def not_measured(terminal: Terminal, node: str) -> str:
    """Return the list of unmeasured metrics on the node's screen."""
    terminal.press("g", *["j"] * NODES.index(node))
    terminal.wait_for(re.compile(rf"^ {node}:0 ", re.MULTILINE))
    terminal.press("Enter")
    terminal.wait_for(f"{node}  ● live")
    terminal.press("BTab")
    screen = terminal.wait_for(re.compile("scope +reason"))
    terminal.press("f")
    terminal.wait_for("nodes 4/4")
    return screen


def test_failing_gpu_metrics_are_null_and_stop_nothing(
    cluster: Cluster, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    db = tmp_path / "gpus.duckdb"
    with seated(cluster) as terminal:
        start(terminal, f"--nodes gpu[01-04] --interval {INTERVAL_S} --db {db}")
        terminal.wait_for("nodes 4/4")
        terminal.wait_for(cells("gpu01", "0 0 0 0 0 – 0 0"))
        terminal.wait_for(cells("gpu03", "– 0 0 0 0 0 0 0"))
        scenarios["gpu01"].gpus[3].lost = True
        scenarios["gpu01"].write(cluster["gpu01"].scenario)
        scenarios["gpu04"].gpus[2].delays_ms = {"nvmlDeviceGetPowerUsage": 5000}
        scenarios["gpu04"].write(cluster["gpu04"].scenario)
        terminal.wait_for(event_line("gpu01", "doesn't answer: the GPU has fallen off the bus", gpu=3))
        terminal.wait_for(event_line("gpu04", "didn't answer in time: the driver is slow or hangs", gpu=2))
        terminal.wait_for(cells("gpu01", "0 0 0 – 0 – 0 0"))
        terminal.wait_for(cells("gpu04", "0 0 – 0 0 0 0 0"))
        assert re.search(
            r"temperature +all GPUs the driver is too old: it lacks the function",
            not_measured(terminal, "gpu02"),
        )
        assert re.search(r"GPU util +gpu0 +MIG is on", not_measured(terminal, "gpu03"))

        assert not_measured(terminal, "gpu01").count("the GPU has fallen off the bus") == 2

        scenarios["gpu01"].gpus[3].lost = False
        scenarios["gpu01"].write(cluster["gpu01"].scenario)
        scenarios["gpu04"].gpus[6].lost = True
        scenarios["gpu04"].write(cluster["gpu04"].scenario)
        terminal.wait_for(event_line("gpu01", "answers again", gpu=3))
        terminal.wait_for(cells("gpu01", "0 0 0 0 0 – 0 0"))
        terminal.wait_for(cells("gpu04", "0 0 – 0 0 0 – 0"))
        status, said = leave(terminal)
    assert status == 0, said
    closed_properly(db)
    reasons_are_told(db)
    nothing_else_was_missed(db)


def reasons_are_told(db: Path) -> None:
    told = {node: json.loads(text) for node, text in ask(db, "SELECT node, capabilities FROM nodes")}
    assert told["gpu01"]["gpu5"] == told["gpu04"]["gpu6"] == "the GPU has fallen off the bus"
    assert "gpu3" not in told["gpu01"], "it is back"
    assert told["gpu02"]["temp_c"] == "the driver is too old: it lacks the function"
    assert told["gpu03"]["gpu0.util_pct"] == "MIG is on: NVML has no utilisation for the GPU as a whole"
    kinds = (
        "SELECT node, gpu_index, kind FROM events JOIN gpus USING (gpu_id) "
        "JOIN nodes ON nodes.node_id = gpus.node_id WHERE NOT starts_with(kind, 'finding') ORDER BY node, ts"
    )
    assert sorted(ask(db, kinds), key=lambda row: row[:2]) == [
        ("gpu01", 3, "gpu_lost"),
        ("gpu01", 3, "gpu_back"),
        ("gpu01", 5, "gpu_lost"),
        ("gpu04", 2, "late"),
        ("gpu04", 6, "gpu_lost"),
    ]


def nothing_else_was_missed(db: Path) -> None:
    """Assert that all other GPUs have a sample at each tick with every metric that they support.

    gpu04 has none while the call hangs, until its GPUs are read by another process.
    """
    every_tick_is_a_frame(db, INTERVAL_S)
    frames = dict(ask(db, "SELECT node, count(*) FROM host_samples JOIN nodes USING (node_id) GROUP BY node"))
    counts = ask(
        db,
        "SELECT node, gpu_index, count(*), count(util_pct), count(temp_c), count(power_w) "
        "FROM samples GROUP BY ALL",
    )
    for node, gpu, samples, *measured in counts:
        if (node, gpu) in {("gpu01", 3), ("gpu04", 2), ("gpu04", 6)}:
            assert 0 < samples < frames[node]
            continue
        if node == "gpu04":
            assert frames[node] - 20 < samples < frames[node]
            assert measured == [samples] * 3
            continue
        without = {("gpu02", "temp_c"), ("gpu03", 0, "util_pct")}
        wanted = [
            0 if (node, name) in without or (node, gpu, name) in without else samples
            for name in ("util_pct", "temp_c", "power_w")
        ]
        assert (samples, measured) == (frames[node], wanted)
    assert ("gpu01", 5) not in {(node, gpu) for node, gpu, *_ in counts}
