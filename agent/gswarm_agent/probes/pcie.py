"""PCIe traffic, read in a thread of its own: counters that wrap early, and GPUs without counters and GPM."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from functools import partial

from gswarm_agent.probes.gpu import Gpu
from gswarm_agent.probes.nvml import HANGS, UNSUPPORTED, Call, CallQuery, Nvml, reason_of
from gswarm_agent.probes.workers import QuickEvent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Sequence, Tuple

# Bytes per second and lane by generation, one way, encoding taken off (PCI Express base specification).
_LANE_BYTES = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_FASTEST = (6, 16)
_MARGIN = 0.6
"""Counters are read after this share of the time to wrap: on a busy node a thread is sometimes late."""
_SLOW_GPU_S = 0.5
_PATIENCE_S = 3.0
_NO_GPU_S = 1.0
_KIB_TO_MB = 1024 / 10**6


def lane_bytes(generation: int) -> float:
    """Return the bytes per second of one lane in one direction; later generations count as the last known."""
    return _LANE_BYTES[min(max(generation, 1), max(_LANE_BYTES))]


def seconds_to_wrap(generation: Optional[int], width: Optional[int]) -> float:
    """Return the seconds that 2**32 bytes take at full speed; an unknown link counts as the fastest."""
    lane = _LANE_BYTES.get(generation or 0)
    if lane is None or not width:
        generation, width = _FASTEST
        lane = _LANE_BYTES[generation]
    return float(2**32 / (lane * width))


class GpuPoller(ABC):
    """A thread that polls GPUs in turn.

    A GPU that hangs keeps the thread; ``isolate_slow_gpu`` gives the other GPUs to a new thread.
    """

    def __init__(self, name: str, gpus: Sequence[Gpu]) -> None:
        self._name = name
        self._gpus = list(gpus)
        self._lock = threading.Lock()
        self._ended = QuickEvent()
        self._visit: Optional[Tuple[Gpu, float]] = None
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._work, name=self._name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _work(self) -> None:
        thread = threading.current_thread()
        while not self._ended.wait(self.pause()):
            for gpu in list(self._gpus):
                self._visit = gpu, time.monotonic()
                self.visit(gpu)
                with self._lock:
                    if self._thread is not thread:
                        self._gpus.append(gpu)
                        return
                    self._visit = None

    @abstractmethod
    def pause(self) -> float:
        """Return the seconds until the next round."""

    @abstractmethod
    def visit(self, gpu: Gpu) -> None:
        """Read from a GPU, once in each round."""

    def isolate_slow_gpu(self) -> None:
        """Move the other GPUs to a new thread if one takes long; to be called at each tick."""
        with self._lock:
            if self._visit is None or time.monotonic() - self._visit[1] < _SLOW_GPU_S:
                return
            self._gpus.remove(self._visit[0])
            self._visit = None
            self._thread = self._new_thread()
            self._thread.start()

    def close(self, timeout: float) -> bool:
        """End the thread; False when it is still running after the timeout."""
        self._ended.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()


class WrapGuard(GpuPoller):
    """Reads PCIe counters of 32 bits between ticks, so that no wrap is missed.

    At full speed a link of generation 5 with 16 lanes counts 2**32 bytes in 68 ms.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        super().__init__("pcie-wrap", gpus)
        self._nvml = nvml
        self._periods: Dict[int, float] = {}
        self._round_at = 0.0

    def pause(self) -> float:
        """Return the seconds until the counters have to be read again, well before they wrap."""
        now, period = time.monotonic(), min(self._periods.values(), default=0.0)
        counted_at = [gpu.pcie_counted_at for gpu in self._gpus if gpu.reachable and self._wraps(gpu)]
        if not counted_at:
            return _NO_GPU_S
        # A GPU that could not be read in the last round isn't tried again at once.
        due = max(min(counted_at) + period, self._round_at + period / 2)
        self._round_at = max(now, due)
        return self._round_at - now

    def visit(self, gpu: Gpu) -> None:
        """Read a GPU's counters, if they wrap."""
        if not (gpu.reachable and self._wraps(gpu)):
            return
        if gpu.index not in self._periods:
            gpu.pcie_wraps_s = self._seconds_to_wrap(gpu)
            self._periods[gpu.index] = _MARGIN * gpu.pcie_wraps_s
        gpu.count_pcie()

    def _wraps(self, gpu: Gpu) -> bool:
        return gpu.index in self._periods or gpu.pcie_wraps

    def _seconds_to_wrap(self, gpu: Gpu) -> float:
        api, maybe = self._nvml.api, self._nvml.maybe
        generation = maybe(api.nvmlDeviceGetMaxPcieLinkGeneration, gpu.handle)
        width = maybe(api.nvmlDeviceGetMaxPcieLinkWidth, gpu.handle)
        return seconds_to_wrap(generation, width)


class ThroughputMeter(GpuPoller):
    """Measures PCIe of GPUs without counters once a second; each call takes the driver 20 ms.

    ``tried`` is set when each GPU has been measured once. PCIe of a GPU that can't be measured is disabled,
    with a note if ``leaves_notes`` is set.
    """

    def __init__(self, nvml: Nvml, gpus: Sequence[Gpu]) -> None:
        super().__init__("pcie-throughput", gpus)
        function = nvml.function("nvmlDeviceGetPcieThroughput")
        directions = nvml.api.NVML_PCIE_UTIL_TX_BYTES, nvml.api.NVML_PCIE_UTIL_RX_BYTES
        calls = [Call(function, "I", (direction,)) for direction in directions]
        self._queries = {gpu.index: CallQuery(calls) for gpu in gpus}
        self._latest: Dict[int, Optional[Tuple[float, float]]] = {}
        self._visited_at: Dict[int, float] = {}
        self._next = time.monotonic()
        self.tried = threading.Event()
        self.leaves_notes = False
        for gpu in gpus:
            gpu.pcie_meter = partial(self.latest, gpu)

    def latest(self, gpu: Gpu) -> Optional[Tuple[float, float]]:
        """Return MB/s sent and received by a GPU, None without an answer. Disables PCIe of one that hangs."""
        visited_at = self._visited_at.get(gpu.index)
        if visited_at is None or time.monotonic() - visited_at < _PATIENCE_S:
            return self._latest.get(gpu.index)
        gpu.disable_pcie(HANGS, note=True)
        return None

    def pause(self) -> float:
        """Return the time until the next second."""
        now = time.monotonic()
        if self._latest:
            self.tried.set()
        begins, self._next = max(now, self._next), max(now, self._next) + 1
        return begins - now

    def visit(self, gpu: Gpu) -> None:
        """Measure a GPU's PCIe traffic."""
        self._visited_at[gpu.index] = time.monotonic()
        self._latest[gpu.index] = self._measure(gpu) if gpu.reachable and gpu.pcie_meter is not None else None
        del self._visited_at[gpu.index]

    def _measure(self, gpu: Gpu) -> Optional[Tuple[float, float]]:
        codes, (tx, rx) = self._queries[gpu.index].run(gpu.handle)
        never = next((code for code in codes if code in UNSUPPORTED), None)
        if never is not None:
            gpu.disable_pcie(reason_of(never), note=self.leaves_notes)
        if any(codes):
            return None
        return tx * _KIB_TO_MB, rx * _KIB_TO_MB
