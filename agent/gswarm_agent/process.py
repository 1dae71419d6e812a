"""The agent as a process: its name, its signals, its standard streams."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Sequence, Tuple


def name_process() -> None:
    """Appear as gswarm-agent in ps and top, whatever the interpreter's name is."""
    with suppress(OSError), open("/proc/self/comm", "w") as comm:  # noqa: PTH123  # pathlib is slow to import
        comm.write("gswarm-agent")


class Signals:
    """Signals that end the agent, as bytes on a descriptor: handlers that take locks may deadlock.

    ``reading`` becomes readable after a signal, or when another thread has called ``wake``.
    """

    def __init__(self, ending: Sequence[signal.Signals], ignored: Sequence[signal.Signals] = ()) -> None:
        self.reading, self._writing = os.pipe()
        os.set_blocking(self.reading, False)
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in ending:
            signal.signal(number, lambda _number, _frame: None)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    def wake(self) -> None:
        """Make ``reading`` readable."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def take(self) -> List[int]:
        """Return the signals since the last call."""
        try:
            return [number for number in os.read(self.reading, 4096) if number]
        except BlockingIOError:
            return []


def protect_standard_streams() -> Tuple[int, int]:
    """Return descriptors for the wire alone; other prints go to stderr and can't corrupt the wire."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return wire_in, wire_out
