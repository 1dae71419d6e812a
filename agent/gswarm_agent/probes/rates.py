"""Counters to rates. All times are monotonic nanoseconds, passed in."""

from __future__ import annotations

import math
from operator import sub

from gswarm_agent.frame import Number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Mapping, Optional, Sequence, Tuple

_WRAP = 2**32
SECOND_NS = 1_000_000_000


class Rates:
    """The growth per second of some counters, of each between two readings in which it had an answer.

    None at a counter's first reading and once when it went backwards (a reset).
    """

    __slots__ = ("_times", "_values")

    def __init__(self, count: int) -> None:
        self._values: Sequence[Number] = [math.nan] * count
        self._times: Sequence[int] = [0] * count

    def update(self, values: Sequence[Optional[Number]], now_ns: int) -> List[Optional[float]]:
        """Take a reading of all; a counter without an answer keeps its last one as the starting point."""
        return self.update_each(values, (now_ns,) * len(values))

    def update_each(self, values: Sequence[Optional[Number]], times: Sequence[int]) -> List[Optional[float]]:
        """Take a reading of all, each at its own time."""
        numbers = [math.nan if value is None else value for value in values]
        spans = map(sub, times, self._times)
        # What isn't known makes NaN, which isn't at least 0, and neither is what went backwards.
        rates = [
            growth * SECOND_NS / span if growth >= 0 and span > 0 else None
            for growth, span in zip(map(sub, numbers, self._values), spans)
        ]
        if None in values:
            known = [value is not None for value in values]
            numbers = [new if has else old for has, new, old in zip(known, numbers, self._values)]
            times = [new if has else old for has, new, old in zip(known, times, self._times)]
        self._values, self._times = numbers, times
        return rates

    def reset(self, counter: int) -> None:
        """Forget the last reading of a counter."""
        self._values = [*self._values[:counter], math.nan, *self._values[counter + 1 :]]


class SummedRates:
    """The growth per second of several counters, summed over devices that may come and go.

    A device counts from its second reading on; one whose counters went backwards is left out once.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._before: Optional[Mapping[str, Tuple[int, ...]]] = None
        self._at = 0

    def update(self, counts: Mapping[str, Tuple[int, ...]], now_ns: int) -> Optional[Tuple[float, ...]]:
        """Counters by device in, one rate for each counter out; None at the first reading."""
        before, at = self._before, self._at
        self._before, self._at = dict(counts), now_ns
        if before is None or now_ns <= at:
            return None
        sums = [0] * self._width
        for device, values in counts.items():
            earlier = before.get(device)
            if earlier is None or any(now < then for now, then in zip(values, earlier)):
                continue
            for column in range(self._width):
                sums[column] += values[column] - earlier[column]
        return tuple(total * SECOND_NS / (now_ns - at) for total in sums)


class Unwrapped:
    """A counter of 32 bits, which wraps, told as one that doesn't.

    Right as long as fewer than 2**32 counts pass between two readings; ``pcie.WrapGuard`` sees to that.
    """

    __slots__ = ("_raw", "_total", "narrow")

    def __init__(self) -> None:
        self._raw: Optional[Number] = None
        self._total: Number = 0
        self.narrow = False

    def update(self, raw: Number, narrow: bool) -> Number:
        """Take a raw reading. ``narrow``: the driver declares it as 32 bits.

        A counter declared wider that falls from below 2**32 is taken to be narrow as well. Any other fall is
        a reset: the total falls with it.
        """
        before, self._raw = self._raw, raw
        self.narrow = self.narrow or narrow
        if before is None or before >= _WRAP:
            self._total = raw
        elif raw < before:
            self.narrow = True
            self._total += raw - before + _WRAP
        else:
            self._total += raw - before
        return self._total

    def reset(self) -> None:
        """Forget all readings."""
        self._raw = None
        self._total = 0
