"""What processes cost: CPU time from their clocks, memory from /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from gswarm_tui.store.allocator import share_one_arena

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


def children(pid: int) -> list[int]:
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


def share_of_a_core(pid: int, seconds: float) -> float:
    """Percent of a core that a process uses over so many seconds from now."""
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return 100 * (cpu_s(pid) - before) / (time.monotonic() - began)
