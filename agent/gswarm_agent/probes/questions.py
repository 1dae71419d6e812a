"""What is asked of a GPU each tick: NVML's functions and fields, and the columns that they answer."""

from __future__ import annotations

import math

from gswarm_agent.frame import Number
from gswarm_agent.probes.nvml import ALL_LINKS, Call, Field, Nvml
from gswarm_agent.probes.rates import SECOND_NS, Unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple

_KIB_TO_MB = 1024 / 10**6
_BYTES_TO_MB = 1 / 10**6
_NS_TO_PERCENT = 100 / SECOND_NS
_NVLINKS = range(18)


class Source:
    """One question to the driver and the columns it answers.

    ``reason`` says why it is not asked at present, None while it is; ``strikes`` counts ticks in a row in
    which it failed.
    """

    def __init__(self, *columns: str) -> None:
        self.columns = columns
        self.reason: Optional[str] = None
        self.strikes = 0

    def give_up_plan(self) -> bool:
        """Whether there is another way to ask, which is then taken."""
        return False

    def reset(self) -> None:
        """Forget what was answered before."""


class Levels(Source):
    """The columns that one call of NVML answers. ``convert`` makes a column's value of what was answered.

    What is asked ``seldom`` keeps its value for some ticks.
    """

    def __init__(
        self,
        call: Call,
        *columns: str,
        convert: Optional[Callable[[int], Optional[Number]]] = None,
        seldom: bool = False,
    ) -> None:
        super().__init__(*columns)
        self.call = call
        self.convert = convert
        self.seldom = seldom


class FieldSum(Source):
    """A column made of field values: their sum, or with ``scales`` its growth per second times the scale.

    ``plans`` are alternative sets of fields, tried in order until the GPU knows one; each has its scale.
    ``begun`` counts how often it began anew.
    No value is above ``most``: the driver's clock and ours differ by a little.
    """

    def __init__(
        self,
        column: str,
        plans: Sequence[Sequence[Field]],
        scales: Sequence[float] = (),
        most: float = math.inf,
    ) -> None:
        super().__init__(column)
        self.column = column
        self.begun = 0
        self._plans = plans
        self._scales = scales
        self._plan = 0
        self.most = most

    @property
    def fields(self) -> Sequence[Field]:
        """The fields to ask for at present."""
        return self._plans[self._plan]

    @property
    def rated(self) -> bool:
        """Whether the column is the sum's growth, and not the sum itself."""
        return bool(self._scales)

    @property
    def scale(self) -> float:
        """What the growth per second is multiplied by."""
        return self._scales[self._plan]

    def give_up_plan(self) -> bool:
        """Whether there is another set of fields, which is then taken."""
        self._plan = (self._plan + 1) % len(self._plans)
        return self._plan > 0

    def reset(self) -> None:
        """Count from the next answer on."""
        self.begun += 1


class PcieCount(FieldSum):
    """PCIe bytes, from a counter that on most GPUs has 32 bits; ``unwrapped`` is to take each answer."""

    def __init__(self, column: str, field: int) -> None:
        super().__init__(column, [[(field, 0)]], [_BYTES_TO_MB])
        self.unwrapped = Unwrapped()

    def reset(self) -> None:
        """See FieldSum."""
        super().reset()
        self.unwrapped.reset()


_NUMBER, _LONG_NUMBER = "I", "Q"
_UTILIZATION = "II"  # nvmlUtilization_t: gpu, memory
_MEMORY, _MEMORY_V2 = "16xQ", "32xQ"  # nvmlMemory_t, nvmlMemory_v2_t: used, which comes last


def levels(nvml: Nvml) -> List[Levels]:
    """The questions that take a call each."""
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
        Levels(call("nvmlDeviceGetUtilizationRates", layout=_UTILIZATION), "util_pct", "mem_util_pct"),
        Levels(memory(), "mem_used_mib", convert=lambda used: used >> 20),
        Levels(call("nvmlDeviceGetPowerUsage"), "power_w", convert=lambda milliwatts: milliwatts / 1000),
        Levels(call("nvmlDeviceGetTemperature", api.NVML_TEMPERATURE_GPU), "temp_c"),
        Levels(call("nvmlDeviceGetClockInfo", api.NVML_CLOCK_SM), "sm_clock_mhz"),
        Levels(call("nvmlDeviceGetClockInfo", api.NVML_CLOCK_MEM), "mem_clock_mhz"),
        Levels(call("nvmlDeviceGetTotalEnergyConsumption", layout=_LONG_NUMBER), "energy_mj"),
        Levels(call(reasons if nvml.has(reasons) else before_535, layout=_LONG_NUMBER), "clock_reasons"),
        Levels(ecc(api.NVML_MEMORY_ERROR_TYPE_CORRECTED), "ecc_corrected", seldom=True),
        Levels(ecc(api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED), "ecc_uncorrected", seldom=True),
        Levels(
            call("nvmlDeviceGetPerformanceState"),
            "pstate",
            convert=lambda state: None if state == api.NVML_PSTATE_UNKNOWN else state,
        ),
    ]


def pcie_counts(api: Any) -> Tuple[PcieCount, PcieCount]:
    """PCIe traffic, sent and received by the GPU."""
    return (
        PcieCount("pcie_tx_mb_s", api.NVML_FI_DEV_PCIE_COUNT_TX_BYTES),
        PcieCount("pcie_rx_mb_s", api.NVML_FI_DEV_PCIE_COUNT_RX_BYTES),
    )


def field_sums(nvml: Nvml) -> List[FieldSum]:
    """The other questions that go together into one nvmlDeviceGetFieldValues call."""
    api = nvml.api

    def nvlink(column: str, kib: int, count: int) -> FieldSum:
        plans = [[(kib, ALL_LINKS)], [(count, ALL_LINKS)], [(count, link) for link in _NVLINKS]]
        return FieldSum(column, plans, [_KIB_TO_MB, _BYTES_TO_MB, _BYTES_TO_MB])

    def throttle(column: str, fields: Sequence[int], before_580_82: Sequence[int]) -> FieldSum:
        plans = [[(field, 0) for field in fields]]
        if nvml.driver_before(580, 82):
            plans.insert(0, [(field, 0) for field in before_580_82])
        return FieldSum(column, plans, [_NS_TO_PERCENT] * len(plans), most=100.0)

    sw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    hw_thermal = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    brake = api.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    power = api.NVML_FI_DEV_PERF_POLICY_POWER
    return [
        FieldSum("mem_temp_c", [[(api.NVML_FI_DEV_MEMORY_TEMP, 0)]]),
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
        # The driver's release 580.82 gave these three new numbers, and their old ones a new meaning.
        throttle("throttle_thermal_pct", [sw_thermal, hw_thermal], [251, 252]),
        throttle("throttle_brake_pct", [brake], [253]),
    ]
