"""XIDs and other faults, from the driver's events."""

from __future__ import annotations

import ctypes
import threading
import time

from gswarm_agent.frame import ERROR, WARNING, Note
from gswarm_agent.probes.gpus.nvidia_nvml import TIMEOUT, UNSUPPORTED, Nvml, reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Tuple

    from gswarm_agent.probes.gpus.nvidia_gpu import Gpu

_WAIT_MS = 60_000
_PAUSE_S = 1.0
_QUIET_MS, _GATHER_S = 300, 1.0
"""Faults are noted together once no further event comes for a while, at the latest after a second."""

# Event types of nvml.h (nvmlEventType*) beside XIDs: the XID that says the same, the note's kind and text.
_EVENTS = {
    0x2: (48, "ecc", "uncorrectable memory error"),
    0x400: (63, "ecc", "a row of memory was remapped"),
    0x800: (64, "ecc", "remapping a row of memory failed"),
    0x1000: (94, "ecc", "a poisoned memory access was contained"),
    0x2000: (95, "ecc", "a poisoned memory access was not contained"),
    0x4000: (0, "health", "the GPU can't be used"),
    0x8000: (154, "health", "the driver asks for another recovery action; see recovery_action"),
}
_OTHERS = sum(_EVENTS)


class XidWatch:
    """Waits for events of all GPUs that were added, in its own thread, and adds a note for each.

    ``reasons`` holds, by index, why a GPU does not report events.
    """

    def __init__(self, nvml: Nvml, notes: List[Note]) -> None:
        self.reasons: Dict[int, str] = {}
        self._nvml, self._notes = nvml, notes
        self._indices: Dict[int, int] = {}  # by the handle's address
        self._events: Any = None
        self._xid: int = nvml.api.nvmlEventTypeXidCriticalError

    def add(self, gpu: Gpu) -> None:
        """Watch a GPU that answers."""
        api = self._nvml.api
        address = ctypes.addressof(gpu.handle.contents)
        try:
            if self._events is None:
                self._events = api.nvmlEventSetCreate()
            kinds = api.nvmlDeviceGetSupportedEventTypes(gpu.handle) & (self._xid | _OTHERS)
            if not kinds & self._xid:
                self.reasons[gpu.index] = "this GPU doesn't report XIDs"
            if kinds and address not in self._indices:
                api.nvmlDeviceRegisterEvents(gpu.handle, kinds, self._events)
                self._indices[address] = gpu.index
                if len(self._indices) == 1:
                    threading.Thread(target=self._work, name="xid", daemon=True).start()
        except self._nvml.Error as error:
            self.reasons[gpu.index] = reason_of(error.value)

    def _work(self) -> None:
        faults: Dict[Tuple[int, int, int], None] = {}
        until = 0.0
        while True:
            if faults and time.monotonic() > until:
                self._note(faults)
                faults = {}
            try:
                event = self._nvml.api.nvmlEventSetWait_v2(self._events, _QUIET_MS if faults else _WAIT_MS)
            except self._nvml.Error as error:
                self._note(faults)
                faults = {}
                if error.value in UNSUPPORTED:
                    self.reasons.update(dict.fromkeys(self._indices.values(), reason_of(error.value)))
                    return
                # With a lost GPU, the driver may return at once from each wait.
                if error.value != TIMEOUT:
                    time.sleep(_PAUSE_S)
                continue
            index = self._indices.get(ctypes.addressof(event.device.contents))
            if index is not None:
                until = until if faults else time.monotonic() + _GATHER_S
                faults[index, event.eventType, event.eventData if event.eventType == self._xid else 0] = None

    def _note(self, faults: Collection[Tuple[int, int, int]]) -> None:
        """Add a note for each fault, but for an event that only repeats an XID of its GPU."""
        notes: List[Note] = []
        for index, kind, xid in faults:
            if kind == self._xid:
                import json

                from gswarm_agent.probes.gpus.nvidia_xid_catalogue import describe

                text, words = describe(xid)
                severity = WARNING if words["immediate"] in ("IGNORE", "XID_154") else ERROR
                notes.append(Note("xid", severity, text, index, None, json.dumps(words)))
            elif kind in _EVENTS and (index, self._xid, _EVENTS[kind][0]) not in faults:
                _, name, text = _EVENTS[kind]
                notes.append(Note(name, WARNING if kind & 0x8400 else ERROR, text, index))
        self._notes += notes
