"""Rates of growing counters. All times are monotonic nanoseconds that the caller passes in."""

from __future__ import annotations

from gswarm_agent.frame import Number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Mapping, Optional, Tuple

SECOND_NS = 1_000_000_000


class Rate:
    """The growth per second of one counter, between two readings in which it had a value."""

    __slots__ = ("_time", "_value")

    def __init__(self) -> None:
        self._value: Optional[Number] = None
        self._time = 0

    def update(self, value: Optional[Number], now_ns: int) -> Optional[float]:
        """Take a reading and return the rate since the one before.

        None at the first reading, for a reading without a value, and once after the counter fell (a reset).
        """
        if value is None:
            return None
        before, span = self._value, now_ns - self._time
        self._value, self._time = value, now_ns
        if before is None or value < before or span <= 0:
            return None
        return (value - before) * SECOND_NS / span

    def reset(self) -> None:
        """Forget the last reading."""
        self._value = None


class SummedRates:
    """The growth per second of several counters, summed over devices that may appear and disappear.

    A device counts from its second reading on, and is left out once when one of its counters fell.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._before: Optional[Mapping[str, Tuple[int, ...]]] = None
        self._time = 0

    def update(self, counts: Mapping[str, Tuple[int, ...]], now_ns: int) -> Optional[Tuple[float, ...]]:
        """Take the counters of each device; return one rate for each counter, None at the first reading."""
        before, time = self._before, self._time
        self._before, self._time = dict(counts), now_ns
        if before is None or now_ns <= time:
            return None
        sums = [0] * self._width
        for device, values in counts.items():
            earlier = before.get(device)
            if earlier is None or any(now < then for now, then in zip(values, earlier)):
                continue
            for column in range(self._width):
                sums[column] += values[column] - earlier[column]
        return tuple(total * SECOND_NS / (now_ns - time) for total in sums)
