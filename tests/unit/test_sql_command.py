"""``gswarm-tui sql`` as its users have it: on the command line, from files and pipes, and at its prompt."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput

from gswarm_tui.cli import main
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.fleet.events import SessionStarted
from gswarm_tui.printing.formats import OutputOptions
from gswarm_tui.shell.completion import Known, SqlCompleter
from gswarm_tui.shell.prompt import Prompt
from gswarm_tui.store.querying.file_source import FileSource
from tests.unit.store_recording import T0, arrived, gpu_row, introduced, record

ROOT = Path(__file__).parents[2]
COUNT = "SELECT count(*) AS n FROM samples"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of three samples of two GPUs."""
    path = tmp_path / "run.duckdb"
    frames = [arrived(seq, [gpu_row(util_pct=seq), gpu_row(pstate=0)]) for seq in (1, 2, 3)]
    record(path, [introduced(gpus=2), SessionStarted("s", T0, "train", T0), *frames])
    return path


def test_a_query_is_answered(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", COUNT, "--db", str(path)]) == 0
    assert capsys.readouterr() == ("n\n─\n6\n", "")


def test_each_statement_is_answered(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "SELECT 1 AS a; SELECT 'x;' AS b;", "--db", str(path), "--format", "csv"]) == 0
    assert capsys.readouterr().out == "a\n1\n\nb\nx;\n"


