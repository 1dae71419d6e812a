"""The processes on the GPUs: who is there, what they hold of a GPU, and the host's side of each."""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections import defaultdict, deque
from functools import partial
from operator import itemgetter
from threading import Lock

from gswarm_agent.frame import INFO, WARNING, Note, ProcessSample
from gswarm_agent.frozen import dataclass
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
from gswarm_agent.probes.process_host import ProcessTable
from gswarm_agent.wire_values import MAX_PROCESSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, DefaultDict, Deque, Dict, List, Optional, Protocol, Sequence, Set, Tuple

    class Lister(Protocol):
        """Knows the processes on a GPU."""

        def on(self, gpu: Gpu) -> Dict[int, GpuShare]:
            """The processes on a GPU by pid; none when the GPU doesn't answer."""


_SECOND_US = 1_000_000
_PATIENCE_S = 1.0
_LOOK_NS = 1_950_000_000
"""Processes are looked at every other second, a little less so that a tick of one second doesn't miss.

A look at eight takes somewhat longer than reading the node, or as many GPUs.
"""


@dataclass(frozen=True)
class GpuShare:
    """What one process has of one GPU: MiB of its memory and percent of its time; None where not told."""

    memory_mib: Optional[int]
    sm_pct: Optional[int]


_LISTINGS = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v3")
_PROCESS = "=I4xQ8x"  # nvmlProcessInfo_t: pid, usedGpuMemory, and its instance
_SAMPLE = "=I4xQI12x"  # nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, and other units' shares
_BY_TIME = itemgetter(1)
_NOT_AVAILABLE = 2**64 - 1


