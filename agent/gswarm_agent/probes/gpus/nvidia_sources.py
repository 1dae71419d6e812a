"""NVML's functions and fields that are read regularly, and the columns that each of them gives."""

from __future__ import annotations

import ctypes

from gswarm_agent.frame import Number
from gswarm_agent.metrics import GPU_BY_NAME
from gswarm_agent.probes.gpus.nvidia_gpm import PCIE_COLUMNS
from gswarm_agent.probes.gpus.nvidia_nvml import ALL_LINKS, NOT_SUPPORTED, Nvml
from gswarm_agent.probes.procfs import parse_meminfo, read_file
from gswarm_agent.probes.rates import SECOND_NS, Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeAlias

    Call: TypeAlias = "Callable[[Any], Tuple[Optional[Number], ...]]"
    Field: TypeAlias = "Tuple[int, int]"

_KIB_TO_MB = 1024 / 10**6
_BYTES_TO_MB = 1 / 10**6
_NS_TO_PERCENT = 100 / SECOND_NS
_STALE_PERIODS = 1.5
"""A value stands for this many periods of its source after it was read."""
_PCIE_NS = 4 * SECOND_NS
"""Time between two calls of ``nvmlDeviceGetPcieThroughput``: each watches the link for 20 ms."""
_LINKS = range(18)
_MODULE = 1
"""The scope of a power field for a whole module, with GPU, CPU and memory (NVML_POWER_SCOPE_MODULE)."""


