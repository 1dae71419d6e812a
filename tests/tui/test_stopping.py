"""A program that is stopped and goes on, as by ``scontrol suspend`` or the shell's ``fg``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.terminal import InTerminal

PATIENCE_S = 60.0


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while "T (stopped)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "it was never stopped"
        time.sleep(0.02)


@pytest.mark.parametrize("stop", [signal.SIGSTOP, signal.SIGTSTP])
def test_whoever_was_stopped_goes_on_obeys_keys_and_quits(stop: signal.Signals) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "--demo", "2x4", "--no-record"]
    with InTerminal(command, size=(100, 30)) as running:
        running.wait_for("sim02")
        for _ in range(2):
            os.kill(running.pid, stop)
            wait_until_stopped(running.pid)
            before = running.written
            os.kill(running.pid, signal.SIGCONT)
            running.wait_for_writing(before, PATIENCE_S)
            running.wait_for("sim02")
            running.press("4")
            running.wait_for("temperature")
            running.press("1")
            running.wait_for("GPU util")
        running.press("q")
        assert running.process.wait(PATIENCE_S) == 0
