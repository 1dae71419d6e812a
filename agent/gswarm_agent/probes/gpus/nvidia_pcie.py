"""PCIe traffic of GPUs without performance monitoring (before Hopper), measured once a second.

``nvmlDeviceGetPcieThroughput`` watches the link for 20 ms in each call, so a thread of its own calls it, and
no tick waits.
"""

from __future__ import annotations

import threading
import time

from gswarm_agent.probes.gpus.nvidia_nvml import UNSUPPORTED, Nvml, reason_of
from gswarm_agent.probes.gpus.vendor import IDLE, Whereabouts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

_EVERY_S = 1.0
_KIB_TO_MB = 1024 / 10**6
LANE = 1
"""The thread's lane in ``Whereabouts``."""


class ThroughputLane:
    """A thread that measures the GPUs that were added, and keeps the newest MB/s of each.

    ``reasons`` says by index why a GPU can't be measured.
    """

    def __init__(self, nvml: Nvml, whereabouts: Whereabouts) -> None:
        self.reasons: Dict[int, str] = {}
        self._on = True
        self._nvml, self._whereabouts = nvml, whereabouts
        self._handles: Dict[int, Any] = {}
        self._latest: Dict[int, Tuple[float, float]] = {}
        self._thread: Optional[threading.Thread] = None

    def add(self, index: int, handle: Any) -> None:
        """Measure a GPU from now on; find out at once whether that is possible."""
        try:
            self._nvml.api.nvmlDeviceGetPcieThroughput(handle, self._nvml.api.NVML_PCIE_UTIL_TX_BYTES)
        except self._nvml.Error as error:
            if error.value in UNSUPPORTED:
                self.reasons[index] = reason_of(error.value)
                return
        self.reasons.pop(index, None)
        self._handles[index] = handle
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pcie", daemon=True)
            self._thread.start()

    def switch(self, *, on: bool) -> None:
        """Measure from now on, or no longer."""
        self._on = on
        if not on:
            self._latest.clear()

    def latest(self, index: int) -> Optional[Tuple[float, float]]:
        """Return the newest MB/s that a GPU sent and received, None if unknown."""
        return self._latest.get(index)

    def _work(self) -> None:
        api, due = self._nvml.api, time.monotonic()
        while True:
            for index, handle in list(self._handles.items()) if self._on else ():
                self._whereabouts.enter(index, lane=LANE)
                try:
                    sent = api.nvmlDeviceGetPcieThroughput(handle, api.NVML_PCIE_UTIL_TX_BYTES)
                    self._whereabouts.enter(index, lane=LANE)
                    received = api.nvmlDeviceGetPcieThroughput(handle, api.NVML_PCIE_UTIL_RX_BYTES)
                    self._latest[index] = sent * _KIB_TO_MB, received * _KIB_TO_MB
                except self._nvml.Error:
                    self._latest.pop(index, None)
            self._whereabouts.enter(IDLE, lane=LANE)
            due = max(due + _EVERY_S, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
