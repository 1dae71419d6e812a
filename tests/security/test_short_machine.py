"""Closed standard files, little memory, no home folder: the program works, or ends with one sentence."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.terminal import InTerminal

PROGRAM = f"{shlex.quote(sys.executable)} -m gswarm_tui --demo 1x1"
NO_TERMINAL = "the screen needs a terminal, but standard {} isn't one; remove the pipe."


def in_shell(line: str) -> InTerminal:
    return InTerminal(["bash", "-c", line], size=(120, 40))


def test_screen_works_without_standard_error() -> None:
    with in_shell(f"exec {PROGRAM} --no-record 2>&-") as running:
        running.wait_for("sim01")
        running.press("q")
        assert running.exit_status() == 0


def test_signal_ends_the_program_without_standard_error(tmp_path: Path) -> None:
    with in_shell(f"exec {PROGRAM} --db {tmp_path}/run.duckdb 2>&-") as running:
        running.wait_for(" rows")
        running.process.terminate()
        assert running.exit_status() == 0


@pytest.mark.parametrize(
    ("line", "status", "sentence"),
    [
        (f"{PROGRAM} <&-", 2, NO_TERMINAL.format("input")),
        (f"{PROGRAM} >&-", 2, NO_TERMINAL.format("output")),
        (f"ulimit -v 60000; {PROGRAM}", 1, "there isn't enough memory; raise the limit of this shell"),
        (f"HOME=/dev/null XDG_STATE_HOME= {PROGRAM.partition(' --')[0]} recover", 0, "nothing to recover"),
    ],
)
def test_lack_of_memory_is_reported_in_a_sentence(
    tmp_path: Path, line: str, status: int, sentence: str
) -> None:
    with in_shell(f"cd {tmp_path}; {line}") as running:
        assert running.exit_status() == status
        assert sentence in running.screen().replace("\n", " ")
        assert "Traceback" not in running.screen()


def test_home_that_is_not_a_folder_does_not_stop_the_program(tmp_path: Path) -> None:
    with in_shell(f"HOME=/dev/null XDG_STATE_HOME= exec {PROGRAM} --db {tmp_path}/run.duckdb") as running:
        running.wait_for(" rows")
        running.press("q")
        assert running.exit_status() == 0
