"""XIDs, from the driver's events."""

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
            kinds = api.nvmlDeviceGetSupportedEventTypes(gpu.handle) & self._xid
            if not kinds:
                self.reasons[gpu.index] = "this GPU doesn't report XIDs"
            elif address not in self._indices:
                api.nvmlDeviceRegisterEvents(gpu.handle, kinds, self._events)
                self._indices[address] = gpu.index
                if len(self._indices) == 1:
                    threading.Thread(target=self._work, name="xid", daemon=True).start()
        except self._nvml.Error as error:
            self.reasons[gpu.index] = reason_of(error.value)

    def _work(self) -> None:
        faults: Dict[Tuple[int, int], None] = {}
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
                faults[index, event.eventData] = None

    def _note(self, faults: Collection[Tuple[int, int]]) -> None:
        """Add a note for each GPU and XID."""
        if faults:
            import json

            from gswarm_agent.probes.gpus.nvidia_xid_catalogue import describe
        for index, xid in faults:
            text, words = describe(xid)
            severity = WARNING if words["immediate"] in ("IGNORE", "XID_154") else ERROR
            self._notes.append(Note("xid", severity, text, index, None, json.dumps(words)))