class NvmlLister:
    """GPU processes straight from NVML, of drivers since 510."""

    def __init__(self, nvml: Nvml) -> None:
        # A process that computes and draws is in both lists, each time with all of its memory.
        self._listings = [nvml.function(name) for name in _LISTINGS]
        self._utilization = nvml.function("nvmlDeviceGetProcessUtilization")
        # Each GPU has its own memory: another thread may be in a call for another GPU.
        self._processes: DefaultDict[int, ListQuery] = defaultdict(partial(ListQuery, _PROCESS))
        self._samples: DefaultDict[int, ListQuery] = defaultdict(partial(ListQuery, _SAMPLE))

    def on(self, gpu: Gpu) -> Dict[int, GpuShare]:
        """See Lister."""
        query = self._processes[gpu.index]
        held: Dict[int, int] = {}
        for listing in self._listings:
            _, processes = query.ask(partial(listing, gpu.handle))
            held.update({process[0]: process[1] for process in processes})
        if not held:
            return {}
        busy = self._busy(gpu)
        return {
            pid: GpuShare(
                None if memory == _NOT_AVAILABLE else memory >> 20,
                None if busy is None else busy.get(pid, 0),
            )
            for pid, memory in held.items()
        }

    def _busy(self, gpu: Gpu) -> Optional[Dict[int, int]]:
        """SM percent of those that ran a kernel in the last second, None when the GPU doesn't tell."""
        query = self._samples[gpu.index]
        since = ctypes.c_ulonglong(time.time_ns() // 1000 - _SECOND_US)
        code, samples = query.ask(lambda count, memory: self._utilization(gpu.handle, memory, count, since))
        if code not in (SUCCESS, NOT_FOUND):
            return None
        samples.sort(key=_BY_TIME)
        return {pid: sm for pid, _, sm in samples}


class NvitopLister:
    """GPU processes through nvitop, which also knows the calls of old drivers. Too slow for each tick."""

    def __init__(self, nvitop: Any) -> None:
        self._nvitop = nvitop
        self._devices: Dict[int, Any] = {}

    def on(self, gpu: Gpu) -> Dict[int, GpuShare]:
        """See Lister."""
        device = self._devices.get(gpu.index)
        if device is None:
            device = self._devices[gpu.index] = self._nvitop.PhysicalDevice(gpu.index)
        shares = {}
        for pid, process in device.processes().items():
            memory, sm = process.gpu_memory(), process.gpu_sm_utilization()
            # nvitop's "not available" is a kind of string.
            shares[pid] = GpuShare(
                memory >> 20 if isinstance(memory, int) else None, sm if isinstance(sm, int) else None
            )
        return shares


def best_lister(nvml: Nvml) -> Lister:
    """NVML itself; for drivers that are too old for that nvitop, which takes long to import."""
    if any(nvml.has(name) for name in _LISTINGS):
        return NvmlLister(nvml)
    try:
        nvitop = importlib.import_module("nvitop")
    except ImportError:
        return NvmlLister(nvml)
    import logging

    # Standard error is for sentences to the user; what a driver lacks is in the capabilities.
    logging.getLogger("nvitop").setLevel(logging.CRITICAL + 1)
    return NvitopLister(nvitop)


def why_no_processes(nvml: Nvml, gpu: Gpu) -> Optional[str]:
    """Why the processes on a GPU can't be known; None where they can."""
    try:
        nvml.api.nvmlDeviceGetComputeRunningProcesses_v3(gpu.handle)
    except nvml.Error as error:
        if error.value == FUNCTION_NOT_FOUND and importlib.util.find_spec("nvitop") is not None:
            return None
        return reason_of(error.value) if error.value in UNSUPPORTED else None
    return None


class ProcessProbe:
    """All processes on all GPUs.

    ``look`` may take its time: it is called in a thread beside the sampling one where that is ``due``, and
    anew in another thread where ``gives_up`` says so; the sampling thread takes what was found.
    ``hanging`` holds the positions of the GPUs that don't tell their processes.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu], proc: str) -> None:
        self._nvml = nvml
        self._gpus = gpus
        self._table = ProcessTable(proc)
        self._lister: Optional[Lister] = None
        self._lock = Lock()
        self._asked: Optional[Tuple[int, float]] = None
        self._given_up: Set[int] = set()
        self.hanging: Set[int] = set()
        self._due_at = 0
        self._found: Deque[Tuple[ProcessSample, ...]] = deque(maxlen=1)

    def due(self, now_ns: int) -> bool:
        """Whether it is time for another look, which may still be at work then."""
        return now_ns >= self._due_at

    def take(self) -> Optional[Tuple[ProcessSample, ...]]:
        """What was found by the newest look, None where there was none since the last call."""
        return self._found.pop() if self._found else None

    def look(self, now_ns: int, tick_ns: int) -> None:
        """Make a sample of each process on each GPU, but for those that are given up at the moment.

        The next look is due by the time of the tick: GPUs that answer slowly come before it at each.
        """
        self._due_at = tick_ns + _LOOK_NS
        if self._lister is None:
            self._lister = best_lister(self._nvml)
        found: List[Tuple[int, int, GpuShare]] = []
        for position in range(len(self._gpus)):
            if position in self._given_up:
                self._watch(position, False)
                continue
            self._asked = position, time.monotonic()
            shares = self._shares(position)
            with self._lock:
                if position in self._given_up:  # and another thread asks the others since
                    self._given_up.remove(position)
                    return
                self._asked = None
            self._watch(position, True)
            found += [(position, pid, share) for pid, share in shares.items()]
        del found[MAX_PROCESSES:]
        hosts = self._table.look([pid for _, pid, _ in found], now_ns)
        samples = []
        for position, pid, share in found:
            host = hosts[pid]
            row = (share.memory_mib, share.sm_pct, *host.usage)
            samples.append(
                ProcessSample(position, pid, host.user, host.command, host.rank, host.local_rank, row)
            )
        self._found.append(tuple(samples))

    def gives_up(self) -> bool:
        """Whether a GPU holds up a look for too long; it has the thread to itself from now on."""
        with self._lock:
            if self._asked is None or time.monotonic() - self._asked[1] < _PATIENCE_S:
                return False
            self._given_up.add(self._asked[0])
            self._asked = None
            return True

    def _shares(self, position: int) -> Dict[int, GpuShare]:
        gpu = self._gpus[position]
        if self._lister is None or not gpu.reachable:
            return {}
        try:
            return self._lister.on(gpu)
        except Exception:  # whatever nvitop meets on this machine, NVML itself does too or can do without
            self._lister = NvmlLister(self._nvml)
            return self._lister.on(gpu)

    def _watch(self, position: int, answered: bool) -> None:
        gpu = self._gpus[position]
        if not answered and position not in self.hanging:
            self.hanging.add(position)
            message = f"no longer tells its processes: {HANGS}"
            gpu.notes.append(Note("unmeasured", WARNING, message, gpu.index))
        elif answered and position in self.hanging:
            self.hanging.remove(position)
            gpu.notes.append(Note("measured", INFO, "tells its processes again", gpu.index))
