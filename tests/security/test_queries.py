"""Queries on a running recording that would cost it memory, time or the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QueryError
from tests.unit.store_recording import record


@pytest.mark.parametrize("depth", [100, 2_000])
def test_nested_subqueries_run_or_are_refused_with_a_sentence(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [])
    source = FileSource(path)
    sql = "SELECT * FROM (" * depth + "SELECT 1" + ")" * depth
    try:
        if depth == 100:
            assert source.query(sql).rows() == [(1,)]
        else:
            with pytest.raises(QueryError, match=r"nest|depth"):
                source.query(sql)
    finally:
        source.close()
