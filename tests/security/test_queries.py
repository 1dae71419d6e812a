"""Queries that write files, or whose results can't be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.cli import main
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.tui.screens.sql import result_table
from tests.unit.store_recording import record


@pytest.fixture
def source(tmp_path: Path) -> Iterator[FileSource]:
    path = tmp_path / "run.duckdb"
    record(path, [])
    source = FileSource(path)
    yield source
    source.close()


@pytest.mark.parametrize(
    ("sql", "way"),
    [
        ("COPY samples TO 'samples.csv'", "`gswarm-tui sql … -o FILE`"),
        ("EXPORT DATABASE 'folder'", "`gswarm-tui export`"),
        ("FROM read_csv('/etc/passwd')", "`gswarm-tui sql … -o FILE`"),
        ("FROM 'other.csv'", "`gswarm-tui sql … -o FILE`"),
        ("ATTACH 'other.duckdb'", "--db"),
    ],
)
def test_refused_query_names_the_command_that_works(source: FileSource, sql: str, way: str) -> None:
    with pytest.raises(QueryError) as caught:
        source.query(sql)
    assert way in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    ["SELECT to_days(2000000000)", "SELECT (repeat('[', 400) || repeat(']', 400))::JSON::VARIANT"],
    ids=["out of range", "nested"],
)
def test_value_that_python_cannot_hold_is_refused_with_a_sentence(
    source: FileSource, sql: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(QueryError, match="cast it to VARCHAR"):
        result_table(RecordingQueries(source).query(sql))
    for form in ("table", "csv", "markdown"):
        assert main(["sql", sql, "--db", str(tmp_path / "run.duckdb"), "--format", form]) == 1
        assert capsys.readouterr().err.endswith("cast it to VARCHAR.\n")
