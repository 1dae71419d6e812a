"""Cost of processes: CPU time from their clocks, memory from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gswarm_tui.store.duckdb_internals import share_one_arena

_SCHEDULED = 2
"""CPUCLOCK_SCHED of Linux's posix-timers_types.h: CPU time as the scheduler counts it."""


def as_of_a_head() -> dict[str, str]:
    """Return the environment in which a process allocates memory as gswarm-tui does."""
    environ = dict(os.environ)
    share_one_arena(environ)
    return environ


def cpu_s(pid: int) -> float:
    """Return a process's CPU seconds, without its children. Raises OSError if it has ended.

    From the process's own clock, in nanoseconds, by the number that ``clock_getcpuclockid(3)`` gives: /proc
    counts by 10 ms, so of a short run nothing.
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def with_agents(pid: int) -> list[int]:
    """Return a head with its processes on this machine: relays, and the agents of its recordings."""
    there = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    words = {other: _words(other) for other in there}
    started = [words[child] for child in children(pid) if child in words]
    recordings = {said[said.index("--recording") + 1] for said in started if "--recording" in said}
    return [pid, *(other for other, said in words.items() if recordings & set(said))]


def _words(pid: int) -> list[str]:
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int, module: str) -> list[int]:
    """Return the running processes below a process that run this Python module."""
    below = [pid]
    for each in below:
        below += children(each)
    return [each for each in below if module in _words(each)]


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process [MiB]."""
    return _status_mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process [MiB]."""
    return _status_mib(pid, "VmHWM")


def _status_mib(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def share_of_a_core(pids: Sequence[int], seconds: float) -> float:
    """Measure the percent of a core that processes use together during the next seconds."""
    began, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)
