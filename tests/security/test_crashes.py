"""A killed program: its parent restores the terminal and prints how to resume, and no frame is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_tui.run.supervisor import ENDING
from tests.integration.heads import agents_of, eventually, head, nothing_left, rows
from tests.terminal import PATIENCE_S, InTerminal
from tests.unit.store_recording import query, record

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


def advice(running: InTerminal) -> list[str]:
    """Return the command in backquotes on the screen."""
    (command,) = re.findall(r"`(.+?)`", running.screen().replace("\n", ""))
    return shlex.split(command)


def test_query_that_kills_the_engine_loses_nothing(path: Path) -> None:
    words = ("--launcher", "local", "--interval", "0.1", "--db", str(path))
    with head(*words) as running:
        eventually(lambda: rows(running) > 10, "frames on disk")
        assert running.settings() != running.first_settings
        sql = [sys.executable, "-m", "gswarm_tui", "sql", KILLS_THE_ENGINE, "--db", str(path)]
        with subprocess.Popen(sql, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
            assert running.exit_status() == 128 + signal.SIGSEGV
            asked.send_signal(signal.SIGINT)  # it waits 15 s for a recorder that resumes
            _, errors = asked.communicate(timeout=PATIENCE_S)
        assert asked.returncode != 0
        assert "Traceback" not in errors
        assert "gswarm-tui: the program was killed by SIGSEGV; " in running.screen()
        assert running.settings() == running.first_settings
        program, *recover = advice(running)
    assert program == "gswarm-tui"
    ((uid,),) = query(path, "SELECT uid FROM recordings")
    assert recover == ["recover", uid[:8], "--db", str(path)]
    already = len(query(path, "FROM host_samples"))
    with head(*recover) as running:
        eventually(lambda: rows(running) > already + 20, "more frames on disk")
        running.press("q")
        assert running.exit_status() == 0
    seqs = [seq for (seq,) in query(path, "SELECT seq FROM host_samples ORDER BY ts")]
    assert seqs == list(range(1, len(seqs) + 1))
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]
    assert query(path, "SELECT count(*) FROM host_samples WHERE interval_ms > 200") == [(0,)]
    eventually(lambda: agents_of(uid) == [], "the end of all that was left")


def test_killed_program_without_a_recording_is_reported_in_one_line() -> None:
    with head("--demo", "1x1", "--no-record") as running:
        running.wait_for("sim01")
        os.kill(running.pid, signal.SIGKILL)
        assert running.exit_status() == 128 + signal.SIGKILL
        sentence = "the program was killed by SIGKILL, as happens when memory runs out; it had no recording"
        assert f"gswarm-tui: {sentence} open; start it again" in running.screen().replace("\n", "")
        assert running.settings() == running.first_settings


def test_program_ends_with_its_killed_parent(path: Path) -> None:
    with head("--demo", "1x1", "--db", str(path)) as running:
        running.wait_for(" rows")
        program, parent = running.pid, running.process.pid
        assert program != parent
        os.kill(parent, signal.SIGKILL)
        eventually(lambda: state(program) in ("", "Z"), "the program's end")
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(1,)]


def test_suspending_the_parent_alone_suspends_the_program() -> None:
    with head("--demo", "1x1", "--no-record") as running:
        running.wait_for("sim01")
        program, parent = running.pid, running.process.pid
        for _ in range(2):
            os.kill(parent, signal.SIGTSTP)
            eventually(lambda: state(program) == state(parent) == "T", "both stop")
            os.kill(parent, signal.SIGCONT)
            eventually(lambda: "T" not in (state(program), state(parent)), "both resume")
        running.process.send_signal(signal.SIGTERM)
        assert running.exit_status() == 0


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
        before = busiest_thread_s(running.pid)
        sql = [sys.executable, "-m", "gswarm_tui", "sql", CANNOT_BE_CANCELLED, "--db", str(path)]
        with subprocess.Popen(sql, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as asked:
            eventually(lambda: busiest_thread_s(running.pid) > before + COMPUTES_S, "the query runs")
            running.press("q")
            assert running.exit_status() == 0
            asked.kill()  # it would run the query on the finished file
        running.wait_for(f"{path.name}: ")
        assert "a query could not be cancelled" in running.screen()
        assert "Traceback" not in running.screen()
    assert query(path, "SELECT count(*) FROM recordings WHERE ended_at IS NULL") == [(0,)]


def test_second_ctrl_c_ends_a_query_that_cannot_be_cancelled(path: Path) -> None:
    record(path, [])
    sql = [sys.executable, "-m", "gswarm_tui", "sql", CANNOT_BE_CANCELLED, "--db", str(path)]
    with subprocess.Popen(sql, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stderr is not None
        eventually(lambda: busiest_thread_s(asked.pid) > COMPUTES_S, "the query runs")
        asked.send_signal(signal.SIGINT)
        assert asked.stderr.readline() == (
            "gswarm-tui: the query can't be cancelled now; Ctrl-C again ends gswarm-tui\n"
        )
        asked.send_signal(signal.SIGINT)
        assert asked.wait(PATIENCE_S) == -signal.SIGINT
