"""A locale that isn't UTF-8: commands and the screen print ASCII on a terminal, UTF-8 into files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.cells import cell_len

from gswarm_tui.common.ascii_signs import ASCII_SIGNS, register_ascii_signs
from tests.integration.heads import eventually
from tests.locales import NoLocalesError, compile_latin1
from tests.recorded import recorded
from tests.terminal import InTerminal
from tests.tui.scene import Scene

GSWARM = [sys.executable, "-m", "gswarm_tui"]
COMMANDS = (
    ["once", "--demo", "1x2"],
    ["sessions"],
    ["summary"],
    ["summary", "--format", "markdown"],
    ["compare", "train", "recording 1"],
    ["sql", "SELECT 'é – ▲' AS text"],
    ["summary", "nothing – such"],
)


@pytest.fixture(scope="module")
def latin1(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a real en_US.ISO-8859-1."""
    try:
        return compile_latin1(tmp_path_factory.mktemp("locales"))
    except NoLocalesError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with a session."""

    def happens(made: Scene) -> None:
        made.connect().advance(10)
        made.hub.start_session("train")
        made.advance(30)

    path = tmp_path_factory.mktemp("recording") / "run.duckdb"
    recorded(path, Scene(2, 4), happens)
    return path


@pytest.fixture
def folder(recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a copy of the recording, which is also the home."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    shutil.copy(recording, tmp_path)
    return tmp_path


ALL = f"""
from gswarm_tui.cli import main
for words in {COMMANDS}:
    print("=== status", main(words), *words, flush=True)
"""
"""Runs all commands in one process: ``main`` begins by choosing the encoding for all of them alike."""
PROGRAMS = ([*GSWARM, "--help"], [sys.executable, "-c", ALL])


def check(printed: str) -> None:
    """Check that all commands printed something, and that only the last failed, without a traceback."""
    outputs = printed.split("=== status ")
    assert "simulated nodes send data" in outputs[0]
    assert all(output.partition("\n")[2].strip() for output in outputs[1:-1])
    statuses = [output.split(maxsplit=1)[0] == "0" for output in outputs[1:]]
    assert statuses == [words[-1] != "nothing – such" for words in COMMANDS]
    assert "Traceback" not in printed


def test_commands_print_ascii_on_a_terminal(folder: Path, latin1: dict[str, str]) -> None:
    script = "import os, pty, sys; os._exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    printed = ""
    for program in PROGRAMS:
        done = subprocess.run(
            [sys.executable, "-c", script, *program],
            cwd=folder,
            env={**os.environ, **latin1},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        printed += done.stdout.decode("ascii")
    assert printed.startswith("usage: ")
    check(printed.replace("\r\n", "\n"))


def test_no_cell_of_the_screen_moves(folder: Path, latin1: dict[str, str]) -> None:
    """Compare the screen of a recording in both locales cell by cell."""
    register_ascii_signs(cell_len)
    command, size = [*GSWARM, "sql"], (100, 30)
    signs = "chr(233) || chr(9650) || chr(21517)"  # a letter, a sign and a wide character
    with (
        InTerminal(command, size=size, env={"LC_ALL": "C.UTF-8"}, folder=folder) as utf8,
        InTerminal(command, size=size, env=latin1, folder=folder) as ascii_only,
    ):
        for running in (utf8, ascii_only):
            running.wait_for("recipes")
            running.press(f"SELECT node, NULL AS nothing, {signs} AS signs FROM nodes;\r")
            running.wait_for("2 rows in")
        utf8.wait_for("é▲名")
        with suppress(AssertionError):  # the comparison below shows where they differ
            eventually(lambda: lines(ascii_only) == in_ascii(utf8), "the same cells")
        assert lines(ascii_only) == in_ascii(utf8)


def lines(running: InTerminal) -> list[str]:
    """Return a screen's lines without how long the query took."""
    return re.sub(r"in \d+\.\d+ s", "in 0.00 s", running.screen()).splitlines()


def in_ascii(running: InTerminal) -> list[str]:
    """Return a screen's lines in the signs of a terminal that has only ASCII."""
    return [line.encode("ascii", ASCII_SIGNS).decode().rstrip() for line in lines(running)]


def test_live_screen_and_typed_latin1_letters(folder: Path, latin1: dict[str, str]) -> None:
    command = [*GSWARM, "--demo", "2x2", "--no-record"]
    with InTerminal(command, size=(120, 30), env=latin1, folder=folder) as running:
        running.wait_for("2/2")
        running.wait_for("sim02")
        assert running.screen().isascii()
        running.press("/")
        running.wait_for("filter")
        os.write(running._terminal, "sim02é".encode("latin-1"))
        running.wait_for("sim02e")
        running.press("\x7f\r")
        running.wait_for("1 of 2")


def test_recording_with_a_name_beyond_ascii_is_refused(folder: Path, latin1: dict[str, str]) -> None:
    command = [*GSWARM, "sessions", "--db", "né.duckdb"]
    (folder / "né.duckdb").write_bytes((folder / "run.duckdb").read_bytes())
    done = subprocess.run(command, cwd=folder, env={**os.environ, **latin1}, capture_output=True, check=False)
    assert done.returncode == 2
    assert (
        b"isn't ASCII, and this locale isn't UTF-8; set LC_ALL=C.UTF-8, or use another name." in done.stderr
    )
