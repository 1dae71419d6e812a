"""NVML's functions and fields that are read at each tick, and the columns that each of them gives."""

from __future__ import annotations

from gswarm_agent.frame import Number
from gswarm_agent.probes.gpus.nvidia_nvml import ALL_LINKS, Nvml
from gswarm_agent.probes.rates import SECOND_NS, Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeAlias

    Call: TypeAlias = "Callable[[Any], Tuple[Optional[Number], ...]]"
    Field: TypeAlias = "Tuple[int, int]"

_KIB_TO_MB = 1024 / 10**6
_BYTES_TO_MB = 1 / 10**6
_NS_TO_PERCENT = 100 / SECOND_NS
_NVLINKS = range(18)


_SLOW_NS = 10 * SECOND_NS
"""Interval of reading ECC counts: the driver has to query the GPU for each of them."""


class GpuSource:
    """One query to the driver and the columns that it gives, with the number of ways (``plans``) to query it.

    ``plan`` is the way in use. ``reason`` says why the source is disabled, None while it is read; ``strikes``
    counts the ticks in a row in which it failed.
    """

    def __init__(self, columns: Sequence[str], plans: int) -> None:
        self.columns, self._plan_count = columns, plans
        self.plan = self.strikes = 0
        self.reason: Optional[str] = None

    def use_next_plan(self) -> bool:
        """Switch to the next way to query the columns; False when this was the last."""
        self.plan = (self.plan + 1) % self._plan_count
        return self.plan > 0

    def reset(self) -> None:
        """Forget earlier values."""


class CallSource(GpuSource):
    """The columns that one call gives, which takes a device's handle. A ``slow`` one is called every 10 s."""

    def __init__(self, columns: Sequence[str], *plans: Call, slow: bool = False) -> None:
        super().__init__(columns, len(plans))
        self.plans, self.slow = plans, slow
        self.values: Tuple[Optional[Number], ...] = ()
        self.due_ns = 0

    def read(self, handle: Any, now_ns: int) -> None:
        """Call it, and keep its values. Raises ``Nvml.Error``."""
        self.values = self.plans[self.plan](handle)
        self.due_ns = now_ns + _SLOW_NS if self.slow else 0

    def reset(self) -> None:
        """See GpuSource."""
        self.due_ns = 0


class FieldSource(GpuSource):
    """A column made of field values: their sum, or with ``scales`` its growth per second times the scale.

    ``plans`` are alternative sets of fields, tried in order until the GPU supports one; each has its scale.
    """

    def __init__(self, column: str, plans: Sequence[Sequence[Field]], scales: Sequence[float] = ()) -> None:
        super().__init__((column,), len(plans))
        self.column = column
        self._plans, self._scales = plans, scales
        self._rate = Rate()

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of the current plan."""
        return self._plans[self.plan]

    def value(self, numbers: Sequence[Number], now_ns: int) -> Optional[Number]:
        """Return the column's value for its fields' numbers."""
        total = sum(numbers)
        if not self._scales:
            return total
        growth = self._rate.update(total, now_ns)
        return None if growth is None else growth * self._scales[self.plan]

    def reset(self) -> None:
        """See GpuSource: the next rate comes with the second value from now on."""
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
        self._causes = []


def call_sources(nvml: Nvml) -> List[CallSource]:
    """Return the sources that take one function call each. The second of two plans is an old driver's."""
    api = nvml.api

    def load(handle: Any) -> Tuple[Optional[Number], ...]:
        rates = api.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    def pstate(handle: Any) -> Tuple[Optional[Number], ...]:
        state = api.nvmlDeviceGetPerformanceState(handle)
        return (None if state == api.NVML_PSTATE_UNKNOWN else state,)

    def one(column: str, function: Callable[..., Number], *arguments: int) -> CallSource:
        return CallSource((column,), lambda handle: (function(handle, *arguments),))

    def ecc(column: str, kind: int) -> CallSource:
        total = api.nvmlDeviceGetTotalEccErrors
        return CallSource((column,), lambda handle: (total(handle, kind, api.NVML_VOLATILE_ECC),), slow=True)

    return [
        CallSource(("util_pct", "mem_util_pct"), load),
        CallSource(
            ("mem_used_mib",),
            lambda handle: (api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2).used >> 20,),
            # Before driver 510 there is only this, which counts the driver's reserve as used.
            lambda handle: (api.nvmlDeviceGetMemoryInfo(handle).used >> 20,),
        ),
        CallSource(("power_w",), lambda handle: (api.nvmlDeviceGetPowerUsage(handle) / 1000,)),
        one("temp_c", api.nvmlDeviceGetTemperature, api.NVML_TEMPERATURE_GPU),
        one("sm_clock_mhz", api.nvmlDeviceGetClockInfo, api.NVML_CLOCK_SM),
        one("mem_clock_mhz", api.nvmlDeviceGetClockInfo, api.NVML_CLOCK_MEM),
        one("energy_mj", api.nvmlDeviceGetTotalEnergyConsumption),
        CallSource(
            ("clock_reasons",),
            lambda handle: (api.nvmlDeviceGetCurrentClocksEventReasons(handle),),
            lambda handle: (api.nvmlDeviceGetCurrentClocksThrottleReasons(handle),),  # before driver 535
        ),
        ecc("ecc_corrected", api.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        ecc("ecc_uncorrected", api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        CallSource(("pstate",), pstate),
    ]


def field_sources(nvml: Nvml) -> List[FieldSource]:
    """Return the other sources that one nvmlDeviceGetFieldValues call reads together."""
    api = nvml.api

    def nvlink(column: str, kib: int, count: int) -> FieldSource:
        plans = [[(kib, ALL_LINKS)], [(count, ALL_LINKS)], [(count, link) for link in _NVLINKS]]
        return FieldSource(column, plans, [_KIB_TO_MB, _BYTES_TO_MB, _BYTES_TO_MB])

    def throttle(column: str, fields: Sequence[int], before_580_82: Sequence[int]) -> FieldSource:
        plans = [[(field, 0) for field in fields]]
        if nvml.driver_before(580, 82):
            plans.insert(0, [(field, 0) for field in before_580_82])
        return ThrottleCauses(column, plans)

    sw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    hw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    brake = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    power = api.NVML_FI_DEV_PERF_POLICY_POWER
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
        throttle("throttle_power_pct", [power], [power]),
        # Driver 580.82 gave these three new field ids, and their old ids a new meaning.
        throttle("throttle_thermal_pct", [sw_thermal, hw_thermal], [251, 252]),
        throttle("throttle_brake_pct", [brake], [253]),
    ]
