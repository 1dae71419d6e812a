"""What processes cost: CPU time from their clocks, memory from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gswarm_tui.store.duckdb_internals import share_one_arena

_SCHEDULED = 2
"""CPUCLOCK_SCHED of Linux's posix-timers_types.h: what the scheduler counted."""


def as_of_a_head() -> dict[str, str]:
    """The environment of a process that is to get its memory as gswarm-tui does, whatever it loads first."""
    environ = dict(os.environ)
    share_one_arena(environ)
    return environ


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and its threads, without its children; raises OSError when it is gone.

    From the process's own clock, in nanoseconds, by the number that ``clock_getcpuclockid(3)`` gives: /proc
    counts by 10 ms, so of a short run nothing.
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def with_agents(pid: int) -> list[int]:
    """A head and what it has started on this machine: relays, and the agents of the same recordings."""
    there = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    words = {other: _words(other) for other in there}
    started = [words[child] for child in _children(pid) if child in words]
    recordings = {said[said.index("--recording") + 1] for said in started if "--recording" in said}
    return [pid, *(other for other, said in words.items() if recordings & set(said))]


def _words(pid: int) -> list[str]:
    """The command line of a process, empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def _children(pid: int) -> list[int]:
    """The processes that a process has started and that live."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def rss_mib(pid: int) -> float:
    """Resident memory of a process now [MiB]."""
    return _status_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """The most resident memory that a process had [MiB]."""
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def share_of_a_core(pids: Sequence[int], seconds: float) -> float:
    """Percent of a core that processes use together over so many seconds from now."""
    began, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)
