"""Hostile names of nodes and sessions are printed, plotted and exported as plain text."""

from __future__ import annotations

import csv
import io
import shutil
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import pytest

from gswarm_tui.cli import main
from tests.integration.exchange_recording import run

TRICK = "\x1b]0;owned\x07\u202eevil\u2066\u2028\x9b2J\x00\ufffe</title><script>alert(1)</script>&"
FORMULA = '=HYPERLINK("http://example.org")'
TEXTS = {
    "recordings": ["host", "user_name", "slurm_job_id", "slurm_cluster", "command"],
    "nodes": ["node", "hostname", "cpu_model", "kernel"],
    "gpus": ["name", "uuid"],
    "process_samples": [
        *("user_name", "command", "cpus_allowed", "state", "wchan"),
        *("slurm_job_id", "slurm_step_id", "framework", "nccl", "container"),
    ],
    "port_samples": ["port"],
    "mount_samples": ["mount"],
    "sessions": ["name", "status", "note"],
    "events": ["message", "detail", "severity"],
}


@pytest.fixture(scope="module")
def tricky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a recording with control characters, text-direction overrides and tags in all its texts."""
    path = run(tmp_path_factory.mktemp("tricky") / "theirs.duckdb")
    with duckdb.connect(str(path)) as connection:
        for table, columns in TEXTS.items():
            changed = ", ".join(f"{column} = coalesce({column}, '') || $1" for column in columns)
            connection.execute(f"UPDATE {table} SET {changed}", [TRICK])
    return path


@pytest.fixture
def recording(tricky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copy(tricky, tmp_path))


def tricks_in(text: str) -> set[str]:
    """Return the characters of a text that control a terminal or the direction of text."""
    return {c for c in text if c != "\n" and (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029")}


@pytest.mark.parametrize(
    "command",
    [
        *(
            [*command, "--format", form]
            for command in (["sessions"], ["summary"], ["summary", "--by", "process"], ["sql", "FROM nodes"])
            for form in ("table", "csv", "json", "markdown")
        ),
        ["compare", "recording 1", "1"],
        *(["export", "-o", "-", "--format", "csv", "--table", t] for t in ("gpu", "process", "events")),
        ["export", "1", "-o", "-", "--format", "json"],
        ["recover"],
    ],
    ids=" ".join,
)
def test_piped_text_contains_no_control_characters(
    recording: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--db", str(recording)]) == 0
    printed = capsys.readouterr()
    assert tricks_in(printed.out + printed.err) == set()


def test_report_holds_neither_control_characters_nor_foreign_tags(recording: Path) -> None:
    assert main(["report", "--db", str(recording), "-o", "out.html"]) == 0
    page = Path("out.html").read_text()
    assert tricks_in(page) == set()
    assert "alert(1)" in page
    assert "<script>alert" not in page


def test_svg_stays_well_formed(recording: Path) -> None:
    assert main(["plot", "--db", str(recording), "-o", "out.svg"]) == 0
    text = Path("out.svg").read_text()
    assert tricks_in(text) == set()
    assert ElementTree.fromstring(text).tag.endswith("svg")


@pytest.mark.parametrize(
    "command",
    [
        ["summary", "--by", "process", "--format", "csv"],
        ["sessions", "--format", "csv"],
        ["export", "--format", "csv", "--table", "process", "-o", "-"],
        ["sql", "SELECT name, -1.5 AS number FROM sessions", "--format", "csv"],
    ],
    ids=lambda words: words[0],
)
def test_csv_safe_guards_formulas_but_not_numbers(
    recording: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with duckdb.connect(str(recording)) as connection:
        connection.execute("UPDATE sessions SET name = $1, note = '  @x'", [FORMULA])
        connection.execute("UPDATE process_samples SET command = $1, user_name = '-x'", [FORMULA])
    cells = {}
    for flags in ([], ["--csv-safe"]):
        assert main([*command, *flags, "--db", str(recording)]) == 0
        rows = csv.reader(io.StringIO(capsys.readouterr().out))
        cells[bool(flags)] = [cell for row in rows for cell in row]
    assert FORMULA in cells[False]
    guarded = [f"'{c}" if c.strip()[:1] in {"=", "@", "-"} and c != "-1.5" and c else c for c in cells[False]]
    assert cells[True] == guarded
