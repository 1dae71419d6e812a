"""Recordings from strangers run no code. ``test_crafted_recordings.py`` tests their values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from gswarm_tui.cli import main
from tests.integration.exchange_recording import run
from tests.unit.store_recording import introduced, record

COMMANDS = ["summary", "sessions", "report", "plot", "export"]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a valid recording."""
    return run(tmp_path_factory.mktemp("valid") / "theirs.duckdb")


@pytest.fixture
def recording(valid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the valid recording in the working folder."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(valid, tmp_path))


def arguments(command: str, path: Path) -> list[str]:
    """Return the arguments that run a command on a file."""
    output = {
        "report": ["-o", "out.html"],
        "plot": ["-o", "out.png"],
        "export": ["--format", "parquet", "-o", "out"],
    }
    return [command, "--db", str(path), *output.get(command, [])]


def change(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_read_a_valid_recording(recording: Path, command: str) -> None:
    assert main(arguments(command, recording)) == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_table_replaced_by_a_view_writes_no_file(
    recording: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = recording.parent / "precious.txt"
    target.write_text("precious")
    change(
        recording,
        "ALTER TABLE sessions RENAME TO kept",
        f"CREATE VIEW sessions AS SELECT k.* FROM kept k, enable_profiling(save_location='{target}')",
    )
    assert main(arguments(command, recording)) != 0
    assert target.read_text() == "precious"
    assert "theirs.duckdb isn't a recording of gswarm-tui" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE MACRO avg(x) AS 99", 'the macro "avg"'),
        ("CREATE TYPE mood AS ENUM ('good')", 'the type "mood"'),
        ("CREATE VIEW notes AS SELECT * FROM sessions", 'the view "notes"'),
        ("CREATE SCHEMA other; CREATE VIEW other.samples AS SELECT 1", 'the view "samples"'),
    ],
)
def test_foreign_definitions_are_refused_by_name(
    recording: Path, statement: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(recording, *statement.split("; "))
    assert main(["sessions", "--db", str(recording)]) == 1
    assert named in capsys.readouterr().err


def test_generated_column_is_refused(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(
        recording,
        "ALTER TABLE sessions RENAME TO kept",
        "CREATE TABLE sessions (session_id INTEGER, recording_id INTEGER, name VARCHAR AS ('all'), "
        "started_at TIMESTAMP, ended_at TIMESTAMP, status VARCHAR, note VARCHAR)",
    )
    assert main(arguments("summary", recording)) == 1
    assert 'GENERATED clause of the table "sessions"' in capsys.readouterr().err


def test_collation_that_merges_names_is_refused(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(recording, "ALTER TABLE nodes ALTER node TYPE VARCHAR COLLATE NOCASE")
    assert main(arguments("summary", recording)) == 1
    assert 'COLLATE clause of the table "nodes"' in capsys.readouterr().err


def test_trigger_writes_no_file_when_something_is_imported(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, theirs = recording.parent / "precious.txt", recording.parent / "trigger.duckdb"
    target.write_text("precious")
    with duckdb.connect() as connection:  # older storage versions have no triggers
        connection.execute(
            f"ATTACH '{recording}' AS old; ATTACH '{theirs}' AS new (STORAGE_VERSION 'v2.0.0')"
        )
        connection.execute("COPY FROM DATABASE old TO new; USE new")
        connection.execute(
            "CREATE TRIGGER evil AFTER INSERT ON nodes FOR EACH STATEMENT INSERT INTO events BY NAME "
            "SELECT TIMESTAMP '2026-01-01' AS ts, 'x' AS kind, 'x' AS message "
            f"FROM enable_profiling(save_location = '{target}')"
        )
    assert main(["export", "--db", str(recording), "-o", "ours.json"]) == 0
    assert main(["import", "ours.json", "--db", str(theirs)]) == 1
    assert main(["sessions", "--db", str(theirs)]) == 1
    assert capsys.readouterr().err.count('the trigger "evil"') == 2
    assert target.read_text() == "precious"


def test_a_changed_view_of_gswarm_tui_has_no_effect(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sql", "SELECT busy_s FROM session_summary ORDER BY ALL", "--db", str(recording)]
    main(command)
    before = capsys.readouterr().out
    change(recording, "CREATE OR REPLACE VIEW session_summary AS SELECT 1e9 AS busy_s")
    assert main(command) == 0
    assert capsys.readouterr().out == before


def test_recording_into_a_file_with_a_macro_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced()])
    change(path, "CREATE MACRO max(x) AS 4")
    with pytest.raises(Exception, match='the macro "max"'):
        record(path, [introduced()])


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
@pytest.mark.parametrize("command", [*COMMANDS, "replay", "recover"])
@pytest.mark.parametrize("named", [True, False], ids=["named", "found"])
def test_pipe_or_device_is_never_opened(
    tmp_path: Path,
    command: str,
    named: bool,
    make: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.duckdb"
    make(path)
    words = arguments(command, path)
    status = main(words if named else [word for word in words if word not in {"--db", str(path)}])
    assert status == (0 if command == "recover" and not named else 2)


@pytest.mark.parametrize(
    "hidden",
    [
        "COPY (SELECT 'gone') TO 'theirs.duckdb' (FORMAT csv, USE_TMP_FILE false)",
        "SELECT * FROM enable_logging(storage='file', storage_path='log')",
        "SET threads = 1",
    ],
)
@pytest.mark.parametrize(
    "explain", ["EXPLAIN (ANALYZE /*) SELECT 1 --*/ ) ", "/* EXPLAIN ANALYZE SELECT 1 --*/ EXPLAIN ANALYZE "]
)
def test_comment_hides_no_statement_from_the_check_of_a_query(
    recording: Path, explain: str, hidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recording.read_bytes()
    assert main(["sql", explain + hidden, "--db", str(recording)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert recording.read_bytes() == before
    assert [path.name for path in recording.parent.iterdir()] == [recording.name]
