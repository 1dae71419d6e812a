"""The processes on the GPUs: their GPU usage from NVML and their host usage from /proc."""

from __future__ import annotations

import ctypes
import os
import time
from collections import deque
from functools import lru_cache, partial
from operator import itemgetter

from gswarm_agent.frame import INFO, WARNING, Note, Number, ProcessSample
from gswarm_agent.frozen import dataclass
from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.nvml import (
    HANGS,
    NOT_FOUND,
    SUCCESS,
    UNSUPPORTED,
    ListQuery,
    Nvml,
    reason_of,
)
from gswarm_agent.probes.procfs import (
    KeptFile,
    ProcessStat,
    parse_command,
    parse_process_io,
    parse_process_stat,
    parse_process_uid,
    parse_ranks,
)
from gswarm_agent.probes.rates import SECOND_NS, Rate
from gswarm_agent.wire import MAX_MESSAGE, clip_text
from gswarm_agent.wire_payload import MAX_PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Dict, List, Optional, Sequence, Tuple, TypeAlias

_SECOND_US = 1_000_000
_PATIENCE_S = 1.0
_READ_NS = 1_950_000_000
"""Processes are read every other second (a little more often, so that ticks of one second find them due).

To read eight takes somewhat longer than to read the host, or as many GPUs.
"""
_LISTINGS = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v3")
_PROCESS = "=I4xQ8x"  # nvmlProcessInfo_t: pid, usedGpuMemory, and its instance
_SAMPLE = "=I4xQI12x"  # nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, and other units' shares
_BY_TIME = itemgetter(1)
_NOT_AVAILABLE = 2**64 - 1

_COMMAND_BYTES = 16 * 1024
"""Bytes of a command line that are read; it may have megabytes."""
_COMMAND_NS = 5 * SECOND_NS
"""Longest age of a command line: to read it, the kernel locks the process's own memory."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters of the command lines of all processes together; each takes four bytes at most."""
_KEPT_OPEN = 64
"""Processes whose files stay open, three each: a process may have few descriptors."""
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

GpuUsage: TypeAlias = "Tuple[Optional[int], Optional[int]]"
"""A process's memory on a GPU in MiB and percent of its SMs' time; None where unknown."""
HostUsage: TypeAlias = "Tuple[Optional[Number], Optional[Number], Optional[Number], Optional[Number]]"
"""CPU %, resident MiB, MB/s read and written, as in the catalogue's process metrics."""


@dataclass(frozen=True)
class HostProcess:
    """A process as /proc shows it; None for details that are missing or hidden from this user."""

    user: Optional[str]
    command: Optional[str]
    rank: Optional[int]
    local_rank: Optional[int]
    usage: HostUsage


UNKNOWN = HostProcess(None, None, None, None, (None, None, None, None))
"""A process that /proc does not show: it has ended, or its pid belongs to another container."""


class ProcessLister:
    """Lists the processes on a GPU, with drivers since 510."""

    def __init__(self, nvml: Nvml) -> None:
        # A process that computes and draws is in both lists, each time with all of its memory.
        self._listings = [nvml.function(name) for name in _LISTINGS]
        self._utilization = nvml.function("nvmlDeviceGetProcessUtilization")
        self._processes = ListQuery(_PROCESS)
        self._samples = ListQuery(_SAMPLE)

    def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
        """Return the processes on a GPU by pid, none when the GPU does not answer."""
        memory_by_pid: Dict[int, int] = {}
        for listing in self._listings:
            _, processes = self._processes.run(partial(listing, gpu.handle))
            memory_by_pid.update({process[0]: process[1] for process in processes})
        if not memory_by_pid:
            return {}
        sm_by_pid = self._utilization_by_pid(gpu)
        return {
            pid: (
                None if memory == _NOT_AVAILABLE else memory >> 20,
                None if sm_by_pid is None else sm_by_pid.get(pid, 0),
            )
            for pid, memory in memory_by_pid.items()
        }

    def _utilization_by_pid(self, gpu: Gpu) -> Optional[Dict[int, int]]:
        """Return SM percent of processes that ran a kernel in the last second, None if unsupported."""
        since = ctypes.c_ulonglong(time.time_ns() // 1000 - _SECOND_US)
        code, samples = self._samples.run(
            lambda count, memory: self._utilization(gpu.handle, memory, count, since)
        )
        if code not in (SUCCESS, NOT_FOUND):
            return None
        samples.sort(key=_BY_TIME)
        return {pid: sm for pid, _, sm in samples}


def processes_unavailable(nvml: Nvml, gpu: Gpu) -> Optional[str]:
    """Return why the processes on a GPU can't be listed, None if they can."""
    try:
        nvml.api.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle)
    except nvml.Error as error:
        return reason_of(error.value) if error.value in UNSUPPORTED else None
    return None


