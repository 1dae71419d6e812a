"""NVIDIA's GPUs, through NVML. A ``Vendor``."""

from __future__ import annotations

from dataclasses import replace

from gswarm_agent.frame import MIG_INDEX, GpuFacts
from gswarm_agent.probes.gpus.vendor import DRIVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Collection, Dict, FrozenSet, List, Optional, Tuple

    from gswarm_agent.frame import GpuLink, Note
    from gswarm_agent.probes.gpus.nvidia_gpu import Gpu
    from gswarm_agent.probes.gpus.nvidia_nvml import Nvml
    from gswarm_agent.probes.gpus.vendor import GpuUsage, Values, Whereabouts

LIBRARY = "libnvidia-ml.so.1"


class Nvidia:
    """See ``Vendor``. NVML is not shut down, as threads may be in a call; the driver cleans up itself.

    ``sys`` is the folder of the kernel's files.

    The agent itself asks for ``absence`` only, so everything else is imported by the process that reads GPUs.
    """

    name = "NVIDIA"

    def __init__(self, sys: str = "/sys") -> None:
        self.notes: List[Note] = []
        self.known: Tuple[GpuFacts, ...] = ()
        self.driver_version: Optional[str] = None
        self.cuda_version: Optional[str] = None
        self._sys = sys

    def absence(self) -> str:
        """See Vendor. The library is only loaded, which neither starts nor asks the driver."""
        import ctypes

        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            return f"there is no NVIDIA driver on this node: {LIBRARY} was not found"
        return ""

    def open(self, whereabouts: Whereabouts, left_out: Collection[int]) -> int:
        """See Vendor."""
        from gswarm_agent.probes.gpus.nvidia_gpu import Gpu, MigInstance, find_gpus
        from gswarm_agent.probes.gpus.nvidia_links import Links
        from gswarm_agent.probes.gpus.nvidia_nvml import Nvml
        from gswarm_agent.probes.gpus.nvidia_processes import (
            nvitop_for_old_driver,
            widen_process_info,
        )
        from gswarm_agent.probes.gpus.nvidia_xid import XidWatch

        whereabouts.enter(DRIVER)
        self._nvml = nvml = Nvml.open()
        self.driver_version, self.cuda_version = nvml.driver_version, nvml.cuda_version
        indexes = [facts.index for facts in self.known] or find_gpus(nvml, whereabouts, left_out)
        whereabouts.enter(DRIVER)
        self._gpus = [
            (Gpu if index < MIG_INDEX else MigInstance)(nvml, place, index, self.notes)
            for place, index in enumerate(indexes)
        ]
        whole = [gpu for gpu in self._gpus if gpu.parent_index is None]
        self._links = Links(nvml, whole, self._sys, self.notes, whereabouts)
        self._xids = XidWatch(nvml, self.notes)
        self._nvitop = nvitop_for_old_driver(LIBRARY)
        self._divided = {gpu.parent_index for gpu in self._gpus} if self._nvitop is None else set()
        widen_process_info(nvml)
        self._no_processes: Dict[int, str] = {}
        return len(self._gpus)

    def facts(self, index: int, *, hanging: bool) -> GpuFacts:
        """See Vendor."""
        gpu = self._gpus[index]
        if not hanging:
            gpu.open()
        if hanging or gpu.lost is not None:
            return GpuFacts(
                gpu.nvml_index, f"unknown-{gpu.nvml_index}", "unknown GPU", parent_index=gpu.parent_index
            )
        from gswarm_agent.probes.gpus.nvidia_processes import obstacle

        if gpu.parent_index is None:
            self._xids.add(gpu)
        reason = "" if self._nvitop is not None else obstacle(self._nvml, gpu.handle)
        if reason:
            self._no_processes[index] = reason
        facts = read_gpu_facts(self._nvml, gpu)
        from gswarm_agent.probes.gpus.nvidia_links import pci_folder, read_numa_node

        folder = pci_folder(self._sys, facts.pci_bus_id or "unknown")
        return replace(facts, numa_node=read_numa_node(folder))

    def read(self, index: int, now_ns: int, columns_off: FrozenSet[str], *, fresh: bool) -> Optional[Values]:
        """See Vendor."""
        return self._gpus[index].read(now_ns, columns_off, fresh=fresh)

    def reasons(self, index: int) -> Dict[str, str]:
        """See Vendor."""
        gpu = self._gpus[index]
        if gpu.lost is not None:
            return {"": gpu.lost}
        reasons = gpu.reasons
        for name, missing in (("processes", self._no_processes), ("xid", self._xids.reasons)):
            if index in missing:
                reasons[name] = missing[index]
        return reasons

    def processes(self, index: int) -> Dict[int, GpuUsage]:
        """See Vendor."""
        from gswarm_agent.probes.gpus.nvidia_processes import list_processes, processes_by_nvitop

        gpu = self._gpus[index]
        # A divided GPU would list the processes of its instances once more.
        if not gpu.reachable or gpu.nvml_index in self._divided:
            return {}
        if self._nvitop is not None:
            return processes_by_nvitop(self._nvitop, gpu.nvml_index) if gpu.parent_index is None else {}
        return list_processes(self._nvml, gpu.handle)

    def links(self, now_ns: int) -> Tuple[GpuLink, ...]:
        """See Vendor."""
        return self._links.read(now_ns)


def read_gpu_facts(nvml: Nvml, gpu: Gpu) -> GpuFacts:
    """Return the facts of a GPU that answers, None for each that this GPU does not have."""
    from gswarm_agent.probes.gpus.nvidia_sources import memory_mib

    api, maybe, handle = nvml.api, nvml.maybe, gpu.handle
    pci = maybe(api.nvmlDeviceGetPciInfo, handle)
    memory = maybe(memory_mib, nvml, handle)
    limit = maybe(api.nvmlDeviceGetEnforcedPowerLimit, handle)
    name = maybe(api.nvmlDeviceGetName, handle) or "unknown GPU"
    return GpuFacts(
        index=gpu.nvml_index,
        uuid=maybe(api.nvmlDeviceGetUUID, handle) or f"unknown-{gpu.nvml_index}",
        name=name,
        pci_bus_id=None if pci is None else pci.busId,
        minor=maybe(api.nvmlDeviceGetMinorNumber, handle),
        memory_total_mib=None if memory is None else memory[0],
        power_limit_w=None if limit is None else limit / 1000,
        sm_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_SM),
        mem_clock_max_mhz=maybe(api.nvmlDeviceGetMaxClockInfo, handle, api.NVML_CLOCK_MEM),
        mig=gpu.has_mig(),
        parent_index=gpu.parent_index,
        # As in "NVIDIA H100 80GB HBM3 MIG 1g.10gb".
        mig_profile=name.partition(" MIG ")[2] or None,
    )
