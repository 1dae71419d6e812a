"""The head's own clock, what a node's is ahead of it, and when a node's readings were taken by it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gswarm_agent.frame import ClockExchange

PROMPT_MS = 5.0
SLEW = 0.1
DRIFT = 50e-6
"""Crystals run apart by no more."""
EXCHANGES_KEPT = 8
WELL_KNOWN_S = 0.010
"""A round trip so short tells a clock to 5 ms."""
SET_S = 5.0
"""An offset that rises by more is no better estimate: a clock was set, or stood still."""
BENDS_KEPT = 256

Placed = tuple[int, float]
"""A reading's time by the node's clock [ns], and the time that it was given [Unix seconds]."""


def steady_wall() -> Callable[[], float]:
    """A clock of Unix seconds that runs on from now whatever is done to the machine's.

    It counts while the machine sleeps, too. Times of one run keep their order and their distances thus.
    """
    ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + ahead


class _Exchange(NamedTuple):
    """What a ping told: when it was answered, by the head's clock, and what it took, in seconds."""

    at_s: float
    round_trip_s: float
    offset_s: float

    def uncertain_s(self, now_s: float) -> float:
        """How wrong its offset can be now: by half of the round trip, and by what clocks ran apart since."""
        return self.round_trip_s / 2 + DRIFT * (now_s - self.at_s)

    def agrees(self, other: _Exchange, now_s: float) -> bool:
        """Whether both can be true of one clock that nobody has set."""
        return abs(self.offset_s - other.offset_s) <= self.uncertain_s(now_s) + other.uncertain_s(now_s)


class Offset:
    """The node's clock minus the head's, from the least uncertain of the last eight exchanges.

    Those that a newer one contradicts are of a clock that was set since then, and count no more.
    """

    def __init__(self) -> None:
        self._exchanges: list[_Exchange] = []
        self._best = _Exchange(0.0, math.inf, 0.0)

    def add(self, clock: ClockExchange, arrived_ns: int) -> None:
        """Take in an exchange whose answer arrived at the head's time ``arrived_ns`` (Unix nanoseconds)."""
        round_trip = (arrived_ns - clock.sent) - (clock.answered - clock.received)
        offset = ((clock.received - clock.sent) + (clock.answered - arrived_ns)) / 2
        new = _Exchange(arrived_ns / 1e9, max(0, round_trip) / 1e9, offset / 1e9)
        self._exchanges = [one for one in self._exchanges if one.agrees(new, new.at_s)][-EXCHANGES_KEPT + 1 :]
        self._take(new)

    def join(self, offset_s: float, round_trip_s: float) -> None:
        """Take in what was known of the same clock, unless one of the two was set since then."""
        known = self._best._replace(round_trip_s=round_trip_s, offset_s=offset_s)
        if known.agrees(self._best, self._best.at_s):
            self._take(known)

    def _take(self, exchange: _Exchange) -> None:
        self._exchanges.append(exchange)
        now_s = exchange.at_s
        self._best = min(self._exchanges, key=lambda one: one.uncertain_s(now_s))

    @property
    def round_trip_s(self) -> float:
        """The round trip of the exchange that counts."""
        return self._best.round_trip_s

    @property
    def offset_s(self) -> float:
        """The offset; 0 where it lies within its own uncertainty, half of the round trip."""
        _, round_trip, offset = self._best
        return 0.0 if abs(offset) <= round_trip / 2 else offset


