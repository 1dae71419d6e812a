"""Rows inserted by statements that were planned before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gswarm_tui.store.recording.batch import Columns
from gswarm_tui.store.recording.database import Database, DataRefusedError
from gswarm_tui.store.sql.schema import EVENTS, GPU_SAMPLES, SESSIONS, TableSchema


def events(*details: str | None) -> tuple[TableSchema, Columns]:
    times = np.arange(len(details)).astype("datetime64[us]")
    return EVENTS, {"ts": times, "detail": np.array(details, dtype=object)}


def sessions(numbers: list[float], names: list[str]) -> tuple[TableSchema, Columns]:
    return SESSIONS, {"session_id": np.array(numbers), "name": np.array(names, dtype=object)}


def details(database: Database) -> list[str | None]:
    return [detail for (detail,) in database.execute("SELECT detail FROM events ORDER BY rowid")]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "run.duckdb")
    yield opened
    opened.close()


def test_inserted_rows_equal_the_given_ones(database: Database) -> None:
    given: list[list[str | None]] = [[None], ["a", None, "c"], [None, None], ["d"]]
    for one in given:
        database.write([events(*one)])
    assert details(database) == [None, "a", None, "c", None, None, "d"]


@pytest.mark.parametrize("rows", [1, 16_384, 16_385, 40_000])
def test_any_number_of_rows_keeps_its_order(database: Database, rows: int) -> None:
    for _ in range(2):
        database.write([events(*map(str, range(rows)))])
    assert details(database) == [str(n) for n in range(rows)] * 2


def test_insert_works_after_refused_values(database: Database) -> None:
    database.write([events("before")])
    no_time = EVENTS, {"ts": np.array(["NaT"], "datetime64[us]"), "detail": np.array(["never"], object)}
    for refused in ([no_time], [sessions([1], ["never"]), events("never"), no_time]):
        with pytest.raises(DataRefusedError):
            database.write(refused)
        database.write([sessions([2], ["kept"]), events("after")])
    assert details(database) == ["before", "after", "after"]
    assert database.execute("SELECT session_id, name FROM sessions") == [(2, "kept")]


def test_insert_works_after_columns_of_different_lengths(database: Database) -> None:
    name, columns = events("never", "never")
    with pytest.raises(DataRefusedError):
        database.write([sessions([1], ["never"]), (name, columns | {"kind": np.array(["a"] * 3, object)})])
    database.write([sessions([2], ["kept"]), events("after")])
    assert details(database) == ["after"]
    assert database.execute("SELECT name FROM sessions") == [("kept",)]


def test_a_row_of_the_same_key_is_replaced(database: Database) -> None:
    database.write([sessions([1, 2], ["one", "two"])])
    database.write([sessions([2, 3], ["zwei", "drei"])])
    rows = database.execute("SELECT name FROM sessions ORDER BY session_id")
    assert rows == [("one",), ("zwei",), ("drei",)]


def test_numbers_too_large_for_their_column_become_null(database: Database) -> None:
    columns: Columns = {
        "ts": np.zeros(3, "datetime64[us]"),
        "gpu_id": np.arange(3.0),
        "util_pct": np.array([50, 1e300, -1e300]),
        "power_w": np.array([1e300, -1e300, 123.4]),
    }
    database.write([(GPU_SAMPLES, columns)])
    rows = database.execute("SELECT util_pct, power_w FROM gpu_samples ORDER BY gpu_id")
    assert rows == [(50, None), (None, None), (None, 123.0)]
