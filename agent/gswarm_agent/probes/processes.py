"""The processes on the GPUs: their GPU usage from NVML and their host usage from /proc."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from threading import Lock

from gswarm_agent.frame import INFO, WARNING, Note, Number, ProcessSample
from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.nvml import (
    FUNCTION_NOT_FOUND,
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
    UserNames,
    parse_command,
    parse_process_io,
    parse_process_stat,
    parse_process_uid,
    parse_ranks,
    read_start,
)
from gswarm_agent.probes.rates import SECOND_NS, Rate
from gswarm_agent.wire import MAX_MESSAGE, clip_text
from gswarm_agent.wire_payload import MAX_PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import (
        Any,
        DefaultDict,
        Deque,
        Dict,
        List,
        Optional,
        Protocol,
        Sequence,
        Set,
        Tuple,
        TypeAlias,
    )

    class ProcessLister(Protocol):
        """Lists the processes on a GPU."""

        def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
            """Return the processes on a GPU by pid, none when the GPU does not answer."""


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
_ENVIRON_BYTES = 6 * 1024 * 1024
"""Bytes of a process's variables that are read: Linux starts no process with more."""
_COMMAND_NS = 5 * SECOND_NS
"""Longest age of a command line: to read it, the kernel locks the process's own memory."""
_ALL_COMMANDS = MAX_MESSAGE // 8
"""Characters of the command lines of all processes together; each takes four bytes at most."""
_KEPT_OPEN = 64
"""Maximum processes whose files (three each) stay open: the agent may be allowed few descriptors."""
HANGING_PROCESS = "it hangs, or the kernel is slow to read its memory"
_MB = 10**6
_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

HostUsage: TypeAlias = "Tuple[Optional[Number], Optional[Number], Optional[Number], Optional[Number]]"
"""CPU %, resident MiB, MB/s read and written, as in the catalogue's process metrics."""


@dataclass(frozen=True)
class GpuUsage:
    """One process's use of one GPU: memory in MiB and percent of the SMs' time; None where unknown."""

    memory_mib: Optional[int]
    sm_pct: Optional[int]


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


class NvmlLister:
    """Lists GPU processes through NVML, for drivers since 510."""

    def __init__(self, nvml: Nvml) -> None:
        # A process that computes and draws is in both lists, each time with all of its memory.
        self._listings = [nvml.function(name) for name in _LISTINGS]
        self._utilization = nvml.function("nvmlDeviceGetProcessUtilization")
        # Each GPU has its own memory: another thread may be in a call for another GPU.
        self._processes: DefaultDict[int, ListQuery] = defaultdict(partial(ListQuery, _PROCESS))
        self._samples: DefaultDict[int, ListQuery] = defaultdict(partial(ListQuery, _SAMPLE))

    def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
        """See ProcessLister."""
        query = self._processes[gpu.index]
        memory_by_pid: Dict[int, int] = {}
        for listing in self._listings:
            _, processes = query.run(partial(listing, gpu.handle))
            memory_by_pid.update({process[0]: process[1] for process in processes})
        if not memory_by_pid:
            return {}
        sm_by_pid = self._utilization_by_pid(gpu)
        return {
            pid: GpuUsage(
                None if memory == _NOT_AVAILABLE else memory >> 20,
                None if sm_by_pid is None else sm_by_pid.get(pid, 0),
            )
            for pid, memory in memory_by_pid.items()
        }

    def _utilization_by_pid(self, gpu: Gpu) -> Optional[Dict[int, int]]:
        """Return SM percent of processes that ran a kernel in the last second, None if unsupported."""
        query = self._samples[gpu.index]
        since = ctypes.c_ulonglong(time.time_ns() // 1000 - _SECOND_US)
        code, samples = query.run(lambda count, memory: self._utilization(gpu.handle, memory, count, since))
        if code not in (SUCCESS, NOT_FOUND):
            return None
        samples.sort(key=_BY_TIME)
        return {pid: sm for pid, _, sm in samples}


class NvitopLister:
    """Lists GPU processes through nvitop, which also knows the functions of old drivers, but is slow."""

    def __init__(self, nvitop: Any) -> None:
        self._nvitop = nvitop
        self._devices: Dict[int, Any] = {}

    def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
        """See ProcessLister."""
        device = self._devices.get(gpu.index)
        if device is None:
            device = self._devices[gpu.index] = self._nvitop.PhysicalDevice(gpu.index)
        usages = {}
        for pid, process in device.processes().items():
            memory, sm = process.gpu_memory(), process.gpu_sm_utilization()
            # nvitop's "not available" is a kind of string.
            usages[pid] = GpuUsage(
                memory >> 20 if isinstance(memory, int) else None, sm if isinstance(sm, int) else None
            )
        return usages


def make_lister(nvml: Nvml) -> ProcessLister:
    """Return a lister on NVML itself, or for older drivers on nvitop, which takes long to import."""
    if any(nvml.has(name) for name in _LISTINGS):
        return NvmlLister(nvml)
    try:
        nvitop = importlib.import_module("nvitop")
    except ImportError:
        return NvmlLister(nvml)
    import logging

    # Standard error is for messages to the user; what a driver lacks is in the capabilities.
    logging.getLogger("nvitop").setLevel(logging.CRITICAL + 1)
    return NvitopLister(nvitop)


def processes_unavailable(nvml: Nvml, gpu: Gpu) -> Optional[str]:
    """Return why the processes on a GPU can't be listed, None if they can."""
    try:
        nvml.api.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle)
    except nvml.Error as error:
        if error.value == FUNCTION_NOT_FOUND and importlib.util.find_spec("nvitop") is not None:
            return None
        return reason_of(error.value) if error.value in UNSUPPORTED else None
    return None


