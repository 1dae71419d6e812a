"""Lists the processes on NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
import importlib
import time
from functools import partial
from operator import itemgetter

from gswarm_agent.probes.gpus.nvidia_nvml import (
    NOT_FOUND,
    SUCCESS,
    UNSUPPORTED,
    ListQuery,
    Nvml,
    reason_of,
)
from gswarm_agent.probes.gpus.vendor import GpuUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Union

    from gswarm_agent.probes.gpus.nvidia_gpu import Gpu

_SECOND_US = 1_000_000
_COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
_LISTINGS = ("nvmlDeviceGetGraphicsRunningProcesses_v3", _COMPUTE)
_PROCESS = "=I4xQ8x"  # nvmlProcessInfo_t: pid, usedGpuMemory, and its instance
_SAMPLE = "=I4xQI12x"  # nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, and other units' shares
_NOT_AVAILABLE = 2**64 - 1


class NvmlLister:
    """Lists GPU processes through NVML, for drivers since 510."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        # A process that computes and draws is in both lists, each time with all of its memory.
        self._listings = [nvml.function(name) for name in _LISTINGS]
        self._utilization = nvml.function("nvmlDeviceGetProcessUtilization")
        self._processes, self._samples = ListQuery(_PROCESS), ListQuery(_SAMPLE)

    def obstacle(self, gpu: Gpu) -> str:
        """Return why a GPU's processes can't be listed, empty if they can."""
        code, _ = self._processes.run(partial(self._listings[-1], gpu.handle))
        return reason_of(code) if code in UNSUPPORTED else ""

    def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
        """Return the processes on a GPU by pid."""
        memory_by_pid: Dict[int, int] = {}
        for listing in self._listings:
            _, processes = self._processes.run(partial(listing, gpu.handle))
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
        since = ctypes.c_ulonglong(time.time_ns() // 1000 - _SECOND_US)
        code, samples = self._samples.run(
            lambda count, memory: self._utilization(gpu.handle, memory, count, since)
        )
        if code not in (SUCCESS, NOT_FOUND):
            return None
        samples.sort(key=itemgetter(1))
        return {pid: sm for pid, _, sm in samples}


class NvitopLister:
    """Lists GPU processes through nvitop, which also knows the functions of old drivers, but is slow."""

    def __init__(self, nvitop: Any) -> None:
        self._nvitop = nvitop
        self._devices: Dict[int, Any] = {}

    def obstacle(self, gpu: Gpu) -> str:
        """Return an empty text: nvitop lists no processes where it can't."""
        return ""

    def processes_on(self, gpu: Gpu) -> Dict[int, GpuUsage]:
        """Return the processes on a GPU by pid."""
        if gpu.index not in self._devices:
            self._devices[gpu.index] = self._nvitop.PhysicalDevice(gpu.index)
        usages = {}
        for pid, process in self._devices[gpu.index].processes().items():
            memory, sm = process.gpu_memory(), process.gpu_sm_utilization()
            # nvitop's "not available" is a kind of string.
            usages[pid] = GpuUsage(
                memory >> 20 if isinstance(memory, int) else None, sm if isinstance(sm, int) else None
            )
        return usages


def make_lister(nvml: Nvml) -> Union[NvmlLister, NvitopLister]:
    """Return a lister on NVML itself, or on nvitop for drivers before 510 if it is installed."""
    if not nvml.has(_COMPUTE):
        try:
            nvitop = importlib.import_module("nvitop")
        except ImportError:
            return NvmlLister(nvml)
        import logging

        # Standard error is for messages to the user; what a driver lacks is in the capabilities.
        logging.getLogger("nvitop").setLevel(logging.CRITICAL + 1)
        return NvitopLister(nvitop)
    return NvmlLister(nvml)
