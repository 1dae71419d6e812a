"""Finds and kills the recorder that writes a file."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.terminal import PATIENCE_S, pause


def recorder_of(path: Path) -> int:
    """Return the process that has a recording open; a recorder on a full disk closes and opens it again."""
    began = time.monotonic()
    while not (found := _with_open(path)):
        assert time.monotonic() < began + PATIENCE_S, f"no process has {path} open"
        pause(began)
    return found[0]


def wait_for_end(path: Path) -> None:
    """Wait until no process has a recording open."""
    began = time.monotonic()
    while found := _with_open(path.resolve()):
        assert time.monotonic() < began + PATIENCE_S, f"process {found} still has {path} open"
        pause(began)


def _with_open(path: Path) -> list[int]:
    found = []
    for files in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):
            if path in map(Path.readlink, files.iterdir()):
                found.append(int(files.parent.name))
    return found


def parent_of(pid: int) -> int:
    """Return the parent process of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_recorder(path: Path) -> None:
    """Kill the recorder of a file and its parent, so that the recording is left open."""
    recorder = recorder_of(path.resolve())
    parent = parent_of(recorder)
    # Stopped first: a recorder whose parent dies closes its recording, and a parent restarts its recorder.
    os.kill(parent, signal.SIGSTOP)
    os.kill(recorder, signal.SIGKILL)
    os.kill(parent, signal.SIGKILL)
    began = time.monotonic()
    while Path(f"/proc/{recorder}").exists():
        assert time.monotonic() < began + PATIENCE_S, "the recorder's end"
        pause(began)
