"""A killed screen or recorder: recording goes on, and no frame is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.cli import main
from gswarm_tui.run.signals import ENDING
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.recorders import recorder_of
from tests.terminal import PATIENCE_S, InTerminal
from tests.unit.store_recording import query

KILLS_THE_ENGINE = "SELECT (repeat('[',100000)||repeat(']',100000))::JSON::VARIANT"
"""DuckDB 2.0 overflows its stack at this value, which no check of a statement can see."""

CANNOT_BE_CANCELLED = "SELECT length(regexp_replace(repeat('a', 1000000), 'a(.*b)?', 'x', 'g'))"
"""DuckDB computes for hours inside one function, which ignores interrupts: each match looks for a ``b``."""
COMPUTES_S = 0.5
"""CPU seconds after which a thread is in that function: all that a command does before takes less."""
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gswarm-run.duckdb"
    with nothing_left(path):
        yield path


def state(pid: int) -> str:
    """Return the state of a process as ps shows it, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def busiest_thread_s(pid: int) -> float:
    """Return the CPU seconds of the busiest thread except the first one."""
    used = [0.0]
    for task in Path(f"/proc/{pid}/task").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = task.read_text().rpartition(")")[2].split()
            used += [int(fields[11]) / TICKS] if task.parent.name != str(pid) else []
    return max(used)


def test_query_that_kills_the_engine_loses_nothing(path: Path) -> None:
    words = ("--launcher", "local", "--interval", "0.1", "--db", str(path))
    with head(*words) as running:
        eventually(lambda: rows(running) > 10, "frames on disk")
        assert running.settings() != running.first_settings
        sql = [sys.executable, "-m", "gswarm_tui", "sql", KILLS_THE_ENGINE, "--db", str(path)]
        asked = subprocess.run(sql, capture_output=True, text=True, check=False)
        assert asked.returncode != 0
        assert "Traceback" not in asked.stderr
        already = rows(running)
        eventually(lambda: rows(running) > already + 20, "more frames on disk")
        running.press("q")
        assert running.exit_status() == 0
        assert running.settings() == running.first_settings
    ((uid,),) = query(path, "SELECT uid FROM recordings")
    why = "SELECT message FROM events WHERE kind = 'recorder_restarted'"
    assert query(path, why) == [("the recorder was killed by SIGSEGV",)]
    seqs = [seq for (seq,) in query(path, "SELECT seq FROM host_samples ORDER BY ts")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
    assert query(path, "SELECT count(*) FROM host_samples WHERE interval_ms > 200") == [(0,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_killed_screen_leaves_the_recorder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSWARM_TUI_UNATTENDED", "1h")
    with head("--launcher", "local", "--db", str(path)) as running:
        eventually(lambda: rows(running) > 0, "frames on disk")
        os.kill(running.pid, signal.SIGKILL)
        assert running.exit_status() == -signal.SIGKILL
    with head("attach", str(path)) as running:
        running.wait_for("● attached · rec")
    assert main(["recording", "stop", "--db", str(path)]) == 0


def test_screen_that_fails_leaves_the_recorder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSWARM_TUI_UNATTENDED", "1h")
    fails = "from gswarm_tui import cli; from gswarm_tui.tui.app import GswarmApp as app; "
    fails += "app.action_start_session = lambda self: 1 / 0; raise SystemExit(cli.main())"
    words = ("--launcher", "local", "--db", str(path))
    with InTerminal([sys.executable, "-c", fails, *words], size=(120, 40)) as running:
        running.wait_for(" rows")
        running.press("s")
        assert running.exit_status() == 1
        running.wait_for("gswarm-tui: recording goes on: gswarm-tui attach ")
        assert running.settings() == running.first_settings
    assert main(["recording", "stop", "--db", str(path)]) == 0


def test_recorder_ends_with_its_only_screen_when_nobody_may_leave_it(path: Path) -> None:
    with head("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(" rows")
        recorder = recorder_of(path)
        os.kill(running.pid, signal.SIGKILL)
        eventually(lambda: state(recorder) == "", "the recorder's end")
        assert running.exit_status() == -signal.SIGKILL
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]


@pytest.mark.parametrize("number", ENDING)
def test_signal_closes_the_recording_and_restores_the_terminal(path: Path, number: signal.Signals) -> None:
    with head("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(" rows")
        os.kill(running.process.pid, number)
        assert running.exit_status() == 0
        running.wait_for(f"{path.name}: ")
        assert running.settings() == running.first_settings
        assert "killed" not in running.screen()
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]


def test_query_that_cannot_be_cancelled_does_not_keep_the_program_from_ending(path: Path) -> None:
    with head("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(" rows")
        recorder = recorder_of(path)
        before = busiest_thread_s(recorder)
        sql = [sys.executable, "-m", "gswarm_tui", "sql", CANNOT_BE_CANCELLED, "--db", str(path)]
        with subprocess.Popen(sql, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
            eventually(lambda: busiest_thread_s(recorder) > before + COMPUTES_S, "the query runs")
            running.press("q")
            assert running.exit_status() == 0
            asked.communicate(timeout=PATIENCE_S)
        running.wait_for(f"{path.name}: ")
        assert "a query could not be cancelled" in running.screen()
        assert "Traceback" not in running.screen()
    eventually(
        lambda: not Path(f"/proc/{recorder}").exists(), "the end of the recorder, which has said it all"
    )
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