def test_the_newest_recording_of_the_folder_is_asked(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    assert main(["sql", "SELECT name FROM sessions", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "train"}]


def test_a_file_and_standard_input_are_read(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = path.with_name("questions.sql")
    questions.write_text(f"-- how many?\n{COUNT};\n")
    for words in (["-f", str(questions)], ["-"], []):
        monkeypatch.setattr("sys.stdin", io.StringIO(COUNT))
        assert main(["sql", *words, "--db", str(path)]) == 0
        assert capsys.readouterr().out == "n\n─\n6\n"


def test_a_parquet_file_is_written(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("samples.parquet")
    assert main(["sql", "FROM samples ORDER BY ts, gpu_index", "--db", str(path), "-o", str(out)]) == 0
    assert capsys.readouterr() == ("", "")
    read = duckdb.read_parquet(str(out)).filter("gpu_index = 0").order("ts").project("util_pct")
    assert read.fetchall() == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["FROM sesions"], 1, 'Did you mean "sessions"? (line 1: "FROM sesions").\n'),
        (["DROP TABLE sessions"], 1, "can be used here, not DROP.\n"),
        (
            ["SELECT 1; SELECT nothing"],
            1,
            'Referenced column "nothing" was not found because the FROM clause is',
        ),
        ([""], 2, "there is no statement in what was asked.\n"),
        (["SELECT 1", "-f", "x.sql"], 2, "sql takes a query or a file with one, not both.\n"),
        (["-f", "/nowhere.sql"], 2, "/nowhere.sql can't be read: No such file or directory.\n"),
        (["-f", sys.executable], 2, "isn't text.\n"),
        (["SELECT 1; SELECT 2", "-o", "x.csv"], 2, "-o takes one answer, and these are 2 statements.\n"),
        (["SELECT 1", "FROM x"], 2, 'gswarm-tui sql can\'t use "FROM x"'),
        (["SELECT 1", "--fromat", "csv"], 2, "perhaps --format is meant.\n"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, said: str
) -> None:
    assert main(["sql", *words, "--db", str(path)]) == status
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("gswarm-tui: ")
    assert error.count("\n") == 1


def test_a_recording_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", COUNT, "--db", str(tmp_path / "none.duckdb")]) != 0
    assert "doesn't exist" in capsys.readouterr().err


def test_names_from_nodes_obey_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.duckdb"
    record(path, [introduced(node="n\x1b[31m1", gpus=1)])
    assert main(["sql", "SELECT node FROM nodes", "--db", str(path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_ctrl_c_ends_a_query_at_once(path: Path) -> None:
    query = "SELECT 1; SELECT count(*) FROM range(1000000000000)"
    process = subprocess.Popen(
        [sys.executable, "-m", "gswarm_tui", "sql", query, "--db", str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        for _ in range(4):  # the first answer, and the line between the two
            process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert error == b""


class Typing:
    """A person at the prompt: what is typed, and what was answered."""

    def __init__(self, path: Path, keys: PipeInput) -> None:
        self.out = io.StringIO()
        self.keys = keys
        self.history = path.with_name("state") / "sql-history"
        self.source = FileSource(path)
        self.answered: list[tuple[str, OutputOptions, list[object]]] = []
        self.prompt = Prompt(
            self.source,
            lambda sql, form, values: self.answered.append(
                (sql, form, list(self.source.query(sql, *values).rows()))
            ),
            OutputOptions(),
            QueryHistory(self.history),
            read=keys,
            write=DummyOutput(),
            out=self.out,
        )

    def type(self, text: str) -> None:
        """Types text and Ctrl-D, and waits until the prompt has ended."""
        self.keys.send_text(text + "\x04")
        self.prompt.run()


@contextmanager
def at_the_prompt(path: Path) -> Iterator[Typing]:
    with create_pipe_input() as keys:
        typing = Typing(path, keys)
        try:
            yield typing
        finally:
            typing.source.close()


def test_statements_of_many_lines_end_with_their_semicolon(path: Path) -> None:
    with at_the_prompt(path) as typing:
        typing.type("SELECT count(*)\rFROM samples;\rSELECT 1; SELECT 2;\r")
    assert [rows for _, _, rows in typing.answered] == [[(6,)], [(1,)], [(2,)]]


def test_what_was_asked_is_kept_for_its_user_alone(path: Path) -> None:
    with at_the_prompt(path) as typing:
        typing.type("SELECT 1;\r")
    assert "+SELECT 1;" in typing.history.read_text()
    assert typing.history.stat().st_mode & 0o777 == 0o600
    with at_the_prompt(path) as typing:
        typing.type("\x1b[A\r")
    assert [sql for sql, _, _ in typing.answered] == ["SELECT 1;"]


def test_a_mistake_is_told_and_the_prompt_goes_on(path: Path) -> None:
    with at_the_prompt(path) as typing:
        typing.type("FROM sesions;\rSELECT 1;\r")
    assert 'Did you mean "sessions"?' in typing.out.getvalue()
    assert [rows for _, _, rows in typing.answered] == [[(1,)]]


@pytest.mark.parametrize("way", ["\\q\r", ".quit\r", ".exit\r", "quit\r", "exit;\r", ""])
def test_there_are_ways_out(path: Path, way: str) -> None:
    with at_the_prompt(path) as typing:
        typing.type(way)
    assert typing.answered == []


def test_ctrl_c_throws_away_what_is_typed(path: Path) -> None:
    with at_the_prompt(path) as typing:
        typing.type("SELECT nonsense\x03SELECT 1;\r")
    assert [sql for sql, _, _ in typing.answered] == ["SELECT 1;"]


def test_commands_tell_what_there_is(path: Path) -> None:
    with at_the_prompt(path) as typing:
        typing.type(".help\r.tables\r.columns gpus\r.columns gpsu\r.nonsense\r")
        typing.type(".format csv\r.all\r.format x\rSELECT 1;\r")
    said = typing.out.getvalue()
    assert ".tables" in said
    assert 'there is no table "gpsu"; perhaps gpus is meant' in said
    assert 'there is no command ".nonsense"' in said
    assert ".format takes one of table, csv, json, markdown" in said
    (_, _, tables), (_, _, columns), (_, form, _) = typing.answered
    assert ("samples", "gpu_samples with the names of node and GPU") in tables
    assert ("gpu_id", "INTEGER") in [row[:2] for row in columns if isinstance(row, tuple)]
    assert form == OutputOptions("csv", every=True)


def completions(path: Path, text: str, *, asked: bool = True) -> list[str]:
    source = FileSource(path)
    try:
        completer = SqlCompleter(Known.of(source), [".help", ".tables", "\\q"])
    finally:
        source.close()
    event = CompleteEvent(completion_requested=asked)
    return [found.text for found in completer.get_completions(Document(text), event)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM sess", ["session_bubbles", "session_coverage", "session_samples", "sessions"]),
        ("SELECT u FROM gpus WHERE uu", ["uuid"]),
        ("SELECT e.started FROM sessions e WHERE e.sta", ["started_at", "status"]),
        ("sel", ["select"]),
        ("SEL", ["SELECT"]),
        ("SELECT quantile_c", ["quantile_cont"]),
        (".t", [".tables"]),
        ("SELECT 'x' zzz", []),
    ],
)
def test_what_can_come_next_is_completed(path: Path, text: str, expected: list[str]) -> None:
    found = completions(path, text)
    assert [each for each in found if each in expected] == expected
    assert bool(found) == bool(expected)


def test_tables_are_offered_where_one_has_to_come(path: Path) -> None:
    assert "samples" in completions(path, "FROM ")
    assert "SELECT" not in completions(path, "FROM ")
    assert completions(path, "SELECT ", asked=False) == []
