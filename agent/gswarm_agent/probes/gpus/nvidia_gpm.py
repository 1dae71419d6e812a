"""Activity and PCIe traffic of Hopper and later GPUs, from NVML's GPU performance monitoring (GPM).

One call gives all metrics. Unlike the driver's byte counters of PCIe, which have 32 bits, it can't wrap
between two readings, and a reading costs half as much (docs/decisions/017-real-gpu.md).
"""

from __future__ import annotations

import math
from functools import partial

from gswarm_agent.metrics import ACTIVITY_COLUMNS, GPU_BY_NAME
from gswarm_agent.probes.gpus.nvidia_nvml import NOT_SUPPORTED, SUCCESS, UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, FrozenSet, Optional

    from gswarm_agent.frame import Number
    from gswarm_agent.probes.gpus.vendor import Values

_MIB_TO_MB = 2**20 / 10**6
_METRICS = {
    "pcie_tx_mb_s": (20, _MIB_TO_MB),
    "pcie_rx_mb_s": (21, _MIB_TO_MB),
    "sm_active_pct": (2, 1),
    "sm_occupancy_pct": (3, 1),
    "tensor_active_pct": (5, 1),
    "dram_active_pct": (10, 1),
    "fp64_active_pct": (11, 1),
    "fp32_active_pct": (12, 1),
    "fp16_active_pct": (13, 1),
    "c2c_tx_mb_s": (100, _MIB_TO_MB),
    "c2c_rx_mb_s": (101, _MIB_TO_MB),
}
"""Each column's number in nvmlGpmMetricId_t (nvml.h; older pynvml lacks names), and its factor."""
PCIE_COLUMNS = ("pcie_tx_mb_s", "pcie_rx_mb_s")
_SHARES = [name for name in ACTIVITY_COLUMNS if name.endswith("_pct")]
_LEAST_NS = round(0.95 * GPU_BY_NAME["pcie_tx_mb_s"].period_s * SECOND_NS)
"""Shortest time between two samples, somewhat less than the period, as ticks may come early.

For samples less than 50 ms apart an H200 sometimes returns 0 without an error; NVIDIA asks for 100 ms.
"""
_STRIKES = 3
_BUSY_PCT = 95

_BEFORE_HOPPER = "needs a GPU of the Hopper generation or later"
_REFUSED = "not permitted to this user; administrators can set NVreg_RestrictProfilingToAdminUsers=0"
_NO_PERMISSION = 4


class Gpm:
    """GPM of one GPU, or with ``refusal`` why it has none. ``reasons`` says why a column has no value.

    With the id of a GPU instance (MIG), it is that instance's.
    """

    def __init__(self, nvml: Nvml, handle: Any, instance: Optional[int] = None) -> None:
        api = nvml.api
        self._nvml = nvml
        self._take = partial(api.nvmlGpmSampleGet, handle)
        if instance is not None:
            self._take = partial(api.nvmlGpmMigSampleGet, handle, instance)
        self._older_ns: Optional[int] = None
        self._values: Dict[str, Number] = {}
        self._strikes = 0
        self.refusal = ""
        self.reasons: Dict[str, str] = {}
        try:
            if not api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise nvml.Error(NOT_SUPPORTED)
            self._older, self._newer = api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()
            self._query = api.c_nvmlGpmMetricsGet_t(
                version=api.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(_METRICS)
            )
            for metric, (number, _) in zip(self._query.metrics, _METRICS.values()):
                metric.metricId = number
            # The first sample raises the error that a user without permission would get later.
            self._take(self._older)
            self._take(self._newer)
        except nvml.Error as error:
            self._refuse(error.value)
        else:
            # The values of samples so close are useless, but the answer shows which metrics the GPU has.
            nvml.maybe(self._measure)

    def read(self, now_ns: int, off: FrozenSet[str], util_pct: Optional[Number]) -> Values:
        """Return the values since the last reading but for columns that are off; none at first.

        After an access to a wrong address (XID 31) the counters may stay at 0 (DCGM, issue 303): if a GPU is
        busy by ``util_pct`` and all are exactly 0, its activity is unknown.
        """
        if self.refusal or off.issuperset(_METRICS):
            self._older_ns = None
            self._values = {}
            return {}
        if self._older_ns is None or now_ns - self._older_ns >= _LEAST_NS:
            try:
                self._take(self._newer)
                self._values = {} if self._older_ns is None else self._measure()
            except self._nvml.Error as error:
                self._older_ns = None
                self._values = {}
                self._strikes += 1
                if error.value in UNSUPPORTED or self._strikes >= _STRIKES:
                    self._refuse(error.value)
                return {}
            self._older, self._newer, self._older_ns = self._newer, self._older, now_ns
            self._strikes = 0
        values: Values = {name: value for name, value in self._values.items() if name not in off}
        if (util_pct or 0) >= _BUSY_PCT and not any(values.get(name) for name in _SHARES):
            values.update(dict.fromkeys(_SHARES))
        return values

    def _measure(self) -> Dict[str, Number]:
        """Return what the GPU measured between both samples. Raises ``nvml.Error``."""
        self._query.sample1, self._query.sample2 = self._older, self._newer
        self._nvml.api.nvmlGpmMetricsGet(self._query)
        values: Dict[str, Number] = {}
        for metric, (name, (_, scale)) in zip(self._query.metrics, _METRICS.items()):
            if metric.nvmlReturn != SUCCESS:
                self.reasons[name] = reason_of(metric.nvmlReturn)
                continue
            self.reasons.pop(name, None)
            if math.isfinite(metric.value):
                values[name] = metric.value * scale
        return values

    def _refuse(self, code: int) -> None:
        words = {NOT_SUPPORTED: _BEFORE_HOPPER, _NO_PERMISSION: _REFUSED}
        self.refusal = words.get(code) or reason_of(code)
        self.reasons = dict.fromkeys(_METRICS, self.refusal)
