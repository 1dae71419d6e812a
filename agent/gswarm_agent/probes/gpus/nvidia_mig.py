"""MIG: the instances of NVIDIA's GPUs, each with memory, activity and processes of its own.

NVML has power, clocks and temperatures of the whole GPU only, and utilisation of neither GPU nor instance
(nvml.h, "Multi Instance GPU Management").
"""

from __future__ import annotations

from gswarm_agent.frame import MIG_INDEX, mig_place
from gswarm_agent.probes.gpus.nvidia_gpm import Gpm
from gswarm_agent.probes.gpus.nvidia_gpu import Gpu
from gswarm_agent.probes.gpus.nvidia_sources import GpuSource, call_sources

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, List, Tuple

    from gswarm_agent.probes.gpus.nvidia_nvml import Nvml
    from gswarm_agent.probes.gpus.vendor import Whereabouts


def find_gpus(nvml: Nvml, whereabouts: Whereabouts, left_out: Collection[int]) -> List[int]:
    """Return the indexes of the GPUs, each followed by its instances; no call is made for ``left_out``."""
    api, maybe, found = nvml.api, nvml.maybe, []
    for index in range(maybe(api.nvmlDeviceGetCount) or 0):
        found.append(index)
        if index in left_out:
            continue
        whereabouts.enter(index)
        handle = maybe(api.nvmlDeviceGetHandleByIndex, index)
        mode = None if handle is None else maybe(api.nvmlDeviceGetMigMode, handle)
        if mode is not None and mode[0] == 1:
            # Instances have numbers from 0 on; a user of Slurm sees only those of the job, also with gaps.
            most = maybe(api.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
            found += [
                MIG_INDEX + 10 * index + number
                for number in range(min(most, 10))
                if maybe(api.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) is not None
            ]
    return found


class MigInstance(Gpu):
    """An instance by its index (``MIG_INDEX``); of a GPU's sources it has the memory, and GPM."""

    def __init__(self, nvml: Nvml, *where: Any) -> None:
        super().__init__(nvml, *where)
        self.parent_index, self._number = mig_place(self.nvml_index)

    def find(self) -> Any:
        """See Gpu."""
        api = self._nvml.api
        self._parent = api.nvmlDeviceGetHandleByIndex(self.parent_index)
        handle = api.nvmlDeviceGetMigDeviceHandleByIndex(self._parent, self._number)
        self._gpu_instance = api.nvmlDeviceGetGpuInstanceId(handle)
        return handle

    def find_gpm(self) -> Gpm:
        """See Gpu."""
        return Gpm(self._nvml, self._parent, self._gpu_instance)

    def find_sources(self) -> List[GpuSource]:
        """See Gpu."""
        return [source for source in call_sources(self._nvml) if "mem_used_mib" in source.columns]

    def _latest_pcie(self, gpm: Gpm) -> Tuple[float, ...]:
        """See Gpu: the PCIe link is the GPU's."""
        return ()
