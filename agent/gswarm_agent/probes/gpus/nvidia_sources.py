"""NVML's functions and fields that are read at each tick, and the columns that each of them gives."""

from __future__ import annotations

from gswarm_agent.frame import Number
from gswarm_agent.probes.gpus.nvidia_nvml import ALL_LINKS, Call, Field, Nvml
from gswarm_agent.probes.rates import SECOND_NS, Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Sequence

_KIB_TO_MB = 1024 / 10**6
_BYTES_TO_MB = 1 / 10**6
_NS_TO_PERCENT = 100 / SECOND_NS
_NVLINKS = range(18)


class GpuSource:
    """One query to the driver and the columns that it gives.

    ``reason`` says why the source is disabled, None while it is read; ``strikes`` counts the ticks in a row
    in which it failed.
    """

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.reason: Optional[str] = None
        self.strikes = 0

    def use_next_plan(self) -> bool:
        """Switch to another way to query the columns; False if none is left."""
        return False

    def reset(self) -> None:
        """Forget earlier values."""


class CallSource(GpuSource):
    """The columns that one NVML function gives. ``convert`` turns the driver's number into the column's unit.

    A ``slow`` source is not called at each tick and keeps its value in between.
    """

    def __init__(
        self,
        call: Call,
        *columns: str,
        convert: Optional[Callable[[int], Optional[Number]]] = None,
        slow: bool = False,
    ) -> None:
        super().__init__(*columns)
        self.call = call
        self.convert = convert
        self.slow = slow


class FieldSource(GpuSource):
    """A column made of field values: their sum, or with ``scales`` its growth per second times the scale.

    ``plans`` are alternative sets of fields, tried in order until the GPU supports one; each has its scale.
    """

    def __init__(
        self,
        column: str,
        plans: Sequence[Sequence[Field]],
        scales: Sequence[float] = (),
    ) -> None:
        super().__init__(column)
        self.column = column
        self._plans = plans
        self._scales = scales
        self._plan = 0
        self._rate = Rate()

    @property
    def fields(self) -> Sequence[Field]:
        """The fields of the current plan."""
        return self._plans[self._plan]

    def value(self, numbers: Sequence[Number], now_ns: int) -> Optional[Number]:
        """Return the column's value for its fields' numbers."""
        total = sum(numbers)
        if not self._scales:
            return total
        growth = self._rate.update(total, now_ns)
        return None if growth is None else growth * self._scales[self._plan]

    def use_next_plan(self) -> bool:
        """Switch to the next set of fields; False when this was the last."""
        self._plan = (self._plan + 1) % len(self._plans)
        return self._plan > 0

    def reset(self) -> None:
        """Forget earlier values: the next rate comes with the second value from now on."""
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


_NUMBER, _LONG_NUMBER = "I", "Q"
_UTILIZATION = "II"  # nvmlUtilization_t: gpu, memory
_MEMORY, _MEMORY_V2 = "16xQ", "32xQ"  # nvmlMemory_t, nvmlMemory_v2_t: used, which comes last


def call_sources(nvml: Nvml) -> List[CallSource]:
    """Return the sources that take one function call each."""
    api = nvml.api

    def call(name: str, *constants: int, layout: str = _NUMBER, version: int = 0) -> Call:
        return Call(nvml.function(name), layout, constants, version)

    def memory() -> Call:
        # The first version counts the driver's reserve as used, but drivers before 510 have only that one.
        if nvml.has("nvmlDeviceGetMemoryInfo_v2"):
            return call("nvmlDeviceGetMemoryInfo_v2", layout=_MEMORY_V2, version=api.nvmlMemory_v2)
        return call("nvmlDeviceGetMemoryInfo", layout=_MEMORY)

    def ecc(kind: int) -> Call:
        return call("nvmlDeviceGetTotalEccErrors", kind, api.NVML_VOLATILE_ECC, layout=_LONG_NUMBER)

    reasons, before_535 = (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    return [
        CallSource(call("nvmlDeviceGetUtilizationRates", layout=_UTILIZATION), "util_pct", "mem_util_pct"),
        CallSource(memory(), "mem_used_mib", convert=lambda used: used >> 20),
        CallSource(call("nvmlDeviceGetPowerUsage"), "power_w", convert=lambda milliwatts: milliwatts / 1000),
        CallSource(call("nvmlDeviceGetTemperature", api.NVML_TEMPERATURE_GPU), "temp_c"),
        CallSource(call("nvmlDeviceGetClockInfo", api.NVML_CLOCK_SM), "sm_clock_mhz"),
        CallSource(call("nvmlDeviceGetClockInfo", api.NVML_CLOCK_MEM), "mem_clock_mhz"),
        CallSource(call("nvmlDeviceGetTotalEnergyConsumption", layout=_LONG_NUMBER), "energy_mj"),
        CallSource(call(reasons if nvml.has(reasons) else before_535, layout=_LONG_NUMBER), "clock_reasons"),
        CallSource(ecc(api.NVML_MEMORY_ERROR_TYPE_CORRECTED), "ecc_corrected", slow=True),
        CallSource(ecc(api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED), "ecc_uncorrected", slow=True),
        CallSource(
            call("nvmlDeviceGetPerformanceState"),
            "pstate",
            convert=lambda state: None if state == api.NVML_PSTATE_UNKNOWN else state,
        ),
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