class NodeClock:
    """What a link knows of its node's clock: each connection measures it anew, and readings keep their times.

    What was found while a run of the agent, a life, spoke stays the offset of that life's readings, also of
    those that come when another one has begun.
    """

    def __init__(self) -> None:
        self._offset = Offset()
        self._speaking: str | None = None
        self._offsets: dict[str, tuple[float, float]] = {}
        self._timelines = Timelines()

    def resume(self, life: str, offset_s: float, round_trip_s: float, last: Placed | None) -> None:
        """Go on with what a head before this one found, and behind the last reading that it placed."""
        self._offsets[life] = offset_s, round_trip_s
        self._timelines.resume(life, last)

    def begin(self) -> None:
        """A connection begins: what others measured counts no more, and no life speaks yet."""
        self._offset, self._speaking = Offset(), None

    def add(self, clock: ClockExchange, at_s: float) -> tuple[float, float] | None:
        """Take in an exchange whose answer arrived at the head's time ``at_s`` (Unix seconds).

        Returns the offset and its round trip in seconds, or None while no life speaks.
        """
        self._offset.add(clock, round(at_s * 1e9))
        return None if self._speaking is None else self._keep(self._speaking)

    def live(self, life: str, clock: ClockExchange, at_s: float) -> tuple[float, float]:
        """A life speaks, and this is its first exchange; returns the offset and its round trip in seconds."""
        self._offset.add(clock, round(at_s * 1e9))
        if life in self._offsets:  # the first exchange of a connection is often a slow one
            self._offset.join(*self._offsets[life])
        self._speaking = life
        return self._keep(life)

    def _keep(self, life: str) -> tuple[float, float]:
        self._offsets[life] = found = self._offset.offset_s, self._offset.round_trip_s
        return found

    @property
    def is_well_known(self) -> bool:
        """Whether this connection has measured it to within a few milliseconds."""
        return self._offset.round_trip_s <= WELL_KNOWN_S

    def offset_of(self, life: str) -> float:
        """The node's clock minus the head's during a life [s]."""
        known = self._offsets.get(life)
        return self._offset.offset_s if known is None else known[0]

    def place(self, life: str, ts_ns: int, late_ms: float) -> tuple[float, float]:
        """The time of a life's reading in Unix seconds, and the offset by which it was found."""
        return self._timelines.place(life, ts_ns, late_ms, self.offset_of(life))


class Timelines:
    """When the readings of one node were taken, by the head's clock; none before the one before it.

    An offset is an estimate, which gets better. Where a better one is higher, the times of readings would
    step back; instead the offset that they are given rises by a tenth of the time that passes. A lower one
    counts at once. What comes a second time is given the time that it had.
    """

    def __init__(self) -> None:
        self._lives: dict[str, _Timeline] = {}

    def resume(self, life: str, last: Placed | None) -> None:
        """Go on behind the last reading that a head before this one placed."""
        if last is not None:
            self._lives[life] = _Timeline(-math.inf, last)

    def place(self, life: str, ts_ns: int, late_ms: float, offset_s: float) -> tuple[float, float]:
        """The time of a reading in Unix seconds, to the millisecond, and the offset by which it was found.

        A reading that began less than 5 ms after its deadline, ``late_ms``, counts as taken at that: then
        times are as regular as the schedule, and those of all nodes with a set clock are the same. One that
        was due before the last reading began, and came after it, keeps its own time.
        """
        timeline = self._lives.get(life)
        if timeline is None:
            before = max((known.newest for known in self._lives.values()), default=-math.inf)
            timeline = self._lives[life] = _Timeline(before)
        return timeline.place(ts_ns, late_ms, offset_s)


class _Timeline:
    """The readings of one agent run, which come after one at ``before`` (Unix seconds).

    Of a run that goes on, ``last`` is its reading before these.
    """

    def __init__(self, before: float, last: Placed | None = None) -> None:
        self._before = before
        self._read_ns = self._reached_ns = 0
        self._bends: deque[tuple[int, float]] = deque(maxlen=BENDS_KEPT)
        if last is not None:
            self._read_ns = self._reached_ns = last[0]
            self._bends.append((last[0], last[0] / 1e9 - last[1]))

    @property
    def newest(self) -> float:
        """The time of its newest reading in Unix seconds."""
        return self._reached_ns / 1e9 - self._bends[-1][1] if self._bends else self._before

    def place(self, ts_ns: int, late_ms: float, offset_s: float) -> tuple[float, float]:
        """The time of a reading, and the offset by which it was found."""
        at_ns = ts_ns - round(late_ms * 1e6) if 0 <= late_ms < PROMPT_MS else ts_ns
        if at_ns < self._read_ns < ts_ns:
            at_ns = ts_ns
        self._read_ns = ts_ns
        if at_ns > self._reached_ns:
            given_s = self._given(at_ns, offset_s)
            if not self._bends or given_s != self._bends[-1][1]:
                self._bends.append((at_ns, given_s))
            self._reached_ns = at_ns
        else:
            given_s = next((given for since, given in reversed(self._bends) if since <= at_ns), offset_s)
        return round(at_ns / 1e6 - given_s * 1e3) / 1e3, given_s

    def _given(self, at_ns: int, wanted_s: float) -> float:
        """The offset of the newest reading: the one that is wanted, or as near to it as order allows."""
        if self._bends:
            last_s, most_s = self._bends[-1][1], SLEW * (at_ns - self._reached_ns) / 1e9
        else:
            last_s, most_s = at_ns / 1e9 - self._before, 0.0
        return wanted_s if not 0 < wanted_s - last_s <= SET_S else min(wanted_s, last_s + most_s)
