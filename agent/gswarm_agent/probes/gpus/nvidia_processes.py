"""Lists the processes on NVIDIA's GPUs: through NVML, with drivers before 510 through nvitop."""

from __future__ import annotations

import ctypes
import importlib
import logging
import time

from gswarm_agent.metrics import PROCESS_METRICS
from gswarm_agent.probes.gpus.nvidia_nvml import NOT_FOUND, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.gpus.vendor import GpuUsage
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, List, Optional

_LISTING = "nvmlDeviceGetComputeRunningProcesses_v3"
_SECOND_US = 1_000_000
_LONGEST_US = 15 * _SECOND_US
"""Older samples aren't requested; the driver keeps those of a few seconds."""
_SHARES_NS = round(0.95 * SECOND_NS * next(m.period_s for m in PROCESS_METRICS if m.name == "sm_pct"))
"""Time between two readings of the SM shares, somewhat less than their period, as lists may come early."""
_GRAPHICS_NS = 60 * SECOND_NS
"""Time between two lists of a GPU's graphics processes while there are none."""


def nvitop_for_old_driver(library: str) -> Optional[Any]:
    """Return nvitop if the driver lacks the functions that list processes; None without need or nvitop."""
    if hasattr(ctypes.CDLL(library), _LISTING):
        return None
    try:
        nvitop = importlib.import_module("nvitop")
    except ImportError:
        return None
    # Standard error is for messages to the user; what a driver lacks is in the capabilities.
    logging.getLogger("nvitop").setLevel(logging.CRITICAL + 1)
    return nvitop


def widen_process_info(nvml: Nvml) -> None:
    """Read the entries of process lists as drivers 535.43 to 535.98 write them: 32 bytes instead of 24.

    Their nvml.h, and nvidia-ml-py 12.535.77, end the entry with usedGpuCcProtectedMemory; 12.535.108 doesn't.
    """
    if nvml.driver_before(535, 43) or not nvml.driver_before(535, 99):
        return
    info = nvml.api.c_nvmlProcessInfo_v2_t
    fields = [*info._fields_, ("usedGpuCcProtectedMemory", ctypes.c_ulonglong)]
    # pynvml makes its arrays of the class that has this name when it is called.
    nvml.api.c_nvmlProcessInfo_v3_t = type("ProcessInfo32", info.__bases__, {"_fields_": fields})


def processes_by_nvitop(nvitop: Any, index: int) -> Dict[int, GpuUsage]:
    """Return the processes on a GPU by pid. It is slow, and knows the functions of old drivers."""
    usages = {}
    for pid, process in nvitop.PhysicalDevice(index).processes().items():
        memory, sm = process.gpu_memory(), process.gpu_sm_utilization()
        # nvitop's "not available" is a kind of string.
        usages[pid] = GpuUsage(
            memory >> 20 if isinstance(memory, int) else None, sm if isinstance(sm, int) else None
        )
    return usages


def obstacle(nvml: Nvml, handle: Any) -> str:
    """Return why a GPU's processes can't be listed, empty if they can."""
    try:
        nvml.api.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except nvml.Error as error:
        if error.value in UNSUPPORTED:
            return reason_of(error.value)
    return ""


class ProcessShares:
    """The SM shares of one GPU's processes: the means of all samples since the last call."""

    def __init__(self) -> None:
        self._seen_us = 0

    def read(self, nvml: Nvml, handle: Any) -> Optional[Dict[int, int]]:
        """Return the share of each process that ran a kernel, None if the driver has none of a busy GPU."""
        now_us = time.time_ns() // 1000
        # The clock may have been set since.
        since_us = (
            self._seen_us if now_us - _LONGEST_US < self._seen_us <= now_us else now_us - 2 * _SECOND_US
        )
        shares: Dict[int, List[int]] = {}
        try:
            for sample in nvml.api.nvmlDeviceGetProcessUtilization(handle, since_us):
                self._seen_us = max(self._seen_us, sample.timeStamp)
                if sample.timeStamp > since_us and sample.smUtil <= 100:
                    shares.setdefault(sample.pid, []).append(sample.smUtil)
        except nvml.Error as error:
            # pynvml raises an error with the code SUCCESS for an empty list.
            if error.value not in (SUCCESS, NOT_FOUND):
                return None
        if not shares:
            load = nvml.maybe(nvml.api.nvmlDeviceGetUtilizationRates, handle)
            return {} if load is not None and load.gpu == 0 else None
        return {pid: round(sum(found) / len(found)) for pid, found in shares.items()}


class ProcessLists:
    """The processes on one GPU: graphics ones and SM shares are read less often than compute ones."""

    def __init__(self) -> None:
        self._shares = ProcessShares()
        self._sm_by_pid: Optional[Dict[int, int]] = None
        self._known: FrozenSet[int] = frozenset()
        self._shares_due = self._graphics_due = 0

    def read(self, nvml: Nvml, handle: Any, now_ns: int) -> Dict[int, GpuUsage]:
        """Return the processes on the GPU by pid."""
        api = nvml.api
        memory_by_pid: Dict[int, Optional[int]] = {}
        # A process that computes and draws is in both lists, each time with all of its memory.
        if now_ns >= self._graphics_due:
            drawing = nvml.maybe(api.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or ()
            self._graphics_due = 0 if drawing else now_ns + _GRAPHICS_NS
            memory_by_pid.update({p.pid: p.usedGpuMemory for p in drawing})
        computing = nvml.maybe(api.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()
        memory_by_pid.update({p.pid: p.usedGpuMemory for p in computing})
        if not memory_by_pid:
            return {}
        pids = frozenset(memory_by_pid)
        if now_ns >= self._shares_due or pids != self._known:
            # Processes that began since have few samples, so their shares are read with the next list, too.
            self._shares_due = now_ns + _SHARES_NS if pids == self._known else 0
            found, self._known = self._shares.read(nvml, handle), pids
            self._sm_by_pid = None if found is None else {**dict.fromkeys(pids, 0), **found}
        sm_by_pid = self._sm_by_pid or {}
        return {
            pid: GpuUsage(None if memory is None else memory >> 20, sm_by_pid.get(pid))
            for pid, memory in memory_by_pid.items()
        }
