"""The recorder's clock, the offset of a node's clock, and a node's sample times by the recorder's clock."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from gswarm_agent.frame import ClockExchange

PROMPT_MS = 5.0
"""A sample that is late by less counts as taken at its deadline."""
MAX_SLEW = 0.1
"""The offset in use rises by at most this many seconds per second."""
MAX_DRIFT = 50e-6
"""Drift of two clocks in seconds per second."""
MAX_EXCHANGES = 8
STEP_S = 5.0
"""An offset that rises by more isn't a better estimate: a clock was set, or a machine slept."""
MAX_OFFSETS = 256

TimedSample = tuple[int, float]
"""A sample's time by the node's clock [ns] and by the recorder's [Unix seconds]."""


def steady_wall_clock() -> Callable[[], float]:
    """Return a clock of Unix seconds that ignores changes of the machine's clock from now on.

    It runs while the machine sleeps, too, so times of one run keep their order and distances.
    """
    ahead = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + ahead


class _Exchange(NamedTuple):
    """One ping and its answer; ``at_s`` is when the answer arrived, by the recorder's clock."""

    at_s: float
    round_trip_s: float
    offset_s: float

    def uncertain_s(self, now_s: float) -> float:
        """Return the largest error of its offset now: half of the round trip, and the drift since."""
        return self.round_trip_s / 2 + MAX_DRIFT * (now_s - self.at_s)

    def agrees(self, other: _Exchange, now_s: float) -> bool:
        """Return whether no change of a clock is needed to explain both."""
        return abs(self.offset_s - other.offset_s) <= self.uncertain_s(now_s) + other.uncertain_s(now_s)


class ClockOffset:
    """The node's clock minus the recorder's, from the least uncertain of the last eight exchanges.

    Exchanges that a newer one contradicts are dropped: a clock was set since then.
    """

    def __init__(self) -> None:
        self._exchanges: list[_Exchange] = []
        self._best = _Exchange(0.0, math.inf, 0.0)

    def add(self, clock: ClockExchange, arrived_ns: int) -> None:
        """Add an exchange whose answer arrived at ``arrived_ns``, the recorder's Unix time."""
        round_trip = (arrived_ns - clock.sent) - (clock.answered - clock.received)
        offset = ((clock.received - clock.sent) + (clock.answered - arrived_ns)) / 2
        new = _Exchange(arrived_ns / 1e9, max(0, round_trip) / 1e9, offset / 1e9)
        self._exchanges = [one for one in self._exchanges if one.agrees(new, new.at_s)][-MAX_EXCHANGES + 1 :]
        self._add(new)

    def add_earlier(self, offset_s: float, round_trip_s: float) -> None:
        """Add an earlier measurement of the same clock, unless a clock was set since then."""
        known = self._best._replace(round_trip_s=round_trip_s, offset_s=offset_s)
        if known.agrees(self._best, self._best.at_s):
            self._add(known)

    def _add(self, exchange: _Exchange) -> None:
        self._exchanges.append(exchange)
        now_s = exchange.at_s
        self._best = min(self._exchanges, key=lambda one: one.uncertain_s(now_s))

    @property
    def round_trip_s(self) -> float:
        """The round trip of the exchange that the offset is from."""
        return self._best.round_trip_s

    @property
    def offset_s(self) -> float:
        """The offset, or 0 if it is less than its uncertainty, half of the round trip."""
        _, round_trip, offset = self._best
        return 0.0 if abs(offset) <= round_trip / 2 else offset


