"""The processes on the GPUs as /proc shows them: user, command, ranks, CPU, memory, files and state."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from glob import glob

from gswarm_agent.probes import procfs
from gswarm_agent.probes.rates import SECOND_NS, Rate
from gswarm_agent.probes.software import Software, read_container, read_software
from gswarm_agent.wire import MAX_MESSAGE, clip_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Dict, Optional, Sequence, Tuple, TypeAlias

    from gswarm_agent.frame import Number

_COMMAND_BYTES = 16 * 1024
"""Bytes of a command line that are read; it may have megabytes. A status with many CPUs fits, too."""
_ENVIRON_BYTES = 6 * 1024 * 1024
"""Bytes of a process's variables that are read: Linux starts no process with more."""
_COMMAND_NS = 5 * SECOND_NS
"""Longest age of a command line: to read it, the kernel locks the process's own memory."""
_SOFTWARE_NS, _NEVER_NS = 60 * SECOND_NS, 2**63
"""Time between two looks for libraries, which cost a millisecond of CPU each."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters of the command lines of all processes together; each takes four bytes at most."""
# The texts of all processes must fit into a message.
_LONGEST_CPUS, _LONGEST_WCHAN = 256, 64
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

_FACTORS = (100 / _TICKS_PER_SECOND, 1 / _MB, 1 / _MB, 1 / _MB, 1 / _MB, 1, 1)
"""Units of a process's rates: CPU time, bytes of disks and of calls, context switches."""

HostUsage: TypeAlias = "Tuple[Optional[Number], ...]"
"""The catalogue's process metrics without those of the GPU."""


@dataclass(frozen=True)
class HostProcess:
    """A process as /proc shows it; None for details that are missing or hidden from this user."""

    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    usage: HostUsage
    cpus: Optional[str] = None
    state: Optional[str] = None
    wchan: Optional[str] = None
    slurm_job: Optional[str] = None
    slurm_step: Optional[str] = None
    framework: Optional[str] = None
    nccl: Optional[str] = None
    container: Optional[str] = None


UNKNOWN = HostProcess(None, None, None, None, (None,) * 12)
"""A process that /proc does not show: it has ended, or its pid belongs to another container."""


