"""Suspending and resuming the app, a terminal that goes away, and signals at the start."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

import duckdb
import pytest
from textual.drivers._writer_thread import MAX_QUEUED_WRITES, WriterThread

from gswarm_tui.tui.textual_internals.driver import DetachableFile
from tests.recorders import wait_for_end
from tests.terminal import PATIENCE_S, InTerminal


def wait_until_stopped(pid: int) -> None:
    """Wait for the stop of the started process, which stops last of its group.

    Its child may have just forked, and then waits uninterruptibly for a process that was stopped before exec.
    """
    deadline = time.monotonic() + PATIENCE_S
    while "T (stopped)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "it was never stopped"
        time.sleep(0.02)


def press_until(running: InTerminal, key: str, shows: str) -> None:
    """Type a key again until it has an effect: keys typed while the app resumes are dropped."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        running.press(key)
        try:
            running.wait_for(shows, 3.0)
        except TimeoutError:
            assert time.monotonic() < deadline, running.screen()
        else:
            return


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGTSTP, "\x1a"], ids=["STOP", "TSTP", "Ctrl-Z"])
def test_suspended_app_resumes_and_obeys_keys(stop: signal.Signals | str) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--no-record"]
    with InTerminal(command, size=(100, 30)) as running:
        running.wait_for("sim02")
        for _ in range(2):
            if isinstance(stop, str):
                running.press(stop)
            else:
                os.killpg(running.process.pid, stop)  # as scontrol suspend does
            wait_until_stopped(running.process.pid)
            os.killpg(running.process.pid, signal.SIGCONT)
            press_until(running, "4", "temperature")
            press_until(running, "1", "GPU util")
        running.press("q")
        assert running.exit_status() == 0


def test_keys_work_after_a_byte_that_is_not_utf_8() -> None:
    with InTerminal([sys.executable, "-m", "gswarm_tui", "--demo", "1x1", "--no-record"]) as running:
        running.wait_for("sim01")
        running.press("é".encode("latin-1"))
        running.press("4")
        running.wait_for("temperature")
        running.press("q")
        assert running.exit_status() == 0


CONTINUED = """
import asyncio, os, signal, termios
from gswarm_tui.tui.textual_internals.app import TerminalApp
class Brief(TerminalApp):
    def on_ready(self):
        self.exit()
async def main():
    await Brief().run_async()
    os.kill(os.getpid(), signal.SIGCONT)
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    print("lines are read", bool(termios.tcgetattr(0)[3] & termios.ICANON))
asyncio.run(main())
"""


def test_program_continued_after_its_screen_closed_keeps_the_terminal_as_it_was() -> None:
    with InTerminal([sys.executable, "-c", CONTINUED], size=(80, 24)) as running:
        running.wait_for("lines are read True")
        assert running.exit_status() == 0


def test_program_runs_where_the_end_of_children_is_ignored() -> None:
    command = ["sh", "-c", "trap '' CHLD; exec \"$0\" -m gswarm_tui --demo 1x1 --no-record", sys.executable]
    with InTerminal(command, size=(100, 30)) as running:
        running.wait_for("sim01")
        running.press("q")
        assert running.exit_status() == 0


def status_after_closing_the_terminal(command: list[str], text: bytes) -> int:
    """Close the terminal of a command, which isn't its controlling one, after a text; return its status."""
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    with subprocess.Popen(
        command, stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True
    ) as running:
        try:
            os.close(its_end)
            shown = b""
            while text not in shown:
                shown += os.read(terminal, 1 << 16)
            os.close(terminal)
            return running.wait(PATIENCE_S)
        finally:
            running.kill()


def test_closed_terminal_ends_the_app_without_sighup(tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    program = [sys.executable, "-m", "gswarm_tui"]
    assert status_after_closing_the_terminal([*program, "--demo", "2x4", "--db", str(path)], b"sim02") == 0
    wait_for_end(path)
    with duckdb.connect(str(path), read_only=True) as recording:
        assert recording.sql("SELECT count(*) FROM recordings WHERE ended_at IS NULL").fetchall() == [(0,)]
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *program, "sql", "--db", str(path)]
    assert status_after_closing_the_terminal(ignoring, b"finished") == -signal.SIGTERM


def test_writer_never_blocks_on_a_closed_terminal() -> None:
    terminal, its_end = pty.openpty()
    file = os.fdopen(its_end, "w")
    try:
        writer = WriterThread(cast(TextIO, DetachableFile(file)))
        writer.start()
        os.close(terminal)
        for _ in range(10 * MAX_QUEUED_WRITES):
            writer._queue.put("text", timeout=PATIENCE_S)
        writer.stop()
    finally:
        with suppress(OSError):
            file.close()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1])
def test_signal_before_the_first_screen_closes_the_recording(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "run.duckdb"
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--db", str(path)]
    with InTerminal(command, size=(100, 30)) as running:
        deadline = time.monotonic() + PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline, running.screen()
            time.sleep(0.01)
        os.kill(running.process.pid, number)
        # Before the screen handles signals, one kills it, which shells report as 128 + its number.
        assert running.exit_status() in (0, 128 + number, -number)
        assert "leaked" not in running.screen()
        assert "Traceback" not in running.screen()
    wait_for_end(path)
    with duckdb.connect(str(path), read_only=True) as recording:
        assert recording.sql("SELECT count(*) FROM recordings WHERE ended_at IS NULL").fetchall() == [(0,)]
