"""PCIe traffic, away from the sampling thread: counters that wrap early, and GPUs without counters."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.nvml import UNSUPPORTED, Nvml, reason_of

# Bytes per second and lane by generation, one way, encoding taken off (PCI Express base specification).
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_FASTEST = (6, 16)
_MARGIN = 0.8
_KIB_TO_MB = 1024 / 10**6


def seconds_to_wrap(generation: Optional[int], width: Optional[int]) -> float:
    """How long a link at full speed takes to count 2**32 bytes; of a fast link where it isn't known."""
    lane = _LANE_BYTES.get(generation or 0)
    if lane is None or not width:
        generation, width = _FASTEST
        lane = _LANE_BYTES[generation]
    return float(2**32 / (lane * width))


class _Background:
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

    def step(self) -> float:
        """Do one step and return the seconds until the next."""
        raise NotImplementedError

    def close(self, timeout: float) -> bool:
        """End the thread; False when it is still at work after the time."""
        self._ended.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()


class WrapGuard(_Background):
    """Looks at counters of 32 bits between ticks, so that a wrap is never missed.

    At full speed a link of generation 5 with 16 lanes counts 2**32 bytes in 68 ms.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        super().__init__("pcie-wrap")
        self._nvml = nvml
        self._gpus = gpus
        self._periods: Dict[int, float] = {}

    def step(self) -> float:
        """Look at each counter that wasn't looked at for most of the time it may take to wrap."""
        wait = 1.0
        for gpu in self._gpus:
            if not (gpu.pcie_wraps and gpu.reachable):
                continue
            left = gpu.pcie_counted_at + self._period(gpu) - time.monotonic()
            if left <= 0:
                gpu.count_pcie()
                left = self._period(gpu)
            wait = min(wait, left)
        return wait

    def _period(self, gpu: Gpu) -> float:
        if gpu.index not in self._periods:
            api, maybe = self._nvml.api, self._nvml.maybe
            generation = maybe(api.nvmlDeviceGetMaxPcieLinkGeneration, gpu.handle)
            width = maybe(api.nvmlDeviceGetMaxPcieLinkWidth, gpu.handle)
            self._periods[gpu.index] = _MARGIN * seconds_to_wrap(generation, width)
        return self._periods[gpu.index]


class ThroughputMeter(_Background):
    """Measures PCIe of GPUs without counters once a second: each call takes the driver 20 ms.

    ``measured`` is set when each GPU has been tried.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        super().__init__("pcie-throughput")
        self._nvml = nvml
        self._gpus: List[Gpu] = list(gpus)
        self._latest: Dict[int, Tuple[float, float, float]] = {}
        self.measured = threading.Event()
        for gpu in gpus:
            gpu.pcie_meter = partial(self.latest, gpu)

    def latest(self, gpu: Gpu) -> Optional[Tuple[float, float]]:
        """MB/s sent and received by the GPU, None where the last measurement is older than three seconds."""
        tx, rx, at = self._latest.get(gpu.index, (0.0, 0.0, 0.0))
        return (tx, rx) if at and time.monotonic() - at < 3 else None

    def step(self) -> float:
        """Measure each GPU once."""
        begun = time.monotonic()
        for gpu in list(self._gpus):
            if gpu.reachable:
                self._measure(gpu)
        self.measured.set()
        return max(0.0, begun + 1 - time.monotonic())

    def _measure(self, gpu: Gpu) -> None:
        api: Any = self._nvml.api
        try:
            tx = api.nvmlDeviceGetPcieThroughput(gpu.handle, api.NVML_PCIE_UTIL_TX_BYTES)
            rx = api.nvmlDeviceGetPcieThroughput(gpu.handle, api.NVML_PCIE_UTIL_RX_BYTES)
        except self._nvml.Error as error:
            self._latest.pop(gpu.index, None)
            if error.value in UNSUPPORTED:
                self._gpus.remove(gpu)
                gpu.give_up_pcie(reason_of(error.value), told=self.measured.is_set())
            return
        self._latest[gpu.index] = (tx * _KIB_TO_MB, rx * _KIB_TO_MB, time.monotonic())
