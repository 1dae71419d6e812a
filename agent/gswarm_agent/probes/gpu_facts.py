"""What doesn't change about a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

from gswarm_agent.frame import GpuFacts
from gswarm_agent.probes.library import NVML_CLOCK_MEM, NVML_CLOCK_SM
from gswarm_agent.probes.nvml import Nvml


def read_gpu_facts(nvml: Nvml, index: int, handle: Any) -> GpuFacts:
    """The facts of a GPU that answers; None for each that this one doesn't have."""
    library, maybe = nvml.library, nvml.maybe
    memory = maybe(library.memory_total, handle)
    limit = maybe(library.enforced_power_limit, handle)
    return GpuFacts(
        index=index,
        uuid=maybe(library.uuid, handle) or _unknown_uuid(index),
        name=maybe(library.name, handle) or "unknown GPU",
        pci_bus_id=maybe(library.pci_bus_id, handle),
        minor=maybe(library.minor_number, handle),
        memory_total_mib=None if memory is None else memory >> 20,
        power_limit_w=None if limit is None else limit / 1000,
        sm_clock_max_mhz=maybe(library.max_clock, handle, NVML_CLOCK_SM),
        mem_clock_max_mhz=maybe(library.max_clock, handle, NVML_CLOCK_MEM),
        mig=has_mig(nvml, handle),
    )


def has_mig(nvml: Nvml, handle: Any) -> bool:
    """Whether the GPU is divided into instances."""
    return nvml.maybe(nvml.library.mig_mode, handle) == 1


def lost_gpu_facts(index: int, count: int, proc: Path) -> GpuFacts:
    """The facts of a GPU that NVML has no handle for, from what the kernel module wrote down at its start.

    Its folders in /proc/driver/nvidia/gpus are named by PCI bus id, which is NVML's order too. Where they
    don't match the number of GPUs (a job that may see only some), nothing is known but the index.
    """
    try:
        folders: List[Path] = sorted((proc / "driver/nvidia/gpus").iterdir())
        text = (folders[index] / "information").read_text(errors="replace") if len(folders) == count else ""
    except OSError:
        text = ""
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
