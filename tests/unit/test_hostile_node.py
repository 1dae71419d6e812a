"""A node that somebody has taken over can spoil its own samples and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.fleet.state import Fleet
from gswarm_tui.hub import Hub
from gswarm_tui.store.recorder import Recorder
from tests.hostile import HostileNode
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, query


@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_was_taken_over_spoils_nothing_of_another(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "gswarm-run.duckdb"
    node = HostileNode("evil", seed)
    hub = Hub(Fleet(("evil", "good")), clock=lambda: T0)
    recorder = Recorder(path, INFO, lambda _status: None)
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
