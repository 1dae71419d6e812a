"""Runs heads in terminals, and finds and removes the agents that they leave on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gswarm_agent.attach import status
from tests.terminal import PATIENCE_S, InTerminal, pause
from tests.unit.store_recording import query


def eventually(holds: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + PATIENCE_S, f"never: {what}"
        pause(began)


@contextmanager
def head(*words: str) -> Iterator[InTerminal]:
    """Run gswarm-tui in a terminal, and end it."""
    with InTerminal([sys.executable, "-m", "gswarm_tui", *words], size=(120, 40)) as running:
        yield running


def rows(running: InTerminal) -> int:
    """Return the number of committed rows in the title."""
    match = re.search(r"(\d+) rows", running.screen())
    return int(match[1]) if match else 0


def agents_of(uid: str) -> list[dict[str, object]]:
    """Return the status of a recording's agents on this machine."""
    return status(uid)


def running(uid: str) -> list[int]:
    """Return the pids of a recording's agents."""
    return [agent["pid"] for agent in agents_of(uid) if isinstance(agent["pid"], int)]


@contextmanager
def nothing_left(path: Path) -> Iterator[None]:
    """Remove the agents of a file's recordings at the end, also after a failure."""
    try:
        yield
    finally:
        if path.exists():
            for (uid,) in query(path, "SELECT uid FROM recordings WHERE uid <> ''"):
                clear(uid)


def clear(uid: str) -> None:
    """Kill a recording's agents on this machine and remove their folders."""
    for pid in running(uid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not running(uid), "the agent's end")
    for folder in Path("/var/tmp").glob(f"gswarm-tui-{os.geteuid()}/{uid}@*"):
        shutil.rmtree(folder)
