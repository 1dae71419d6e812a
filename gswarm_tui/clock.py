"""The head's own clock, and what a node's is ahead of it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from gswarm_agent.frame import Clock


def steady_wall() -> Callable[[], float]:
    """A clock of Unix seconds that runs on from now whatever is done to the machine's.

    It counts while the machine sleeps, too. Times of one run keep their order and their distances thus.
    """
    ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + ahead


class Offset:
    """The node's clock minus the head's, from the exchange with the shortest round trip of the last eight."""

    def __init__(self) -> None:
        self._exchanges: deque[tuple[float, float]] = deque(maxlen=8)

    def add(self, clock: Clock, arrived_ns: int) -> None:
        """Take in an exchange whose answer arrived at the head's time ``arrived_ns`` (Unix nanoseconds)."""
        round_trip = (arrived_ns - clock.sent) - (clock.answered - clock.received)
        offset = ((clock.received - clock.sent) + (clock.answered - arrived_ns)) / 2
        self._exchanges.append((max(0, round_trip) / 1e9, offset / 1e9))

    def join(self, offset_s: float, round_trip_s: float) -> None:
        """Take in what was known of the same clock, unless one of the two was set since then."""
        best = min(self._exchanges, default=(math.inf, 0.0))
        if abs(best[1] - offset_s) <= (best[0] + round_trip_s) / 2:
            self._exchanges.append((round_trip_s, offset_s))

    @property
    def round_trip_s(self) -> float:
        """The shortest round trip of the last eight exchanges."""
        return min(self._exchanges)[0] if self._exchanges else 0.0

    @property
    def offset_s(self) -> float:
        """The offset; 0 where it lies within its own uncertainty, half of the round trip."""
        if not self._exchanges:
            return 0.0
        round_trip, offset = min(self._exchanges)
        return 0.0 if abs(offset) <= round_trip / 2 else offset