class GpuSource:
    """One query to the driver and the columns that it gives, with the number of ways (``plans``) to query it.

    A source is read once in the catalogue's period of its columns, and its values stand in the rows between.
    ``plan`` is the way in use. ``reason`` says why the source is disabled, None while it is read; ``strikes``
    counts the readings in a row that failed. ``repeats`` is False where only the row of its reading may carry
    a value.
    """

    def __init__(
        self, columns: Sequence[str], plans: int, *, repeats: bool = True, every_ns: int = 0
    ) -> None:
        self.columns, self._plan_count, self.repeats = columns, plans, repeats
        metrics = [GPU_BY_NAME[column] for column in columns]
        self._period_ns = every_ns or round(min(metric.period_s for metric in metrics) * SECOND_NS)
        self.plan = self.strikes = 0
        self.reason: Optional[str] = None
        self._values: Tuple[Optional[Number], ...] = ()
        self._read_ns: Optional[int] = None
        self._due_ns, self._hurried = 0, False

    def use_next_plan(self) -> bool:
        """Switch to the next way to query the columns; False when this was the last."""
        self.plan = (self.plan + 1) % self._plan_count
        return self.plan > 0

    def reset(self) -> None:
        """Forget earlier values, and be due at once."""
        self._values, self._read_ns, self._due_ns, self._hurried = (), None, 0, False

    def is_due(self, now_ns: int) -> bool:
        """Return whether it is time to read the source."""
        return self._hurried or now_ns >= self._due_ns

    def hurry(self) -> None:
        """Be due at once; the times of the regular readings don't change."""
        self._hurried = True

    def keep(self, values: Tuple[Optional[Number], ...], now_ns: int, *, phase: float) -> None:
        """Keep values that were read now. ``phase`` places the regular readings in the period, 0 to 1."""
        self._values, self._read_ns, self._hurried = values, now_ns, False
        if self._due_ns == 0:
            self._due_ns = now_ns + round(phase * self._period_ns)
        elif self._period_ns and now_ns >= self._due_ns:
            self._due_ns += self._period_ns * (1 + (now_ns - self._due_ns) // self._period_ns)

    def values(self, now_ns: int) -> Tuple[Optional[Number], ...]:
        """Return the values for a row, None for what is too old."""
        longest_ns = _STALE_PERIODS * self._period_ns if self.repeats else 0
        if self._read_ns is None or now_ns - self._read_ns > longest_ns:
            return (None,) * len(self.columns)
        return self._values


class CallSource(GpuSource):
    """The columns that one call gives, which takes a device's handle."""

    def __init__(self, columns: Sequence[str], *plans: Call, repeats: bool = True, every_ns: int = 0) -> None:
        super().__init__(columns, len(plans), repeats=repeats, every_ns=every_ns)
        self._plans = plans

    def call(self, handle: Any) -> Tuple[Optional[Number], ...]:
        """Return the columns' values now. Raises ``Nvml.Error``."""
        return self._plans[self.plan](handle)


class FieldSource(GpuSource):
    """A column made of field values: their sum times a factor, or with ``scales`` its growth per second.

    ``plans`` are alternative sets of fields, tried in order until the GPU supports one; each has its scale.
    """

    def __init__(
        self,
        column: str,
        plans: Sequence[Sequence[Field]],
        scales: Sequence[float] = (),
        *,
        factor: float = 1,
    ) -> None:
        super().__init__((column,), len(plans))
        self._plans, self._scales, self._factor = plans, scales, factor
        self._rate = Rate()

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of the current plan."""
        return self._plans[self.plan]

    def value(self, numbers: Sequence[Number], now_ns: int) -> Optional[Number]:
        """Return the column's value for its fields' numbers."""
        total = sum(numbers)
        if not self._scales:
            return total * self._factor
        growth = self._rate.update(total, now_ns)
        return None if growth is None else growth * self._scales[self.plan]

    def reset(self) -> None:
        """See GpuSource: the next rate comes with the second value from now on."""
        super().reset()
        self._rate.reset()


class ThrottleCauses(FieldSource):
    """A share of time in which one of several causes held clocks down.

    Causes may hold at once, so the one that held longest counts: the share is at least that, and their sum
    would count common time twice.
    """

    def __init__(self, column: str, plans: Sequence[Sequence[Field]]) -> None:
        super().__init__(column, plans, [_NS_TO_PERCENT] * len(plans))
        self._causes: List[Rate] = []

    def value(self, numbers: Sequence[Number], now_ns: int) -> Optional[Number]:
        """See FieldSource."""
        if len(self._causes) != len(numbers):
            self._causes = [Rate() for _ in numbers]
        rates = [cause.update(number, now_ns) for cause, number in zip(self._causes, numbers)]
        known = [rate for rate in rates if rate is not None]
        return max(known) * _NS_TO_PERCENT if known else None

    def reset(self) -> None:
        """See FieldSource."""
        super().reset()
        self._causes = []


def memory_mib(nvml: Nvml, handle: Any) -> Tuple[int, int]:
    """Return a GPU's memory in MiB, total and used; of GB10, which has none of its own, the host's."""
    try:
        memory = nvml.api.nvmlDeviceGetMemoryInfo(handle)
    except nvml.Error as error:
        if error.value != NOT_SUPPORTED:
            raise
        kib = parse_meminfo(read_file("/proc/meminfo"))
        return kib[b"MemTotal"] >> 10, kib[b"MemTotal"] - kib[b"MemAvailable"] >> 10
    return memory.total >> 20, memory.used >> 20


def call_sources(nvml: Nvml) -> List[CallSource]:
    """Return the sources that take one function call each. The second of two plans is an old driver's."""
    api = nvml.api

    def load(handle: Any) -> Tuple[Optional[Number], ...]:
        rates = api.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    def pcie(handle: Any) -> Tuple[Optional[Number], ...]:
        kinds = api.NVML_PCIE_UTIL_TX_BYTES, api.NVML_PCIE_UTIL_RX_BYTES
        return tuple([api.nvmlDeviceGetPcieThroughput(handle, kind) * _KIB_TO_MB for kind in kinds])

    def pstate(handle: Any) -> Tuple[Optional[Number], ...]:
        state = api.nvmlDeviceGetPerformanceState(handle)
        return (None if state == api.NVML_PSTATE_UNKNOWN else state,)

    def one(column: str, function: Callable[..., Number], *arguments: int) -> CallSource:
        return CallSource((column,), lambda handle: (function(handle, *arguments),))

    def ecc(column: str, kind: int) -> CallSource:
        total = api.nvmlDeviceGetTotalEccErrors
        return CallSource((column,), lambda handle: (total(handle, kind, api.NVML_VOLATILE_ECC),))

    return [
        CallSource(("util_pct", "mem_util_pct"), load),
        CallSource(
            ("mem_used_mib",),
            lambda handle: (api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2).used >> 20,),
            # Before driver 510 there is only this, which counts the driver's reserve as used.
            lambda handle: (memory_mib(nvml, handle)[1],),
        ),
        CallSource(("power_w",), lambda handle: (api.nvmlDeviceGetPowerUsage(handle) / 1000,)),
        CallSource(
            ("temp_c",),
            lambda handle: (api.nvmlDeviceGetTemperatureV(handle, api.NVML_TEMPERATURE_GPU),),
            # Drivers before 570 have only this call.
            lambda handle: (api.nvmlDeviceGetTemperature(handle, api.NVML_TEMPERATURE_GPU),),
        ),
        one("sm_clock_mhz", api.nvmlDeviceGetClockInfo, api.NVML_CLOCK_SM),
        one("mem_clock_mhz", api.nvmlDeviceGetClockInfo, api.NVML_CLOCK_MEM),
        # The growth of the counter belongs to the row of its reading.
        CallSource(
            ("energy_mj",), lambda handle: (api.nvmlDeviceGetTotalEnergyConsumption(handle),), repeats=False
        ),
        CallSource(
            ("clock_reasons",),
            lambda handle: (api.nvmlDeviceGetCurrentClocksEventReasons(handle),),
            lambda handle: (api.nvmlDeviceGetCurrentClocksThrottleReasons(handle),),  # before driver 535
        ),
        ecc("ecc_corrected", api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc("ecc_uncorrected", api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        CallSource(("pstate",), pstate),
        CallSource(PCIE_COLUMNS, pcie, every_ns=_PCIE_NS),
    ]


def field_sources(nvml: Nvml, handle: Any) -> List[FieldSource]:
    """Return a GPU's other sources, which one nvmlDeviceGetFieldValues call reads together."""
    api = nvml.api
    blackwell = (nvml.maybe(api.nvmlDeviceGetArchitecture, handle) or 0) >= api.NVML_DEVICE_ARCH_BLACKWELL

    def nvlink(column: str, kib: int, count: int) -> FieldSource:
        plans, scales = [[(kib, ALL_LINKS)], [(count, ALL_LINKS)]], [_KIB_TO_MB, _BYTES_TO_MB]
        # NVLink 5 counts bytes; what it returns for the older fields isn't documented.
        if blackwell:
            plans.reverse()
            scales.reverse()
        return FieldSource(column, plans, scales)

    def throttle(column: str, *plans: Sequence[int]) -> FieldSource:
        return ThrottleCauses(column, [[(field, 0) for field in fields] for fields in plans])

    sw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    hw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    brake = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    causes, brakes = [sw_thermal, hw_thermal], [brake]
    # Driver 575 introduced these fields with ids that 570 and 580.82 use for power smoothing. From 580.82 on,
    # they have the ids in pynvml, which power smoothing has in 575 and which drivers before 575 don't know.
    if not nvml.driver_before(575) and nvml.driver_before(580, 82):
        causes, brakes = [251, 252], [253]
    thermal = [[api.NVML_FI_DEV_PERF_POLICY_THERMAL]]
    if not nvml.driver_before(575):
        thermal.insert(0, causes)
    return [
        FieldSource("mem_temp_c", [[(api.NVML_FI_DEV_MEMORY_TEMP, 0)]]),
        nvlink(
            "nvlink_tx_mb_s",
            api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
            api.NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES,
        ),
        nvlink(
            "nvlink_rx_mb_s",
            api.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
            api.NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES,
        ),
        throttle("throttle_power_pct", [api.NVML_FI_DEV_PERF_POLICY_POWER]),
        throttle("throttle_thermal_pct", *thermal),
        throttle("throttle_brake_pct", brakes),
    ]


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
            ("temp_margin_c",), lambda handle: (api.nvmlDeviceGetMarginTemperature(handle),), slowdown_margin
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
