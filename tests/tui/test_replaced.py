"""A program whose files become another version's while it runs, as by ``git pull`` or ``pip install -U``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import gswarm_agent
import gswarm_tui
from tests.terminal import InTerminal
from tests.unit.store_recording import query

PATIENCE_S = 60.0


def test_a_run_goes_on_and_says_what_wants_a_new_start(tmp_path: Path) -> None:
    installed, recording = tmp_path / "installed", tmp_path / "run.duckdb"
    for package in (gswarm_tui, gswarm_agent):
        of_it = Path(package.__file__ or "").parent
        shutil.copytree(of_it, installed / of_it.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--db", str(recording)]
    with InTerminal(command, size=(100, 30), folder=installed) as running:
        running.wait_for("nodes 2/2")
        shutil.rmtree(installed)
        running.press("Q")
        running.wait_for("replaced or removed")
        running.press("s\r")
        running.wait_for("session-1")
        running.press(" ")
        running.wait_for("start it anew")
        running.press("x")
        running.wait_for("no session")
        running.press("q")
        assert running.process.wait(PATIENCE_S) == 0, running.screen()
    assert query(
        recording, "SELECT name FROM sessions, recordings WHERE recordings.ended_at IS NOT NULL"
    ) == [("session-1",)]


def test_a_file_of_another_version_is_not_loaded_beside_those_of_this_one(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    for package in (gswarm_tui, gswarm_agent):
        of_it = Path(package.__file__ or "").parent
        shutil.copytree(of_it, installed / of_it.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--no-record"]
    with InTerminal(command, size=(100, 30), folder=installed) as running:
        running.wait_for("nodes 2/2")
        with (installed / "gswarm_tui" / "tui" / "answer.py").open("a") as file:
            file.write("raise SystemExit\n")
        running.press("Q")
        running.wait_for("replaced or removed")
        running.press("q")
        assert running.process.wait(PATIENCE_S) == 0, running.screen()
