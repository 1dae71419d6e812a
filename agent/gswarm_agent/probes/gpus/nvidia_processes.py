"""Lists the processes on NVIDIA's GPUs: through NVML, with drivers before 510 through nvitop."""

from __future__ import annotations

import ctypes
import importlib
import logging
import time

from gswarm_agent.probes.gpus.nvidia_nvml import NOT_FOUND, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.gpus.vendor import GpuUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

_LISTING = "nvmlDeviceGetComputeRunningProcesses_v3"
_SHARES_US = 5_000_000
"""Time over which shares of SMs are averaged, which is that between two lists."""


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


def list_processes(nvml: Nvml, handle: Any) -> Dict[int, GpuUsage]:
    """Return the processes on a GPU by pid."""
    api, maybe = nvml.api, nvml.maybe
    # A process that computes and draws is in both lists, each time with all of its memory.
    listed = [
        *(maybe(api.nvmlDeviceGetGraphicsRunningProcesses_v3, handle) or ()),
        *(maybe(api.nvmlDeviceGetComputeRunningProcesses_v3, handle) or ()),
    ]
    shares = sm_shares(nvml, handle) if listed else None
    return {
        one.pid: GpuUsage(
            None if one.usedGpuMemory is None else one.usedGpuMemory >> 20,
            None if shares is None else shares.get(one.pid, 0),
        )
        for one in listed
    }


def sm_shares(nvml: Nvml, handle: Any) -> Optional[Dict[int, int]]:
    """Return each process's mean share of SMs lately, None if the driver has none of a busy GPU."""
    since_us = time.time_ns() // 1000 - _SHARES_US
    shares: Dict[int, List[int]] = {}
    try:
        for sample in nvml.api.nvmlDeviceGetProcessUtilization(handle, since_us):
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
