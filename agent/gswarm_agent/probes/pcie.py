"""PCIe traffic, away from the sampling thread: counters that wrap early, and GPUs without counters."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Optional, Tuple

from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.nvml import HANGS, UNSUPPORTED, Nvml, reason_of

# Bytes per second and lane by generation, one way, encoding taken off (PCI Express base specification).
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_FASTEST = (6, 16)
_MARGIN = 0.8
_PATIENCE_S = 3.0
_KIB_TO_MB = 1024 / 10**6


def seconds_to_wrap(generation: Optional[int], width: Optional[int]) -> float:
    """How long a link at full speed takes to count 2**32 bytes; of a fast link where it isn't known."""
    lane = _LANE_BYTES.get(generation or 0)
    if lane is None or not width:
        generation, width = _FASTEST
        lane = _LANE_BYTES[generation]
    return float(2**32 / (lane * width))


class _Background(ABC):
    """A thread that does a step again and again, waiting as long as each step says."""

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _work(self) -> None:
        while not self._ended.wait(self.step()):
            pass

    @abstractmethod
    def step(self) -> float:
        """Do one step and return the seconds until the next."""

    def close(self, timeout: float) -> bool:
        """End the thread; False when it is still at work after the time."""
        self._ended.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()


class WrapGuard(_Background):
    """Looks at a GPU's counters of 32 bits between ticks, so that a wrap is never missed.

    At full speed a link of generation 5 with 16 lanes counts 2**32 bytes in 68 ms.
    """

    def __init__(self, nvml: Nvml, gpu: Gpu) -> None:
        super().__init__("pcie-wrap")
        self._nvml = nvml
        self._gpu = gpu
        self._period: Optional[float] = None

    def step(self) -> float:
        """Look at the counters if nobody did for most of the time that they may take to wrap."""
        if not self._gpu.reachable:
            return 1.0
        if self._period is None:
            self._period = self._find_period()
        left = self._gpu.pcie_counted_at + self._period - time.monotonic()
        if left > 0:
            return left
        self._gpu.count_pcie()
        return self._period

    def _find_period(self) -> float:
        api, maybe = self._nvml.api, self._nvml.maybe
        generation = maybe(api.nvmlDeviceGetMaxPcieLinkGeneration, self._gpu.handle)
        width = maybe(api.nvmlDeviceGetMaxPcieLinkWidth, self._gpu.handle)
        return _MARGIN * seconds_to_wrap(generation, width)


class ThroughputMeter(_Background):
    """Measures PCIe of a GPU without counters once a second: each call takes the driver 20 ms.

    ``measured`` is set when the GPU has been tried.
    """

    def __init__(self, nvml: Nvml, gpu: Gpu) -> None:
        super().__init__("pcie-throughput")
        self._nvml = nvml
        self._gpu = gpu
        self._latest: Optional[Tuple[float, float]] = None
        self._asked_at: Optional[float] = None
        self.measured = threading.Event()
        gpu.pcie_meter = self.latest

    def latest(self) -> Optional[Tuple[float, float]]:
        """MB/s sent and received by the GPU, None where it gave no answer; one that hangs is given up."""
        asked_at = self._asked_at
        if asked_at is None or time.monotonic() - asked_at < _PATIENCE_S:
            return self._latest
        self._give_up(HANGS, told=True)
        return None

    def step(self) -> float:
        """Measure once."""
        begun = self._asked_at = time.monotonic()
        self._latest = self._measure() if self._gpu.reachable else None
        self._asked_at = None
        self.measured.set()
        return max(0.0, begun + 1 - time.monotonic())

    def _measure(self) -> Optional[Tuple[float, float]]:
        api: Any = self._nvml.api
        try:
            tx = api.nvmlDeviceGetPcieThroughput(self._gpu.handle, api.NVML_PCIE_UTIL_TX_BYTES)
            rx = api.nvmlDeviceGetPcieThroughput(self._gpu.handle, api.NVML_PCIE_UTIL_RX_BYTES)
        except self._nvml.Error as error:
            if error.value in UNSUPPORTED:
                self._give_up(reason_of(error.value), told=self.measured.is_set())
            return None
        return tx * _KIB_TO_MB, rx * _KIB_TO_MB

    def _give_up(self, reason: str, told: bool) -> None:
        self._ended.set()
        self._gpu.give_up_pcie(reason, told)
