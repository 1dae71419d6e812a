"""Lists the processes on NVIDIA's GPUs: through NVML, with drivers before 510 through nvitop."""

from __future__ import annotations

import ctypes
import importlib
import logging
import time
from operator import attrgetter

from gswarm_agent.probes.gpus.nvidia_nvml import NOT_FOUND, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.gpus.vendor import GpuUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

_LISTING = "nvmlDeviceGetComputeRunningProcesses_v3"
_SECOND_US = 1_000_000


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


def processes_on(nvml: Nvml, handle: Any) -> Dict[int, GpuUsage]:
    """Return the processes on a GPU by pid."""
    api = nvml.api
    memory_by_pid: Dict[int, Optional[int]] = {}
    # A process that computes and draws is in both lists, each time with all of its memory.
    for listing in (
        api.nvmlDeviceGetGraphicsRunningProcesses_v3,
        api.nvmlDeviceGetComputeRunningProcesses_v3,
    ):
        memory_by_pid.update({p.pid: p.usedGpuMemory for p in nvml.maybe(listing, handle) or ()})
    if not memory_by_pid:
        return {}
    # Only processes that ran a kernel in the last second have SM shares.
    sm_by_pid: Optional[Dict[int, int]] = {}
    try:
        samples = api.nvmlDeviceGetProcessUtilization(handle, time.time_ns() // 1000 - _SECOND_US)
        sm_by_pid = {sample.pid: sample.smUtil for sample in sorted(samples, key=attrgetter("timeStamp"))}
    except nvml.Error as error:
        # pynvml raises an error with the code SUCCESS for an empty list.
        if error.value not in (SUCCESS, NOT_FOUND):
            sm_by_pid = None
    return {
        pid: GpuUsage(
            None if memory is None else memory >> 20, None if sm_by_pid is None else sm_by_pid.get(pid, 0)
        )
        for pid, memory in memory_by_pid.items()
    }
