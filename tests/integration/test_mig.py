"""MIG instances: rows of their own on screens, in SQL and in filters, which no total counts twice."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gswarm_agent.frame import MIG_INDEX, GpuFacts, Hello, ProcessSample
from gswarm_tui.cli import main
from gswarm_tui.fleet.events import Event, LinkChanged, NodeIntroduced, Phase, SessionStarted, SessionStopped
from gswarm_tui.fleet.filter import parse
from gswarm_tui.fleet.plain_text import fleet_sentences
from gswarm_tui.fleet.problems import problems
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.totals import totals
from gswarm_tui.server.exposition import exposition_text, fleet_tables
from tests.unit.store_recording import T0, arrived, gpu_row, hello, process_row, query, record

NODE = "gpu04"
INSTANCES = (MIG_INDEX + 10, MIG_INDEX + 11)


def divided() -> Hello:
    """Return a node's hello: GPU 0 is whole, GPU 1 has two MIG instances."""
    whole, parent = hello(NODE).gpus
    instances = (
        GpuFacts(index, f"MIG-{index}", "NVIDIA H100 MIG 1g.10gb", memory_total_mib=9_856, parent_index=1,
                 mig_profile="1g.10gb")
        for index in INSTANCES
    )  # fmt: skip
    return replace(hello(NODE), gpus=(whole, replace(parent, mig=True), *instances))


def events() -> list[Event]:
    """Return ten seconds: 100 W on GPU 0, 300 W on GPU 1, whose two instances use 2,000 and 3,000 MiB."""
    found: list[Event] = [NodeIntroduced(NODE, T0, divided())]
    for second in range(11):
        power = (
            {"power_w": 100, "energy_mj": 100_000 * second},
            {"power_w": 300, "energy_mj": 300_000 * second},
        )
        whole = gpu_row(util_pct=80, sm_active_pct=50, mem_used_mib=1_000, **power[0])
        parent = gpu_row(sm_active_pct=10, mem_used_mib=5_100, **power[1])
        rows = [whole, parent, gpu_row(sm_active_pct=70, mem_used_mib=2_000), gpu_row(mem_used_mib=3_000)]
        process = ProcessSample(3, 77, "ada", "train.py", 5, 0, process_row(gpu_memory_mib=2_900))
        found.append(arrived(second + 1, rows, NODE, ts=T0 + second, processes=(process,)))
    return [*found, SessionStarted("s", T0 + 10, "s", T0), SessionStopped("s", T0 + 10, T0 + 10)]


def shown() -> Fleet:
    fleet = Fleet([NODE])
    fleet.apply(LinkChanged(NODE, T0, Phase.LIVE))
    for event in events():
        fleet.apply(event)
    return fleet


def test_totals_count_no_instance_twice() -> None:
    fleet = shown()
    sums = totals(fleet, T0 + 10)
    assert (sums.gpus, sums.busy, sums.power_w, sums.energy_j) == (2, 1, 400, 4_000)
    assert (sums.memory_used_mib, sums.memory_total_mib) == (1_000 + 2_000 + 3_000, 81_559 + 2 * 9_856)
    assert problems(fleet.nodes.values(), [], T0 + 10) == []
    assert fleet_sentences(fleet, T0 + 10)[-1] == (
        "  gpu04:1.1: MIG 1g.10gb, memory 2.93 of 9.62 GiB, rank 5, process 77 of ada: train.py."
    )
    text = exposition_text(fleet_tables(fleet, T0 + 10, "", None)).decode()
    assert 'gpu="1.1",hostname="gpu04"' in text
    assert text.count('GPU_I_PROFILE="1g.10gb"') > text.count('GPU_I_PROFILE="1g.10gb",UUID="MIG-1010"') > 0


def test_filters_find_instances_and_their_gpu() -> None:
    node = shown().nodes[NODE]
    wanted = {
        "gpu04:1": [1, 2, 3],
        "gpu04:1.0": [2],
        "gpu:1.1": [3],
        "gpu=0": [0],
        "mig:1g*": [2, 3],
        "!mig:*": [0, 1],
        "rank:5": [3],
        "mem>2.5 GiB": [1, 3],
    }
    found = {text: np.flatnonzero(parse(text).match(node, T0)).tolist() for text in wanted}
    assert found == wanted


def test_sql_has_instances_beside_their_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / "run.duckdb", events())
    rows = query(
        tmp_path / "run.duckdb",
        "SELECT scope, gpu_index, parent_index, gpus, samples, coverage, energy_j, util_mean_pct, "
        "power_mean_w, sm_active_mean_pct, mem_used_max_mib, mem_total_mib FROM session_summary ORDER BY ALL",
    )
    together = (None, None, 2, 40, 1.0, 4_000.0, 80.0, 200.0, 30.0, 5_100, 81_559)
    assert rows == [
        ("all", *together),
        ("gpu", 0, None, 1, 10, 1.0, 1_000.0, 80.0, 100.0, 50.0, 1_000, 81_559),
        ("gpu", 1, None, 1, 10, 1.0, 3_000.0, None, 300.0, 10.0, 5_100, 81_559),
        ("gpu", INSTANCES[0], 1, 0, 10, 1.0, None, None, None, 70.0, 2_000, 9_856),
        ("gpu", INSTANCES[1], 1, 0, 10, 1.0, None, None, None, None, 3_000, 9_856),
        ("node", *together),
    ]
    instances = "SELECT DISTINCT gpu_index, mig_profile FROM samples WHERE parent_index = 1 ORDER BY ALL"
    assert query(tmp_path / "run.duckdb", instances) == [(index, "1g.10gb") for index in INSTANCES]
    assert main(["summary", "--db", str(tmp_path / "run.duckdb"), "--by", "process"]) == 0
    text = capsys.readouterr().out
    assert "1 node · 2 GPUs" in text
    assert re.search(r"^gpu04:1\.1 +77 +5 ", text, re.MULTILINE)