class ProcessProbe:
    """All processes on all GPUs.

    ``read`` may take long: it runs in a worker thread when it is ``due``, and in a new one when
    ``skip_hanging`` returns True; the sampling thread takes the newest samples.
    ``hanging`` holds the positions of the GPUs that don't return their processes.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], proc: str) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._table = ProcessTable(proc)
        self._lister: Optional[ProcessLister] = None
        self._lock = Lock()
        self._current: Optional[Tuple[int, float]] = None
        self._skipped: Set[int] = set()
        self.hanging: Set[int] = set()
        self._hanging_pids: Set[int] = set()
        self._due_at = 0
        self._samples: Deque[Tuple[ProcessSample, ...]] = deque(maxlen=1)

    def due(self, now_ns: int) -> bool:
        """Return whether it is time to read again; an earlier read may still be running."""
        return now_ns >= self._due_at

    def restart(self) -> None:
        """Forget all samples and processes after a pause: their rates begin again."""
        self._samples.clear()
        self._table.read([], 0)

    def take(self) -> Optional[Tuple[ProcessSample, ...]]:
        """Return the newest samples, None if none came since the last call."""
        return self._samples.pop() if self._samples else None

    def read(self, now_ns: int, tick_ns: int) -> None:
        """Sample each process on each GPU, except on GPUs whose driver call hangs.

        The next read is due by the time of the tick, not by ``now_ns``, which slow GPUs delay.
        """
        self._due_at = tick_ns + _READ_NS
        if self._lister is None:
            self._lister = make_lister(self._nvml)
        usages: List[Tuple[int, int, GpuUsage]] = []
        for position in range(len(self._gpus)):
            if position in self._skipped:
                self._set_hanging(position, True)
                continue
            self._current = position, time.monotonic()
            on_gpu = self._processes_on(position)
            with self._lock:
                if position in self._skipped:  # another thread has read the other GPUs meanwhile
                    self._skipped.remove(position)
                    return
                self._current = None
            self._set_hanging(position, False)
            usages += [(position, pid, usage) for pid, usage in on_gpu.items()]
        del usages[MAX_PROCESSES:]
        try:
            hosts = self._table.read([pid for _, pid, _ in usages], now_ns)
        except TimeoutError:
            return
        samples = []
        for position, pid, usage in usages:
            host = hosts[pid]
            row = (usage.memory_mib, usage.sm_pct, *host.usage)
            samples.append(
                ProcessSample(position, pid, host.user, host.command, host.rank, host.local_rank, row)
            )
            if pid in self._table.hanging and pid not in self._hanging_pids:
                message = f"no longer shows details of process {pid}: {HANGING_PROCESS}"
                self._gpus[position].notes.append(
                    Note("unmeasured", WARNING, message, self._gpus[position].index)
                )
                self._hanging_pids.add(pid)
        self._hanging_pids &= self._table.hanging
        self._samples.append(tuple(samples))

    def skip_hanging(self) -> bool:
        """Skip a GPU or process that takes too long, which keeps its thread; return whether there was one."""
        return self._skip_hanging_gpu() or self._table.skip_hanging()

    def _skip_hanging_gpu(self) -> bool:
        with self._lock:
            if self._current is None or time.monotonic() - self._current[1] < _PATIENCE_S:
                return False
            self._skipped.add(self._current[0])
            self._current = None
            return True

    def _processes_on(self, position: int) -> Dict[int, GpuUsage]:
        gpu = self._gpus[position]
        if self._lister is None or not gpu.reachable:
            return {}
        try:
            return self._lister.processes_on(gpu)
        except Exception:  # whatever fails in nvitop fails in NVML too, or NVML does without it
            self._lister = NvmlLister(self._nvml)
            return self._lister.processes_on(gpu)

    def _set_hanging(self, position: int, hanging: bool) -> None:
        gpu = self._gpus[position]
        if hanging and position not in self.hanging:
            self.hanging.add(position)
            message = f"no longer lists its processes: {HANGS}"
            gpu.notes.append(Note("unmeasured", WARNING, message, gpu.index))
        elif not hanging and position in self.hanging:
            self.hanging.remove(position)
            gpu.notes.append(Note("measured", INFO, "lists its processes again", gpu.index))


class _TrackedProcess:
    """A followed process: its constant facts, its open files and its rates."""

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

    def open(self, users: UserNames) -> None:
        """Read it for the first time. Raises OSError, and as ``parse_process_stat``."""
        self.stat = parse_process_stat(self._stat.read())
        status = read_start(f"{self._folder}/status")
        self.user = users.name(parse_process_uid(status)) if status else None
        # Only the owner and root may read this, and only the ranks' variables are used.
        self.rank, self.local_rank = parse_ranks(read_start(f"{self._folder}/environ", _ENVIRON_BYTES))

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


class ProcessTable:
    """Follows processes by pid in /proc; a process that reuses a pid is recognised by its start time.

    The kernel locks a process's memory to read its command line, so a process that hangs can stop
    the thread that reads it. ``hanging`` holds the pids of such processes, which are ``UNKNOWN`` meanwhile.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._tracked: Dict[int, _TrackedProcess] = {}
        self._users = UserNames()
        self._lock = Lock()
        self._current: Optional[Tuple[int, float]] = None
        self.hanging: Set[int] = set()

    def read(self, pids: Sequence[int], now_ns: int) -> Dict[int, HostProcess]:
        """Return the host's view of each process, and forget processes that are not among these.

        The more processes, the shorter each command line, so that all of them fit into a frame. Raises
        TimeoutError if a process hung here; another thread has read the others meanwhile.
        """
        for gone in self._tracked.keys() - set(pids):
            self._tracked.pop(gone).close()
        longest = _ALL_COMMANDS // max(1, len(pids))
        hosts: Dict[int, HostProcess] = {}
        for pid in set(pids):
            if pid in self.hanging:
                hosts[pid] = UNKNOWN
                continue
            self._current = pid, time.monotonic()
            process, hosts[pid] = self._read(pid, self._tracked.get(pid), now_ns, longest)
            with self._lock:
                if pid in self.hanging:
                    self.hanging.remove(pid)
                    process.close()
                    raise TimeoutError(f"process {pid} took too long")
                self._current = None
            if hosts[pid] is UNKNOWN:
                self._tracked.pop(pid, None)
            else:
                self._tracked[pid] = process
            if hosts[pid] is UNKNOWN or len(hosts) > _KEPT_OPEN:
                process.close()
        return hosts

    def skip_hanging(self) -> bool:
        """Skip a process that takes too long, which keeps its thread; return whether there was one."""
        with self._lock:
            if self._current is None or time.monotonic() - self._current[1] < _PATIENCE_S:
                return False
            pid, _ = self._current
            self.hanging.add(pid)
            self._tracked.pop(pid, None)
            self._current = None
            return True

    def _read(
        self, pid: int, process: Optional[_TrackedProcess], now_ns: int, longest: int
    ) -> Tuple[_TrackedProcess, HostProcess]:
        if process is None or not process.refresh():
            if process is not None:
                process.close()
            process = _TrackedProcess(f"{self._proc}/{pid}")
        try:
            if process.stat is None:
                process.open(self._users)
            host = HostProcess(
                process.user,
                process.command(longest, now_ns),
                process.rank,
                process.local_rank,
                process.usage(now_ns),
            )
        except (OSError, ValueError, LookupError):
            return process, UNKNOWN
        return process, host


def _scaled(rate: Optional[float], factor: float) -> Optional[float]:
    return None if rate is None else rate * factor
