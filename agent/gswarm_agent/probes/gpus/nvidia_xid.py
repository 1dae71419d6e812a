"""XID errors and double-bit ECC errors, from the driver's events."""

from __future__ import annotations

import ctypes
import threading
import time

from gswarm_agent.frame import ERROR, Note
from gswarm_agent.probes.gpus.nvidia_nvml import TIMEOUT, UNSUPPORTED, Nvml, reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

    from gswarm_agent.probes.gpus.nvidia_gpu import Gpu

_WAIT_MS = 60_000
_PAUSE_S = 1.0

# The XIDs that end jobs most often, from NVIDIA's "XID Errors" documentation.
_MEANINGS = {
    13: "graphics engine exception, mostly a fault of the program",
    31: "memory page fault, mostly a fault of the program",
    43: "the GPU stopped processing, mostly a fault of the program",
    45: "work was cleaned up after an earlier error",
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "a memory page or row was retired",
    64: "retiring a memory page or row failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timed out",
    119: "the GPU's system processor timed out",
    120: "error on the GPU's system processor",
    140: "unrecovered ECC error",
    145: "NVLink remap error",
    149: "NVLink error",
    154: "the GPU needs a recovery action",
}


class XidWatch:
    """Waits for events of all GPUs that were added, in its own thread, and adds a note for each.

    ``reasons`` holds, by index, why a GPU does not report events.
    """

    def __init__(self, nvml: Nvml, notes: List[Note]) -> None:
        self.reasons: Dict[int, str] = {}
        self._nvml, self._notes = nvml, notes
        self._indices: Dict[int, int] = {}  # by the handle's address
        self._events: Any = None

    def add(self, gpu: Gpu) -> None:
        """Watch a GPU that answers."""
        api = self._nvml.api
        wanted = api.nvmlEventTypeXidCriticalError | api.nvmlEventTypeDoubleBitEccError
        address = ctypes.addressof(gpu.handle.contents)
        try:
            if self._events is None:
                self._events = api.nvmlEventSetCreate()
            kinds = api.nvmlDeviceGetSupportedEventTypes(gpu.handle) & wanted
            if not kinds & api.nvmlEventTypeXidCriticalError:
                self.reasons[gpu.index] = "this GPU doesn't report XIDs"
            if kinds and address not in self._indices:
                api.nvmlDeviceRegisterEvents(gpu.handle, kinds, self._events)
                self._indices[address] = gpu.index
                if len(self._indices) == 1:
                    threading.Thread(target=self._work, name="xid", daemon=True).start()
        except self._nvml.Error as error:
            self.reasons[gpu.index] = reason_of(error.value)

    def _work(self) -> None:
        while True:
            try:
                event = self._nvml.api.nvmlEventSetWait_v2(self._events, _WAIT_MS)
            except self._nvml.Error as error:
                if error.value in UNSUPPORTED:
                    self.reasons.update(dict.fromkeys(self._indices.values(), reason_of(error.value)))
                    return
                # With a lost GPU, the driver may return at once from each wait.
                if error.value != TIMEOUT:
                    time.sleep(_PAUSE_S)
                continue
            index = self._indices.get(ctypes.addressof(event.device.contents))
            if index is None:
                continue
            if event.eventType == self._nvml.api.nvmlEventTypeXidCriticalError:
                meaning = _MEANINGS.get(event.eventData)
                text = f"XID {event.eventData} on GPU {index}" + (f": {meaning}" if meaning else "")
                self._notes.append(Note("xid", ERROR, text, index))
            else:
                self._notes.append(Note("ecc", ERROR, f"double-bit ECC error on GPU {index}", index))
