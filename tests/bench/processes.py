"""What processes cost: CPU time and memory from /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from gswarm_tui.store.allocator import share_one_arena

TICKS = os.sysconf("SC_CLK_TCK")


def as_of_a_head() -> dict[str, str]:
    """The environment of a process that is to get its memory as gswarm-tui does, whatever it loads first."""
    environ = dict(os.environ)
    share_one_arena(environ)
    return environ


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, without its children; raises FileNotFoundError when it is gone."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def threads_cpu_s(pid: int) -> float:
    """CPU seconds of the threads that a process has now, in nanoseconds' steps: ``cpu_s`` counts by 10 ms."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


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
