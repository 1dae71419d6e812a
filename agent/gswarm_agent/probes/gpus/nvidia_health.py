"""NVML's functions and fields that show a GPU's health: its links, memory, recovery and limits."""

from __future__ import annotations

import ctypes

from gswarm_agent.probes.gpus.nvidia_nvml import ALL_LINKS, NOT_SUPPORTED, Nvml
from gswarm_agent.probes.gpus.nvidia_sources import CallSource, FieldSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Tuple

    from gswarm_agent.frame import Number
    from gswarm_agent.probes.gpus.nvidia_sources import GpuSource

_LINKS = range(18)
_MODULE = 1
"""The scope of a power field for a whole module, with GPU, CPU and memory (NVML_POWER_SCOPE_MODULE)."""


def health_sources(nvml: Nvml) -> List[GpuSource]:
    """Return the sources of the metrics in the group "health", and of the instant power."""
    api, maybe = nvml.api, nvml.maybe

    def pcie(handle: Any) -> Tuple[Optional[Number], ...]:
        now = api.nvmlDeviceGetCurrPcieLinkGeneration(handle), api.nvmlDeviceGetCurrPcieLinkWidth(handle)
        most = api.nvmlDeviceGetMaxPcieLinkGeneration(handle), api.nvmlDeviceGetMaxPcieLinkWidth(handle)
        # The link of an idle GPU may sleep at a lower speed, so less than the maximum counts under load only.
        if now != most:
            load = maybe(api.nvmlDeviceGetUtilizationRates, handle)
            if load is None or load.gpu == 0:
                return None, None
        return now

    def slowdown_margin(handle: Any) -> Tuple[Optional[Number], ...]:
        limit = api.nvmlDeviceGetTemperatureThreshold(handle, api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return (limit - api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU),)

    def application_clocks(handle: Any) -> Tuple[Optional[Number], ...]:
        clock = api.nvmlDeviceGetApplicationsClock
        return clock(handle, api.NVML_CLOCK_SM), clock(handle, api.NVML_CLOCK_MEM)

    def fabric_state(handle: Any) -> Tuple[Optional[Number], ...]:
        info = api.c_nvmlGpuFabricInfo_v2_t()
        api.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        if info.state == api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            raise nvml.Error(NOT_SUPPORTED)
        return (info.state,)

    def field(column: str, *plans: Tuple[int, ...], scope: int = 0, factor: float = 1) -> FieldSource:
        return FieldSource(column, [[(each, scope) for each in plan] for plan in plans], factor=factor)

    def nvlink(column: str, from_5: range, of_link: Tuple[int, ...], total: Tuple[int, ...]) -> FieldSource:
        each = [(one, link) for one in of_link for link in _LINKS]
        return FieldSource(column, [[(one, ALL_LINKS) for one in from_5], each, [(one, 0) for one in total]])

    return [
        CallSource(("pcie_gen", "pcie_width"), pcie),
        CallSource(
            ("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failed"),
            api.nvmlDeviceGetRemappedRows,
        ),
        CallSource(
            ("temp_margin_c",),
            lambda handle: (api.nvmlDeviceGetMarginTemperature(handle),),
            slowdown_margin,
        ),
        CallSource(
            ("power_limit_now_w",), lambda handle: (api.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,)
        ),
        CallSource(("app_sm_clock_mhz", "app_mem_clock_mhz"), application_clocks),
        CallSource(("fabric_state",), fabric_state),
        field("power_instant_w", (api.NVML_FI_DEV_POWER_INSTANT,), factor=0.001),
        field("module_power_w", (api.NVML_FI_DEV_POWER_INSTANT,), scope=_MODULE, factor=0.001),
        field("pcie_replays", (api.NVML_FI_DEV_PCIE_REPLAY_COUNTER,)),
        field("recovery_action", (api.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,)),
        # NVLink 5 has 206 to 212 and 215 for all links; Hopper has counts for each of its 18 links. The older
        # totals may cover only 12 links, the number that has fields beside them, so they come last.
        nvlink("nvlink_errors", range(206, 213), (161, 163), (38, 45, 52)),
        nvlink("nvlink_recoveries", range(215, 216), (162,), (59,)),
    ]
