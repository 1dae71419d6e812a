"""Listings of a node, such as its ports: each row is read in a thread of its own.

A dead file server or a stuck adapter blocks the thread that reads it, for minutes or until the node is
rebooted. This must neither stop the agent's ticks nor keep the other rows from being read.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from gswarm_agent.metrics import LISTING_S
from gswarm_agent.probes.rates import SECOND_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Mapping, Optional, Sequence, Set, TypeAlias

    from gswarm_agent.frame import NamedRow, Row

    Readers: TypeAlias = "Mapping[str, Callable[[], Row]]"

_PERIOD_NS = round((LISTING_S - 0.05) * SECOND_NS)
"""Somewhat less than the period, so that a tick that comes early finds a listing due."""
_WAIT_S = 0.02
"""Time for which a tick waits for all rows; an answer that takes longer goes with the next listing."""


class Listing:
    """Reads named rows every 10 s; ``find`` returns a function for each, and must not block.

    ``hung`` are the rows whose function hasn't returned since the listing before: they have no values.
    """

    def __init__(self, find: Callable[[int], Readers]) -> None:
        self.hung: Sequence[str] = ()
        self._find = find
        self._rows: Dict[str, Optional[Row]] = {}
        self._running: Set[str] = set()
        self._due = 0

    def take(self, now_ns: int) -> Optional[Sequence[NamedRow]]:
        """Return the rows every 10 s, None at other times."""
        if now_ns < self._due:
            return None
        self._due = now_ns + _PERIOD_NS
        readers = self._find(now_ns)
        self.hung = [name for name in readers if name in self._running]
        threads = [self._start(name, read) for name, read in readers.items() if name not in self.hung]
        until = time.monotonic() + _WAIT_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return [(name, None if name in self.hung else self._rows.get(name)) for name in readers]

    def _start(self, name: str, read: Callable[[], Row]) -> threading.Thread:
        def work() -> None:
            row: Optional[Row] = None
            with suppress(OSError, ValueError, LookupError):
                row = read()
            self._rows[name] = row
            self._running.discard(name)

        self._running.add(name)
        thread = threading.Thread(target=work, name=f"listing {name}", daemon=True)
        thread.start()
        return thread
