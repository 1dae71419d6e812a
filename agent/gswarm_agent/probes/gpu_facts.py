"""What doesn't change about a GPU."""

from __future__ import annotations

import os

from gswarm_agent.frame import GpuFacts
from gswarm_agent.probes.nvml import Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def read_gpu_facts(nvml: Nvml, index: int, handle: Any) -> GpuFacts:
    """The facts of a GPU that answers; None for each that this one doesn't have."""
    api, maybe = nvml.api, nvml.maybe
    pci = maybe(api.nvmlDeviceGetPciInfo, handle)
    memory = maybe(api.nvmlDeviceGetMemoryInfo, handle)
    limit = maybe(api.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuFacts(
        index=index,
        uuid=maybe(api.nvmlDeviceGetUUID, handle) or _unknown_uuid(index),
        name=maybe(api.nvmlDeviceGetName, handle) or "unknown GPU",
        pci_bus_id=None if pci is None else pci.busId,
        minor=maybe(api.nvmlDeviceGetMinorNumber, handle),
        memory_total_mib=None if memory is None else memory.total >> 20,
        power_limit_w=None if limit is None else limit / 1000,
        sm_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM),
        mem_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM),
        mig=has_mig(nvml, handle),
    )


def has_mig(nvml: Nvml, handle: Any) -> bool:
    """Whether the GPU is divided into instances."""
    mode = nvml.maybe(nvml.api.nvmlDeviceGetMigMode, handle)
    return mode is not None and mode[0] == 1


def lost_gpu_facts(index: int, count: int, proc: str) -> GpuFacts:
    """The facts of a GPU that NVML has no handle for, from what the kernel module wrote down at its start.

    Its folders in /proc/driver/nvidia/gpus are named by PCI bus id, which is NVML's order too. Where they
    don't match the number of GPUs (a job that may see only some), nothing is known but the index.
    """
    text, top = "", f"{proc}/driver/nvidia/gpus"
    try:
        folders = sorted(os.listdir(top))
        if len(folders) == count:
            with open(f"{top}/{folders[index]}/information", errors="replace") as file:
                text = file.read()
    except OSError:
        pass
    told = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in told.items()}
    uuid = fields.get("GPU UUID", "")
    minor = fields.get("Device Minor", "")
    return GpuFacts(
        index=index,
        # A GPU that was lost before the module met it has question marks for a UUID.
        uuid=uuid if uuid and "?" not in uuid else _unknown_uuid(index),
        name=fields.get("Model", "unknown GPU"),
        pci_bus_id=fields.get("Bus Location"),
        minor=int(minor) if minor.isdigit() else None,
    )


def _unknown_uuid(index: int) -> str:
    return f"unknown-{index}"
