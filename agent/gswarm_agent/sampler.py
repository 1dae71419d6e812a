"""The sampler: measures a probe at its deadlines and makes a frame each time.

Deadlines are whole multiples of the interval in Unix time, so that the samples of all nodes line up. The
loop waits on the monotonic clock, so that a step of the wall clock neither stops nor floods it. Missed
deadlines are not made up for: only the newest is served, late, and the frame records how late and how many
were missed. ``gauge_ms`` limits the time that the frame's gauges stand for: after missed deadlines or a
suspended node, nobody knows what they were before.
"""

from __future__ import annotations

import time

from gswarm_agent.frame import GAUGE_INTERVALS, MAX_GAUGE_MS, TABLES, Frame
from gswarm_agent.metrics import MAX_INTERVAL_MS, MIN_INTERVAL_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Sequence, Tuple

    from gswarm_agent.probes.base import Probe

_MS = 1_000_000


def clamp_interval(interval_ms: int) -> int:
    """Return the nearest allowed interval, in milliseconds."""
    return max(MIN_INTERVAL_MS, min(MAX_INTERVAL_MS, interval_ms))


class SystemWatch:
    """The clocks of this machine, in nanoseconds; steps of the wall clock after its creation are not visible.

    So frames of one life keep their order and distances.
    """

    def __init__(self) -> None:
        self._wall_minus_boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def monotonic_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """Return CLOCK_REALTIME at creation plus CLOCK_BOOTTIME since, which also counts while suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._wall_minus_boot

    def step_ns(self) -> int:
        """Return how far CLOCK_REALTIME was set since creation; profilers' times have this step."""
        return time.time_ns() - self.wall_ns()


class Schedule:
    """The next deadline, ``due``. Times are monotonic nanoseconds; the first deadline is at once."""

    def __init__(self, interval_ms: int, monotonic_ns: int) -> None:
        self._interval = clamp_interval(interval_ms) * _MS
        self.due = monotonic_ns

    @property
    def interval_ms(self) -> int:
        """Time between deadlines, in milliseconds."""
        return self._interval // _MS

    def serve(self, monotonic_ns: int, wall_ns: int) -> Tuple[float, int]:
        """Serve the newest deadline that is due and set the next. Returns lateness (ms) and missed deadlines.

        The next is the whole multiple of the interval in wall time that is nearest to one interval later, so
        setting the wall clock moves it by at most half an interval.
        """
        missed = max(0, (monotonic_ns - self.due) // self._interval)
        served = self.due + missed * self._interval
        self._set_next(served + self._interval, wall_ns - monotonic_ns)
        return max(0, monotonic_ns - served) / _MS, missed

    def change(self, interval_ms: int, monotonic_ns: int, wall_ns: int) -> None:
        """Change the interval; the next deadline is about one new interval from now."""
        self._interval = clamp_interval(interval_ms) * _MS
        self._set_next(monotonic_ns + self._interval, wall_ns - monotonic_ns)

    def _set_next(self, target: int, wall_minus_monotonic: int) -> None:
        wall = target + wall_minus_monotonic
        nearest = (wall + self._interval // 2) // self._interval * self._interval
        self.due = nearest - wall_minus_monotonic


class Sampler:
    """Measures one probe: ``take`` makes a frame for the deadline that is ``due``, numbered from 1.

    The first one reads the energy counters, and so does the next while ``energy_requested``.
    """

    def __init__(self, probe: Probe, interval_ms: int, watch: Optional[SystemWatch] = None) -> None:
        self._probe = probe
        self._watch = watch or SystemWatch()
        self._schedule = Schedule(interval_ms, self._watch.monotonic_ns())
        self._seq = 0
        self._interval_before_ms = self._schedule.interval_ms
        self._new_groups: Optional[Sequence[str]] = None
        self.energy_requested = False

    @property
    def due(self) -> int:
        """Monotonic time of the next deadline, in nanoseconds."""
        return self._schedule.due

    def set_interval(self, interval_ms: int) -> None:
        """Sample every ``interval_ms`` from now on, within the allowed range."""
        self._schedule.change(interval_ms, self._watch.monotonic_ns(), self._watch.wall_ns())

    def set_metrics(self, groups: Sequence[str]) -> None:
        """Measure only these groups of metrics from the next deadline on."""
        self._new_groups = groups

    def take(self) -> Frame:
        """Measure now, for the deadline that is due, and return the frame."""
        monotonic_ns, wall_ns = self._watch.monotonic_ns(), self._watch.wall_ns()
        late_ms, missed = self._schedule.serve(monotonic_ns, wall_ns)
        if self._new_groups is not None:
            groups, self._new_groups = self._new_groups, None
            self._probe.switch(groups)
        fresh, self.energy_requested = self.energy_requested or not self._seq, False
        samples = self._probe.read(monotonic_ns, fresh=fresh)
        self._seq += 1
        # The first frame after a change of the interval may end a longer one.
        interval_ms = max(self._interval_before_ms, self._schedule.interval_ms)
        self._interval_before_ms = self._schedule.interval_ms
        gauge_ms = min(MAX_GAUGE_MS, round(GAUGE_INTERVALS * interval_ms))
        return TABLES.frame(self._seq, wall_ns, late_ms, missed, gauge_ms=gauge_ms, **vars(samples))