class NodeClock:
    """A node's clock, measured by each connection, and the times of its samples by the recorder's clock.

    The offset measured during an agent's life applies to that life's samples, also if they arrive later.
    Sample times never step back: when an estimate of the offset improves, a lower one is used at once, and a
    higher one is approached slowly. A sample that arrives again gets the same time again.
    """

    def __init__(self) -> None:
        self._offset = ClockOffset()
        self._life: str | None = None
        self._offsets: dict[str, tuple[float, float]] = {}
        self._timelines: dict[str, _Timeline] = {}

    def resume(self, life: str, offset_s: float, round_trip_s: float, last: TimedSample | None) -> None:
        """Resume with the offset and the last sample of an earlier recorder."""
        self._offsets[life] = offset_s, round_trip_s
        if last is not None:
            self._timelines[life] = _Timeline(-math.inf, last)

    def start_connection(self) -> None:
        """Drop the measurements of the last connection."""
        self._offset, self._life = ClockOffset(), None

    def add(self, clock: ClockExchange, at_s: float) -> tuple[float, float] | None:
        """Add an exchange whose answer arrived at ``at_s``, the recorder's Unix time in seconds.

        Returns the offset and its round trip in seconds, or None before ``start_life``.
        """
        self._offset.add(clock, round(at_s * 1e9))
        return None if self._life is None else self._keep(self._life)

    def start_life(self, life: str, clock: ClockExchange, at_s: float) -> tuple[float, float]:
        """Start a life with its first exchange; return the offset and its round trip in seconds."""
        self._offset.add(clock, round(at_s * 1e9))
        if life in self._offsets:  # the first exchange of a connection is often a slow one
            self._offset.add_earlier(*self._offsets[life])
        self._life = life
        return self._keep(life)

    def _keep(self, life: str) -> tuple[float, float]:
        self._offsets[life] = measurement = self._offset.offset_s, self._offset.round_trip_s
        return measurement

    def offset_of(self, life: str) -> float:
        """Return the node's clock minus the recorder's during a life [s]."""
        known = self._offsets.get(life)
        return self._offset.offset_s if known is None else known[0]

    def timestamp(self, life: str, ts_ns: int, late_ms: float) -> tuple[float, float]:
        """Return a sample's Unix time in seconds, to the millisecond, and the offset used.

        A sample begun less than 5 ms after its deadline, ``late_ms``, counts as taken at the deadline: so
        times are regular, and the same on all nodes with synchronised clocks. If the sample before it began
        after that deadline, it keeps its own time.
        """
        timeline = self._timelines.get(life)
        if timeline is None:
            before = max((known.newest for known in self._timelines.values()), default=-math.inf)
            timeline = self._timelines[life] = _Timeline(before)
        return timeline.timestamp(ts_ns, late_ms, self.offset_of(life))


class _Timeline:
    """The sample times of one life, all after ``before`` (Unix seconds).

    ``last`` is the last recorded sample of a resumed life.
    """

    def __init__(self, before: float, last: TimedSample | None = None) -> None:
        self._before = before
        self._last_ns = self._newest_ns = 0
        self._offsets: deque[tuple[int, float]] = deque(maxlen=MAX_OFFSETS)
        if last is not None:
            self._last_ns = self._newest_ns = last[0]
            self._offsets.append((last[0], last[0] / 1e9 - last[1]))

    @property
    def newest(self) -> float:
        """The time of its newest sample in Unix seconds."""
        return self._newest_ns / 1e9 - self._offsets[-1][1] if self._offsets else self._before

    def timestamp(self, ts_ns: int, late_ms: float, offset_s: float) -> tuple[float, float]:
        """Return a sample's time and the offset used."""
        at_ns = ts_ns - round(late_ms * 1e6) if 0 <= late_ms < PROMPT_MS else ts_ns
        if at_ns < self._last_ns < ts_ns:
            at_ns = ts_ns
        self._last_ns = ts_ns
        if at_ns > self._newest_ns:
            used_s = self._slewed(at_ns, offset_s)
            if not self._offsets or used_s != self._offsets[-1][1]:
                self._offsets.append((at_ns, used_s))
            self._newest_ns = at_ns
        else:
            used_s = next((offset for since, offset in reversed(self._offsets) if since <= at_ns), offset_s)
        return round(at_ns / 1e6 - used_s * 1e3) / 1e3, used_s

    def _slewed(self, at_ns: int, wanted_s: float) -> float:
        """Return the offset of the newest sample: the wanted one, or as near as the order of times allows."""
        if self._offsets:
            last_s, most_s = self._offsets[-1][1], MAX_SLEW * (at_ns - self._newest_ns) / 1e9
        else:
            last_s, most_s = at_ns / 1e9 - self._before, 0.0
        return wanted_s if not 0 < wanted_s - last_s <= STEP_S else min(wanted_s, last_s + most_s)
