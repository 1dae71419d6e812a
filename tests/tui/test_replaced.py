"""A program whose files become another version's while it runs, as by ``git pull`` or ``pip install -U``."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import gswarm_agent
import gswarm_tui
from tests.terminal import InTerminal
from tests.unit.store_recording import query

PATIENCE_S = 60.0


def test_whoever_runs_needs_none_of_its_files_any_more(tmp_path: Path) -> None:
    installed, recording = tmp_path / "installed", tmp_path / "run.duckdb"
    for package in (gswarm_tui, gswarm_agent):
        of_it = Path(package.__file__ or "").parent
        shutil.copytree(of_it, installed / of_it.name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--db", str(recording)]
    environ = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": ""}
    with InTerminal(command, size=(100, 30), folder=installed, env=environ) as running:
        deadline = time.monotonic() + PATIENCE_S
        while not list(installed.glob("gswarm_tui/playback/__pycache__/tape.*")):
            assert time.monotonic() < deadline, running.screen()
            time.sleep(0.05)
        shutil.rmtree(installed)
        running.press("Q")
        running.wait_for("recipes")
        running.press("SELECT 'asked ' || count(*) FROM nodes;\r")
        running.wait_for("asked 2")
        running.press("\x1b")
        running.wait_for("sim02")
        running.press(" ")
        running.wait_for("PAST")
        running.press("q")
        assert running.process.wait(PATIENCE_S) == 0, running.screen()
    assert query(recording, "SELECT count(*) FROM recordings WHERE ended_at IS NOT NULL") == [(1,)]
