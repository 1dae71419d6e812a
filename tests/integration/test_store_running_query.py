"""Queries can't change a recording, read other files or reach a network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from gswarm_tui.fleet.events import Event, SessionStarted
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QueryError, QuerySource
from gswarm_tui.store.querying.running_query import split
from gswarm_tui.store.recording.recorder import FileWriter
from tests.unit.store_recording import INFO, T0, arrived, gpu_row, introduced, record

EVENTS: list[Event] = [
    introduced(gpus=2),
    SessionStarted("s", T0, "train", T0),
    *(
        arrived(second, [gpu_row(util_pct=second % 100, power_w=97.3), gpu_row(pstate=0)])
        for second in range(1, 50)
    ),
]


@pytest.fixture(scope="module", params=["file", "running"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuerySource]:
    """Return the same recording, finished and while it is written."""
    path = tmp_path_factory.mktemp(request.param) / "run.duckdb"
    if request.param == "file":
        record(path, EVENTS)
        source = FileSource(path)
        yield source
        source.close()
        return
    committed = threading.Event()
    recorder = FileWriter(path, INFO, lambda status: committed.set() if status.committed else None)
    recorder.open()
    recorder.submit(EVENTS)
    assert committed.wait(30)
    yield recorder.queries()
    assert recorder.close(T0 + 100).error == ""


@pytest.fixture(scope="module")
def unchanged(source: QuerySource) -> list[object]:
    """Return the snapshot of the recording before all attacks."""
    return snapshot(source)


ASKED = [
    ("SELECT count(*) FROM samples", [(98,)]),
    ("FROM sessions SELECT name", [("train",)]),
    ("WITH u AS (SELECT max(util_pct) AS most FROM samples) FROM u", [(49,)]),
    ("VALUES (1, NULL), (2, 'x')", [(1, None), (2, "x")]),
    ("SELECT column_name FROM (DESCRIBE sessions) LIMIT 1", None),
    ("SUMMARIZE gpu_samples", None),
    ("SHOW TABLES", None),
    ("DESCRIBE session_summary", None),
    ("PIVOT (SELECT gpu_index FROM samples) ON gpu_index IN (0, 1) USING count(*)", [(49, 49)]),
    ("SELECT count(*) FROM range(10), generate_series(1, 3)", [(30,)]),
    ("SELECT list(name ORDER BY name)[1] FROM duckdb_columns() c(name)", None),
    ("SELECT count(*) FROM samples s, LATERAL (SELECT s.util_pct) WHERE s.util_pct IS NULL", [(49,)]),
    ("SELECT 1 -- and no more;", [(1,)]),
    ("SELECT count(*) FROM pragma_table_info('sessions')", None),
]


@pytest.mark.parametrize(("sql", "rows"), ASKED)
def test_read_only_statements_return_their_rows(
    source: QuerySource, sql: str, rows: list[tuple[object, ...]] | None
) -> None:
    found = source.query(sql).rows()
    assert found == rows if rows is not None else found


CHANGES = [
    "INSERT INTO sessions (session_id) VALUES (9)",
    "UPDATE sessions SET name = 'x'",
    "DELETE FROM gpu_samples",
    "TRUNCATE gpu_samples",
    "DROP TABLE gpu_samples",
    "DROP VIEW samples",
    "ALTER TABLE sessions ADD COLUMN x INTEGER",
    "COMMENT ON TABLE sessions IS 'x'",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE MACRO x() AS 1",
    "CREATE SECRET x (TYPE s3, KEY_ID 'k', SECRET 's')",
    "CREATE TYPE mood AS ENUM ('a')",
    "MERGE INTO sessions USING (SELECT 1) ON false WHEN NOT MATCHED THEN INSERT DEFAULT VALUES",
    "WITH x AS (INSERT INTO sessions (session_id) VALUES (9) RETURNING *) FROM x",
    "EXPLAIN ANALYZE COPY sessions TO '{there}'",
    "PREPARE x AS DELETE FROM sessions",
    "EXECUTE x",
    "BEGIN",
    "COMMIT",
    "SELECT 1; DELETE FROM sessions",
    "COPY sessions TO '{there}'",
    "COPY sessions FROM '{secret}'",
    "COPY (SELECT 1) TO '{recording}'",
    "COPY FROM DATABASE rec TO other",
    "EXPORT DATABASE '{there}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{there}'",
    "ATTACH ':memory:' AS other",
    "DETACH rec",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET memory_limit = '100GB'",
    "SET GLOBAL enable_external_access = true",
    "SET temp_directory = '{folder}'",
    "RESET memory_limit",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA enable_profiling",
    "PRAGMA disable_checkpoint_on_shutdown",
    "CALL pragma_version()",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "FROM import_database('{folder}')",
    "FROM copy_database('rec', 'other')",
    "FROM pandas_scan(1)",
    "FROM python_map_function((SELECT 1))",
    "FROM register_external_resource('x', 'y')",
    "SELECT nextval('x')",
]
READS_ELSEWHERE = [
    "FROM '{secret}'",
    "FROM read_csv('{secret}')",
    "FROM read_text('{secret}')",
    "SELECT * FROM read_blob('{secret}')",
    "FROM read_json('{secret}')",
    "FROM read_parquet('{secret}')",
    "FROM parquet_metadata('{secret}')",
    "FROM sniff_csv('{secret}')",
    "FROM read_duckdb('{secret}')",
    "FROM glob('{folder}/*')",
    "FROM read_text('{recording}')",
    "FROM duckdb_secrets()",
    "FROM duckdb_extensions()",
    "FROM which_secret('{secret}', 's3')",
    "SELECT getenv('HOME')",
    "FROM 'http://127.0.0.1:9/x.csv'",
    "FROM read_parquet('s3://bucket/x')",
    "FROM sqlite_scan('{secret}', 'x')",
]


@pytest.mark.parametrize("attack", CHANGES + READS_ELSEWHERE)
def test_other_statements_are_refused(
    source: QuerySource, unchanged: list[object], tmp_path: Path, attack: str
) -> None:
    secret, there = tmp_path / "secret.csv", tmp_path / "there"
    secret.write_text("secret\nhunter2\n")
    names = {"secret": secret, "there": there, "folder": tmp_path, "recording": source.path}
    with pytest.raises(QueryError) as caught:
        source.query(attack.format(**names)).rows()
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not there.exists()
    assert snapshot(source) == unchanged


def snapshot(source: QuerySource) -> list[object]:
    """Return everything that an attack must not change: data, schema, settings."""
    asked = (
        "SELECT {rows: count(*), newest: max(ts)} FROM gpu_samples",
        "SELECT list([name, status] ORDER BY name) FROM sessions",
        "SELECT list(table_name ORDER BY table_name) FROM duckdb_tables() WHERE NOT internal",
        "SELECT list(view_name ORDER BY view_name) FROM duckdb_views() WHERE NOT internal",
        "SELECT list(database_name ORDER BY database_name) FROM duckdb_databases()",
        "SELECT list(comment ORDER BY comment) FROM duckdb_tables()",
        "SELECT [current_setting('enable_external_access')::VARCHAR, current_setting('memory_limit'), "
        "current_setting('temp_directory')]",
    )
    (found,) = source.query(f"SELECT {', '.join(f'({sql})' for sql in asked)}").rows()
    return [*found]


def test_queries_cannot_read_python_variables(source: QuerySource) -> None:
    mine = {"a": [1, 2]}
    with pytest.raises(QueryError, match="Table with name mine does not exist"):
        source.query("FROM mine")
    assert mine


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selct 1", 'syntax error at or near "selct" (line 1: "selct 1")'),
        (
            "FROM sesions",
            'Table with name sesions does not exist! Did you mean "sessions"? (line 1: "FROM ses',
        ),
        ("SELECT\n nod FROM samples", 'Candidate bindings: "node"'),
        ("SELECT max_temp_directory_size", 'Referenced column "max_temp_directory_size" was not found'),
        ("DROP TABLE sessions", "can be used here, not DROP"),
        ("PIVOT samples ON gpu_index USING count(*)", "name the columns that PIVOT makes"),
        ("FROM '/etc/passwd.csv'", "queries can only read the recording, not /etc/passwd.csv"),
        ("", "the query is empty"),
        ("SELECT 1; SELECT 2", "run one statement at a time"),
    ],
)
def test_query_error_is_one_line_with_its_hint(source: QuerySource, sql: str, said: str) -> None:
    with pytest.raises(QueryError) as caught:
        source.query(sql)
    assert said in str(caught.value)


def test_values_have_their_types(source: QuerySource) -> None:
    answer = source.query(
        "SELECT ?::INTEGER + 1 AS n, ?::TIMESTAMP AS t, 1.5::DECIMAL(4, 2) AS d", 2, "2027-01-15"
    )
    assert answer.names == ["n", "t", "d"]
    assert answer.types == ["INTEGER", "TIMESTAMP", "DECIMAL(4,2)"]
    assert answer.dicts()[0]["t"] == datetime(2027, 1, 15)  # noqa: DTZ001  # UTC, without saying so


def test_a_query_is_cancelled_from_another_thread(source: QuerySource) -> None:
    threading.Timer(0.2, source.interrupt).start()
    with pytest.raises(QueryError, match=r"^the query was cancelled$"):
        source.query("SELECT count(*) FROM range(1000000000000)").rows()
    assert source.query("SELECT 1").rows() == [(1,)]


def test_closing_an_unread_result_ends_its_query(source: QuerySource) -> None:
    for _ in range(20):  # more than there may be at once
        answer = source.query("SELECT * FROM range(100000)")
        next(answer.batches)
        answer.close()
    assert source.query("SELECT 1").rows() == [(1,)]


def test_sorting_more_than_memory_spills_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gswarm_tui.store.querying.file_source.MEMORY", "100MB")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    path = tmp_path / "run.duckdb"
    record(path, EVENTS)
    source = FileSource(path)
    answer = source.query("SELECT i, md5(i::VARCHAR) AS m FROM range(3000000) t(i) ORDER BY m DESC, i")
    assert next(answer.batches)[0][1].startswith("ffff")
    (scratch,) = [folder for folder in tmp_path.iterdir() if folder.is_dir()]
    assert list(scratch.iterdir())
    answer.close()
    source.close()
    assert not scratch.exists()


def test_text_is_split_into_statements() -> None:
    assert split("SELECT ';';\nFROM sessions; -- no; more\n") == ["SELECT ';';", "FROM sessions; -- no; more"]
    assert split(" -- nothing\n") == []
    with pytest.raises(QueryError, match="unterminated string literal"):
        split("SELECT ' FROM")
