"""The sampler: when to measure, and the frame that comes of it.

Deadlines lie on whole multiples of the interval in Unix time, so that the samples of all nodes line up, and
are waited for on the monotonic clock, so that a step of the wall clock neither stops nor floods the loop.
A deadline that passed while the loop was busy is never made up for: only the newest is served, late, and
the frame says how late and how many were passed over.
"""

from __future__ import annotations

import gc
import threading
import time
from contextlib import suppress

from gswarm_agent.frame import TABLES, Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Optional, Protocol, Tuple

    from gswarm_agent.probes.base import Probe

    class Watch(Protocol):
        """The two clocks of a life, in nanoseconds."""

        def monotonic_ns(self) -> int:
            """Time that only grows; its zero means nothing."""

        def wall_ns(self) -> int:
            """Unix time, which people and NTP may set."""


MIN_INTERVAL_MS = 100
MAX_INTERVAL_MS = 60_000
_MS = 1_000_000


def clamp_interval(interval_ms: int) -> int:
    """The nearest interval that is allowed, in milliseconds."""
    return max(MIN_INTERVAL_MS, min(MAX_INTERVAL_MS, interval_ms))


class SystemWatch:
    """The clocks of this machine, as they are when this is made: a later step of the wall clock isn't seen.

    Frames of one life keep their order and their distances thus, whatever is done to the clock meanwhile.
    """

    def __init__(self) -> None:
        self._wall_minus_boot = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def monotonic_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        """CLOCK_REALTIME as it was, and CLOCK_BOOTTIME since then, which also counts while suspended."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._wall_minus_boot


class Schedule:
    """Which deadline is next. All times are nanoseconds; the first deadline is the moment of creation."""

    def __init__(self, interval_ms: int, monotonic_ns: int) -> None:
        self._interval = clamp_interval(interval_ms) * _MS
        self._due = monotonic_ns

    @property
    def due(self) -> int:
        """Monotonic time of the next deadline."""
        return self._due

    @property
    def interval_ms(self) -> int:
        """Time between deadlines, in milliseconds."""
        return self._interval // _MS

    def serve(self, monotonic_ns: int, wall_ns: int) -> Tuple[float, int]:
        """Take the deadline that is due now and set the next; how late it is (ms) and how many were missed.

        Of several that passed the newest is served. The next is the whole multiple of the interval in wall
        time that is nearest to one interval later, so a wall clock that was set moves it by half of an
        interval at most.
        """
        missed = max(0, (monotonic_ns - self._due) // self._interval)
        served = self._due + missed * self._interval
        self._set_next(served + self._interval, wall_ns - monotonic_ns)
        return max(0, monotonic_ns - served) / _MS, missed

    def change(self, interval_ms: int, monotonic_ns: int, wall_ns: int) -> None:
        """From now on a deadline every ``interval_ms``."""
        self._interval = clamp_interval(interval_ms) * _MS
        self._set_next(monotonic_ns + self._interval, wall_ns - monotonic_ns)

    def _set_next(self, wanted: int, wall_minus_monotonic: int) -> None:
        wall = wanted + wall_minus_monotonic
        nearest = (wall + self._interval // 2) // self._interval * self._interval
        self._due = nearest - wall_minus_monotonic


def run_until_stopped(
    probe: Probe,
    started: threading.Event,
    introduce: Callable[[], Optional[Sampler]],
    deliver: Callable[[Frame], None],
    *,
    reintroduce: Callable[[], None],
    wanted: Callable[[], int] = lambda: 0,
) -> None:
    """Introduce a probe to the head that ``started``, and deliver frames until the sampler is stopped.

    ``introduce`` answers None where the end came first. ``reintroduce`` is called when a frame has notes:
    other things may be measured from then on. ``wanted`` is how many frames are needed after the stop, for
    what has to go with one. The probe is closed at the end.
    """

    def take(frame: Frame) -> None:
        deliver(frame)
        if frame.notes:
            reintroduce()

    try:
        started.wait()
        sampler = introduce()
        if sampler:
            gc.freeze()  # what is there now stays: to search it for garbage would hold up a tick by 10 ms
            gc.enable()
            sampler.run(take)
            for _ in range(wanted()):
                take(sampler.take())
    finally:
        probe.close()


class Sampler:
    """Measures one probe at its deadlines and delivers frames, numbered from 1.

    ``take`` makes one frame at once; ``run`` does so at every deadline until ``stop``. ``set_interval`` and
    ``stop`` may be called from any thread.
    """

    def __init__(
        self,
        probe: Probe,
        interval_ms: int,
        watch: Optional[Watch] = None,
        wait: Optional[Callable[[float], object]] = None,
    ) -> None:
        self._probe = probe
        self._watch = watch or SystemWatch()
        # Held, and let go to wake whoever waits for it: an Event takes several times as long to wait for.
        self._awake = threading.Lock()
        self._awake.acquire()
        self._wait = wait or self._sleep
        self._schedule = Schedule(interval_ms, self._watch.monotonic_ns())
        self._seq = 0
        self._wanted_ms: Optional[int] = None
        self._stopped = False

    @property
    def due(self) -> int:
        """Monotonic time of the next deadline, in nanoseconds."""
        if self._wanted_ms is not None:
            wanted, self._wanted_ms = self._wanted_ms, None
            self._schedule.change(wanted, self._watch.monotonic_ns(), self._watch.wall_ns())
        return self._schedule.due

    def set_interval(self, interval_ms: int) -> None:
        """Sample every ``interval_ms`` from now on, within what is allowed."""
        self._wanted_ms = interval_ms
        self._wake()

    def stop(self) -> None:
        """Let ``run`` return after the frame it is at."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with suppress(RuntimeError):  # somebody woke it already
            self._awake.release()

    def _sleep(self, seconds: float) -> None:
        self._awake.acquire(timeout=seconds)

    @property
    def interval_ms(self) -> int:
        """Time between deadlines, in milliseconds."""
        return self._schedule.interval_ms

    def take(self) -> Frame:
        """Measure now, for the deadline that is due."""
        monotonic_ns, wall_ns = self._watch.monotonic_ns(), self._watch.wall_ns()
        late_ms, missed = self._schedule.serve(monotonic_ns, wall_ns)
        reading = self._probe.read(monotonic_ns)
        self._seq += 1
        return TABLES.frame(
            seq=self._seq,
            ts_ns=wall_ns,
            late_ms=late_ms,
            missed=missed,
            gpus=reading.gpus,
            host=reading.host,
            processes=reading.processes,
            notes=reading.notes,
        )

    def run(self, deliver: Callable[[Frame], None]) -> None:
        """Deliver a frame at each deadline until stopped."""
        while not self._stopped:
            remaining = self.due - self._watch.monotonic_ns()
            if remaining <= 0:
                deliver(self.take())
                continue
            self._wait(remaining / 1e9)
