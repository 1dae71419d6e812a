"""Tests that a compromised node can spoil its own samples and nothing else."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from gswarm_agent.metrics import REASON_HW_THERMAL
from gswarm_agent.wire_payload import MAX_GPUS
from gswarm_tui.fleet.events import NodeIntroduced
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.store.recording.recorder import FileWriter
from tests.hostile import HostileNode
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, query


@pytest.mark.parametrize("seed", range(3))
def test_a_compromised_node_does_not_change_another_nodes_samples(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "gswarm-run.duckdb"
    node = HostileNode("evil", seed)
    hub = Hub(Fleet(("evil", "good")), clock=lambda: T0)
    recorder = FileWriter(path, INFO, lambda _status: None)
    recorder.open()
    hub.sinks.append(recorder)
    hub.publish(introduced("good"))
    for seq in range(1, 41):
        for event in (*node.connection(T0 + seq), arrived(seq, [gpu_row(util_pct=seq), None], node="good")):
            hub.publish(event)
        hub.flush()
    status = recorder.close(T0 + 100)
    assert status.error == ""
    good = "FROM samples WHERE node = 'good'"
    assert query(path, f"SELECT count(*), sum(util_pct) {good}") == [(40, sum(range(1, 41)))]
    assert query(path, "SELECT count(*) > 100 FROM samples WHERE node = 'evil'") == [(True,)]
    texts = query(path, "SELECT message || kind FROM events") + query(
        path, "SELECT command FROM process_samples"
    )
    assert all(text is None or text.isprintable() for (text,) in texts)


def named(life: int, gpus: int = MAX_GPUS) -> NodeIntroduced:
    said = introduced("evil", gpus=gpus, life=f"life{life}")
    others = tuple(replace(gpu, uuid=f"GPU-{life}-{gpu.index}") for gpu in said.hello.gpus)
    return replace(said, hello=replace(said.hello, gpus=others))


def test_a_node_that_keeps_changing_its_gpus_leaks_no_memory_and_keeps_other_nodes_energy() -> None:
    fleet = Fleet(("evil", "good"))
    fleet.apply(introduced("good"))
    fleet.apply(arrived(1, [gpu_row(energy_mj=1000), gpu_row(energy_mj=7000)], node="good"))
    fleet.apply(introduced("good", gpus=1, life="life2"))
    row = gpu_row(energy_mj=5000, clock_reasons=REASON_HW_THERMAL)

    def lives(first: int, last: int) -> int:
        for life in range(first, last):
            fleet.apply(named(life))
            fleet.apply(arrived(1, [row] * MAX_GPUS, node="evil", life=f"life{life}", ts=T0 + life))
        return tracemalloc.get_traced_memory()[0]

    fleet.event_log.clear()
    tracemalloc.start()
    try:
        before, after = lives(1, 40), lives(40, 79)
    finally:
        tracemalloc.stop()
    assert after - before < MAX_GPUS * 39 * 100
    fleet.apply(introduced("good", life="life3"))
    fleet.apply(
        arrived(1, [gpu_row(energy_mj=2000), gpu_row(energy_mj=9000)], node="good", life="life3", ts=T0 + 99)
    )
    assert fleet.energy_j == 3
