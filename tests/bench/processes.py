"""Processes that benches measure: their CPU time, their memory, and the NVML stand-in that they see."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from sys import executable

from gswarm_tui.store.duckdb_internals import share_one_arena
from tests.cluster.standin import GpuProcess, Scenario, build

PROGRAM = [executable, "-m", "gswarm_tui"]
_SCHEDULED = 2
"""CPUCLOCK_SCHED of Linux's posix-timers_types.h: CPU time as the scheduler counts it."""


def as_of_a_head() -> dict[str, str]:
    """Return the environment in which a process allocates memory as gswarm-tui does."""
    environ = dict(os.environ)
    share_one_arena(environ)
    return environ


def cpu_s(pid: int) -> float:
    """Return a process's CPU seconds, without its children. Raises OSError if it has ended.

    They come from the process's own clock, in nanoseconds, by the number that ``clock_getcpuclockid(3)``
    gives: /proc counts by 10 ms, which is nothing in a short run.
    """
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def children(pid: int) -> list[int]:
    """Return the running children of a process."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process [MiB]."""
    return _mib(f"/proc/{pid}/status", "VmRSS")


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process [MiB]."""
    return _mib(f"/proc/{pid}/status", "VmHWM")


def _mib(path: str, field: str) -> float:
    for line in Path(path).read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(path)


class Tree:
    """All processes that come from one command, also those in sessions of their own.

    A variable of the environment marks them, since a recorder doesn't stay below the screen that starts it.
    """

    def __init__(self, name: str) -> None:
        self._mark = f"{os.getpid()}-{name}-{time.monotonic_ns()}"

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment for the command."""
        return {**(base or {}), "GSWARM_BENCH": self._mark}

    def pids(self) -> list[int]:
        """Return its running processes, without those that simulate nodes for ``--demo``."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if (
                    entry.name.isdigit()
                    and f"GSWARM_BENCH={self._mark}".encode() in (entry / "environ").read_bytes()
                    and b"simulate" not in (entry / "cmdline").read_bytes().split(b"\0")
                ):
                    found.append(int(entry.name))
        return found

    def share_of_a_core(self, seconds: float) -> float:
        """Measure the percent of a core that these processes use together during the next seconds."""
        began, before = time.monotonic(), {pid: cpu_s(pid) for pid in self.pids()}
        time.sleep(seconds)
        used = 0.0
        for pid in self.pids():
            with suppress(OSError):
                used += cpu_s(pid) - before.get(pid, 0.0)
        return 100 * used / (time.monotonic() - began)

    def pss_mb(self) -> float:
        """Return their memory [MB]; pages that several processes share are counted once."""
        total = 0.0
        for pid in self.pids():
            with suppress(OSError):
                total += _mib(f"/proc/{pid}/smaps_rollup", "Pss")
        return total * 1.048576


def share_of_a_core(pids: Sequence[int], seconds: float) -> float:
    """Measure the percent of a core that processes use together during the next seconds."""
    began, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that compute until the end of the block."""
    started = [Popen([executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def stand_in(
    folder: Path,
    gpus: int,
    pids: Iterable[int] = (),
    spins_us: Mapping[str, int] | None = None,
    *,
    one_lock: bool = False,
) -> dict[str, str]:
    """Return an environment with busy stand-in GPUs, each with a process of ``pids``, or else this one.

    Calls take the CPU time ``spins_us``, with ``one_lock`` one after another.
    """
    lib, file = folder / "lib", folder / f"{gpus}-{bool(spins_us)}-{one_lock}.scenario"
    if not lib.exists():
        build(lib, folder)
    scenario = Scenario.of("bench", gpus=gpus, utilization_percent=93, power_mw=612_345)
    scenario.spins_us, scenario.one_lock = spins_us or {}, one_lock
    running = [*pids] or [os.getpid()] * gpus
    for gpu, pid in zip(scenario.gpus, running, strict=True):
        gpu.processes.append(GpuProcess(pid, used_mib=70_000, sm_percent=91))
    scenario.write(file)
    return {**os.environ, "LD_LIBRARY_PATH": str(lib), "GSWARM_STANDIN_SCENARIO": str(file)}