class ProcessProbe:
    """All processes on all GPUs.

    ``read`` may take long, or hang with the driver: it runs in a worker thread when it is ``due``, and the
    sampling thread takes the newest samples. ``hanging`` is the GPU that doesn't return its processes, None
    without one; until it does, no process of the node is listed.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], proc: str) -> None:
        self.hanging: Optional[Gpu] = None
        self._gpus = gpus
        self._table = ProcessTable(proc)
        self._lister = ProcessLister(nvml)
        self._current: Optional[Tuple[Gpu, float]] = None
        self._due_at = 0
        self._samples: Deque[Tuple[ProcessSample, ...]] = deque(maxlen=1)

    def due(self, now_ns: int) -> bool:
        """Return whether it is time to read again; an earlier read may still be running."""
        return now_ns >= self._due_at

    def take(self) -> Optional[Tuple[ProcessSample, ...]]:
        """Return the newest samples, None if none came since the last call."""
        return self._samples.pop() if self._samples else None

    def take_notes(self) -> List[Note]:
        """Return a note if a read has begun to hang, or no longer hangs, since the last call."""
        current, before = self._current, self.hanging
        slow = current is not None and time.monotonic() - current[1] > _PATIENCE_S
        self.hanging = current[0] if current is not None and slow else None
        if self.hanging is before:
            return []
        if self.hanging is not None:
            message = f"stops the node's list of processes: {HANGS}"
            return [Note("unmeasured", WARNING, message, self.hanging.index)]
        index = None if before is None else before.index
        return [Note("measured", INFO, "lists its processes again", index)]

    def read(self, now_ns: int, tick_ns: int) -> None:
        """Sample each process on each GPU that answers.

        The next read is due by the time of the tick, not by ``now_ns``, which slow GPUs delay.
        """
        self._due_at = tick_ns + _READ_NS
        usages: List[Tuple[int, int, GpuUsage]] = []
        for gpu in self._gpus:
            if gpu.reachable:
                self._current = gpu, time.monotonic()
                usages += [(gpu.index, pid, usage) for pid, usage in self._lister.processes_on(gpu).items()]
        self._current = None
        del usages[MAX_PROCESSES:]
        hosts = self._table.read([pid for _, pid, _ in usages], now_ns)
        samples = []
        for position, pid, usage in usages:
            host = hosts[pid]
            row = (*usage, *host.usage)
            samples.append(
                ProcessSample(position, pid, host.user, host.command, host.rank, host.local_rank, row)
            )
        self._samples.append(tuple(samples))


class _TrackedProcess:
    """One process: what stays the same, its open files and its rates."""

    def __init__(self, folder: str) -> None:
        self.user: Optional[str] = None
        self.rank: Optional[int] = None
        self.local_rank: Optional[int] = None
        self.stat: Optional[ProcessStat] = None
        self._folder = folder
        self._stat, self._cmdline, self._io = (
            KeptFile(f"{folder}/{name}") for name in ("stat", "cmdline", "io")
        )
        self._arguments = b""
        self._command: Optional[str] = None
        self._command_until = 0
        self._cpu, self._read, self._written = Rate(), Rate(), Rate()

    def open(self) -> None:
        """Read it for the first time. Raises OSError, and as ``parse_process_stat``."""
        self.stat = parse_process_stat(self._stat.read())
        status = _content(f"{self._folder}/status")
        self.user = None if status is None else _user_name(parse_process_uid(status))
        # Only the owner and root may read this, and only the ranks' variables are used.
        self.rank, self.local_rank = parse_ranks(_content(f"{self._folder}/environ") or b"")

    def refresh(self) -> bool:
        """Read it again; False when the process has ended and its pid may be another's."""
        before = self.stat
        try:
            self.stat = parse_process_stat(self._stat.read())
        except (OSError, ValueError, LookupError):
            return False
        return before is not None and before.started == self.stat.started

    def command(self, longest: int, now_ns: int) -> Optional[str]:
        """Return its command line, which changes when it renames itself (workers of Ray and vLLM do)."""
        if now_ns >= self._command_until:
            self._command_until = now_ns + _COMMAND_NS
            self._read_command()
        return None if self._command is None else self._command[:longest]

    def _read_command(self) -> None:
        try:
            arguments = self._cmdline.read(_COMMAND_BYTES)
        except OSError:
            arguments = b""
        if arguments != self._arguments:
            self._arguments = arguments
            command = parse_command(arguments)
            self._command = None if command is None else clip_text(command)

    def usage(self, now_ns: int) -> HostUsage:
        """Return its use between the last two reads."""
        stat = self.stat or ProcessStat(0, 0, 0)
        bytes_read, bytes_written = self._disk_bytes()
        return (
            _scaled(self._cpu.update(stat.cpu, now_ns), 100 / _TICKS_PER_SECOND),
            stat.resident * _PAGE >> 20,
            _scaled(self._read.update(bytes_read, now_ns), 1 / _MB),
            _scaled(self._written.update(bytes_written, now_ns), 1 / _MB),
        )

    def _disk_bytes(self) -> Tuple[Optional[int], Optional[int]]:
        try:
            return parse_process_io(self._io.read())
        except OSError:  # only the owner and root may read it
            return None, None

    def close(self) -> None:
        """Close its files, which open again when they are read."""
        for file in (self._stat, self._cmdline, self._io):
            file.close()


