"""Lists the processes on NVIDIA's GPUs through NVML."""

from __future__ import annotations

import time
from operator import attrgetter

from gswarm_agent.probes.gpus.nvidia_nvml import NOT_FOUND, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.gpus.vendor import GpuUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

_SECOND_US = 1_000_000


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
