"""Heads on terminals of their own, and the agents that they leave on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.terminal import InTerminal
from tests.unit.store_recording import query

PATIENCE_S = 60.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


@contextmanager
def head(*words: str) -> Iterator[InTerminal]:
    """gswarm-tui on a terminal of its own; it is killed at the end, if it hasn't ended before."""
    with InTerminal([sys.executable, "-m", "gswarm_tui", *words], size=(120, 40)) as running:
        try:
            yield running
        finally:
            running.kill()


def rows(running: InTerminal) -> int:
    """How many the title says are on disk."""
    told = re.search(r"(\d+) rows", running.screen())
    return int(told[1]) if told else 0


def agents_of(uid: str) -> list[dict[str, object]]:
    """What this machine's agents say of a recording."""
    command = [sys.executable, "-m", "gswarm_agent", "status", "--recording", uid]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert isinstance(found, list)
    return found


def running(uid: str) -> list[int]:
    """The agents' processes of a recording."""
    return [agent["pid"] for agent in agents_of(uid) if isinstance(agent["pid"], int)]


@contextmanager
def nothing_left(path: Path) -> Iterator[None]:
    """At the end, also of a test that fails, nothing is left of the agents of a file's recordings."""
    try:
        yield
    finally:
        if path.exists():
            for (uid,) in query(path, "SELECT uid FROM recordings WHERE uid <> ''"):
                clear(uid)


def clear(uid: str) -> None:
    """End the agents of a recording on this machine, and remove what they left."""
    for pid in running(uid):
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: not running(uid), "the agent's end")
    for folder in Path("/var/tmp").glob(f"gswarm-tui-{os.geteuid()}/{uid}@*"):
        shutil.rmtree(folder)