class _TrackedProcess:
    """A followed process: its constant facts and its rates."""

    def __init__(self, folder: str, sys: str) -> None:
        self._folder, self._sys = folder, sys
        self._stat: Optional[procfs.ProcessStat] = None
        self._user: Optional[str] = None
        self._ranks: Tuple[Optional[int], ...] = ()
        self._origin: Tuple[Optional[str], ...] = ()
        self._container: Optional[str] = None
        self._software, self._software_until = Software(), 0
        self._arguments = b""
        self._command: Optional[str] = None
        self._command_until = 0
        self._rates = [Rate() for _ in _FACTORS]

    def is_same(self) -> bool:
        """Read its times; False when another process has its pid. Raises as ``parse_process_stat``."""
        before = self._stat
        self._stat = procfs.parse_process_stat(procfs.read_start(f"{self._folder}/stat"))
        return before is None or before.started == self._stat.started

    def look(self, longest: int, now_ns: int) -> HostProcess:
        """Return what /proc shows of it, after ``is_same``. Raises as ``parse_process_uid``."""
        stat = self._stat or procfs.ProcessStat(0, 0, 0)
        status = procfs.read_start(f"{self._folder}/status", _COMMAND_BYTES)
        if not self._ranks:
            self._user = procfs.user_name(procfs.parse_process_uid(status)) if status else None
            # Only the owner and root may read this, and only the ranks' variables are used.
            environ = procfs.read_start(f"{self._folder}/environ", _ENVIRON_BYTES)
            self._ranks, variables = procfs.parse_ranks(environ), procfs.parse_environ(environ)
            self._origin = procfs.parse_slurm_step(procfs.read_start(f"{self._folder}/cgroup"), variables)
            self._container = read_container(self._folder, variables)
        rank, local_rank, world_size = self._ranks
        cpus: Optional[str] = None
        transferred: Sequence[Optional[int]] = (None,) * 4
        switches: Sequence[Optional[int]] = (None, None)
        with suppress(ValueError):
            cpus, *switches = procfs.parse_thread_status(status)
        with suppress(ValueError):  # only the owner and root may read it
            transferred = procfs.parse_process_io(procfs.read_start(f"{self._folder}/io"))
        rates = [rate.update(n, now_ns) for rate, n in zip(self._rates, (stat.cpu, *transferred, *switches))]
        cpu, *others = [None if rate is None else rate * factor for rate, factor in zip(rates, _FACTORS)]
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / _TICKS_PER_SECOND
        usage = (
            *(cpu, stat.resident * _PAGE >> 20, *others, world_size, stat.threads),
            *(numa_node(cpus or "", self._sys), max(0, int(age_s))),
        )
        # A running thread waits in no function.
        wchan = b"0" if stat.state == "R" else procfs.read_start(f"{self._folder}/wchan", _LONGEST_WCHAN)
        function = wchan.decode("ascii", "replace") if wchan not in (b"", b"0") else None
        command = self._read_command(longest, now_ns)
        texts = cpus and cpus[:_LONGEST_CPUS], stat.state, function
        software = self._read_software(now_ns)
        origin = *self._origin, software.framework, software.nccl, self._container
        return HostProcess(self._user, command, rank, local_rank, usage, *texts, *origin)

    def _read_software(self, now_ns: int) -> Software:
        """Return its framework and NCCL, looked for again as long as one is missing: libraries load late."""
        if now_ns >= self._software_until:
            with suppress(OSError):
                maps = procfs.read_file(f"{self._folder}/maps")
                self._software = read_software(maps, f"{self._folder}/root")
            known = self._software.framework and self._software.nccl
            self._software_until = _NEVER_NS if known else now_ns + _SOFTWARE_NS
        return self._software

    def _read_command(self, longest: int, now_ns: int) -> Optional[str]:
        """Return its command line, which changes when it renames itself (workers of Ray and vLLM do)."""
        if now_ns >= self._command_until:
            self._command_until = now_ns + _COMMAND_NS
            arguments = procfs.read_start(f"{self._folder}/cmdline", _COMMAND_BYTES)
            if arguments != self._arguments:
                self._arguments = arguments
                command = procfs.parse_command(arguments)
                self._command = None if command is None else clip_text(command)
        return None if self._command is None else self._command[:longest]


class ProcessTable:
    """Follows processes by pid in /proc; a process that reuses a pid is recognised by its start time.

    The kernel locks a process's memory to read its command line, so a process that hangs stops who reads it:
    ``enter`` is called with each pid before it is read.
    """

    def __init__(
        self, proc: str = "/proc", sys: str = "/sys", enter: Callable[[int], None] = lambda _: None
    ) -> None:
        self._proc, self._sys, self._enter = proc, sys, enter
        self._tracked: Dict[int, _TrackedProcess] = {}

    def read(self, pids: Sequence[int], now_ns: int, skipped: Collection[int] = ()) -> Dict[int, HostProcess]:
        """Return the host's view of each process, and forget processes that are not among these.

        Those to skip are ``UNKNOWN``. The more processes, the shorter each command line, so that all of them
        fit into a frame.
        """
        for gone in self._tracked.keys() - (set(pids) - set(skipped)):
            del self._tracked[gone]
        longest = _ALL_COMMANDS // max(1, len(pids))
        return {pid: UNKNOWN if pid in skipped else self._read(pid, now_ns, longest) for pid in set(pids)}

    def _read(self, pid: int, now_ns: int, longest: int) -> HostProcess:
        self._enter(pid)
        process = self._tracked.get(pid)
        try:
            if process is None or not process.is_same():
                process = self._tracked[pid] = _TrackedProcess(f"{self._proc}/{pid}", self._sys)
                process.is_same()
            return process.look(longest, now_ns)
        except (ValueError, LookupError):
            self._tracked.pop(pid, None)
            return UNKNOWN


@lru_cache(maxsize=1024)
def numa_node(cpus: str, sys: str) -> Optional[int]:
    """Return the NUMA node that has all CPUs of a list, None if they belong to several."""
    allowed = procfs.parse_cpu_list(cpus)
    for folder in glob(f"{sys}/devices/system/node/node[0-9]*"):
        if allowed and allowed <= procfs.parse_cpu_list(
            procfs.read_start(f"{folder}/cpulist").decode().strip()
        ):
            return int(folder.rpartition("node")[2])
    return None
