"""PCIe traffic of Hopper and later GPUs, from NVML's GPU performance monitoring (GPM).

Unlike the driver's byte counters, which have 32 bits, it can't wrap between two readings, and a reading costs
half as much (docs/decisions/017-real-gpu.md).
"""

from __future__ import annotations

import math

from gswarm_agent.metrics import GPU_BY_NAME
from gswarm_agent.probes.gpus.nvidia_nvml import Nvml
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional, Tuple

_MIB_TO_MB = 2**20 / 10**6
_LEAST_NS = round(0.95 * GPU_BY_NAME["pcie_tx_mb_s"].period_s * SECOND_NS)
"""Shortest time between two samples, somewhat less than the period for ticks that come early.

Of samples less than 50 ms apart a H200 sometimes says 0, without an error; NVIDIA asks for 100 ms.
"""


class PcieGpm:
    """PCIe traffic of one GPU between two readings."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        """Raises ``nvml.Error``, also where the GPU has no GPM."""
        api = nvml.api
        if not api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise nvml.Error(api.NVML_ERROR_NOT_SUPPORTED)
        self._nvml, self._handle = nvml, handle
        self._older, self._newer = api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()
        self._older_ns: Optional[int] = None
        self._traffic: Optional[Tuple[float, float]] = None
        self._metrics = api.c_nvmlGpmMetricsGet_t(version=api.NVML_GPM_METRICS_GET_VERSION, numMetrics=2)
        self._sent, self._received = self._metrics.metrics[0], self._metrics.metrics[1]
        self._sent.metricId = api.NVML_GPM_METRIC_PCIE_TX_PER_SEC
        self._received.metricId = api.NVML_GPM_METRIC_PCIE_RX_PER_SEC
        api.nvmlGpmSampleGet(handle, self._older)  # raises what a user without permission would meet later

    def __del__(self) -> None:
        """Free the samples: a GPU that is lost again and again gets new ones each time."""
        for sample in (vars(self).get("_older"), vars(self).get("_newer")):
            if sample is not None:
                self._nvml.maybe(self._nvml.api.nvmlGpmSampleFree, sample)

    def read(self, now_ns: int) -> Optional[Tuple[float, float]]:
        """Return MB/s that the GPU sent and received between the last two samples, None at first.

        Raises ``nvml.Error``.
        """
        if self._older_ns is not None and now_ns - self._older_ns < _LEAST_NS:
            return self._traffic
        self._nvml.api.nvmlGpmSampleGet(self._handle, self._newer)
        traffic = None
        if self._older_ns is not None:
            self._metrics.sample1, self._metrics.sample2 = self._older, self._newer
            self._nvml.api.nvmlGpmMetricsGet(self._metrics)
            if code := self._sent.nvmlReturn or self._received.nvmlReturn:
                raise self._nvml.Error(code)
            traffic = self._sent.value * _MIB_TO_MB, self._received.value * _MIB_TO_MB
        self._older, self._newer, self._older_ns = self._newer, self._older, now_ns
        self._traffic = traffic if traffic is not None and math.isfinite(sum(traffic)) else None
        return self._traffic

    def reset(self) -> None:
        """Forget the last reading."""
        self._older_ns = None