@lru_cache(maxsize=None)
def _user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one."""
    import pwd

    try:
        return clip_text(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


class ProcessTable:
    """Follows processes by pid in /proc; a process that reuses a pid is recognised by its start time."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tracked: Dict[int, _TrackedProcess] = {}

    def read(self, pids: Sequence[int], now_ns: int) -> Dict[int, HostProcess]:
        """Return the host's view of each process, and forget processes that are not among these.

        The more processes, the shorter each command line, so that all of them fit into a frame.
        """
        before, self._tracked = self._tracked, {}
        longest = _ALL_COMMANDS // max(1, len(pids))
        for gone in before.keys() - set(pids):
            before[gone].close()
        return {pid: self._read(pid, before.get(pid), now_ns, longest) for pid in set(pids)}

    def _read(self, pid: int, process: Optional[_TrackedProcess], now_ns: int, longest: int) -> HostProcess:
        if process is None or not process.refresh():
            if process is not None:
                process.close()
            process = _TrackedProcess(f"{self._proc}/{pid}")
        try:
            if process.stat is None:
                process.open()
            host = HostProcess(
                process.user,
                process.command(longest, now_ns),
                process.rank,
                process.local_rank,
                process.usage(now_ns),
            )
        except (OSError, ValueError, LookupError):
            process.close()
            return UNKNOWN
        self._tracked[pid] = process
        if len(self._tracked) > _KEPT_OPEN:
            process.close()
        return host


def _content(path: str) -> Optional[bytes]:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # it has ended, or belongs to another user
        return None


def _scaled(rate: Optional[float], factor: float) -> Optional[float]:
    return None if rate is None else rate * factor
