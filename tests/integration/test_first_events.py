"""The earliest events of a period, found by their times before their texts are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.first_events import first_events
from tests.unit.store_recording import T0, introduced, record


@pytest.mark.parametrize("most", [1, 4, 5, 7, 30, 100])
def test_the_earliest_events_are_complete_and_in_order(tmp_path: Path, most: int) -> None:
    path = tmp_path / "run.duckdb"
    seconds = [9, 3, 3, 3, 3, 3, 1, 2, 0, 8, 8, 7, 4, 30, 40]
    logged = [EventLogged(T0 + at, "notice", "info", f"{at} {n}", "n1") for n, at in enumerate(seconds)]
    record(path, [introduced(), *logged])
    source = FileSource(path)
    ((begin, end),) = source.query(
        "SELECT min(ts), min(ts) + INTERVAL 30 SECOND FROM events WHERE kind = 'notice'"
    ).rows()
    sql = first_events("e.message, n.node", "e.kind = 'notice'", most)
    found = source.query(sql, 1, begin, end).rows()
    source.close()
    within = sorted((at, n) for n, at in enumerate(seconds) if at < 30)
    assert [message for _, message, _ in found] == [f"{at} {n}" for at, n in within[:most]]
    assert {node for _, _, node in found} == {"n1"}
