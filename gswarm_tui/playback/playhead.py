"""Where in a recording one is, how fast it goes on, and whether it does. Pure: the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Playhead:
    """A position between ``start`` and ``end`` (Unix seconds) that moves with a clock while it plays.

    ``clock`` counts seconds, from anywhere. ``end`` may be moved while the recording grows.
    """

    def __init__(self, start: float, end: float, at: float, clock: Callable[[], float]) -> None:
        self.start = start
        self.end = max(start, end)
        self.speed = 1.0
        self.paused = True
        self._clock = clock
        self._at = self.within(at)
        self._since = clock()

    def within(self, at: float) -> float:
        """The time nearest to this one that there is."""
        return min(max(at, self.start), self.end)

    @property
    def at(self) -> float:
        """The position now."""
        if self.paused:
            return self._at
        return self.within(self._at + (self._clock() - self._since) * self.speed)

    @property
    def ended(self) -> bool:
        """Whether there is nothing further."""
        return self.at >= self.end

    def go(self, at: float) -> None:
        """Be at a time, and go on from there if it plays."""
        self._at = self.within(at)
        self._since = self._clock()

    def play(self) -> None:
        """Go on; from the start where the end was reached."""
        if self.paused:
            self.go(self.start if self.ended else self._at)
            self.paused = False

    def pause(self) -> None:
        """Stay here."""
        self._at, self.paused = self.at, True

    def change_speed(self, by: int) -> None:
        """Take the next speed of ``SPEEDS``, or the one before."""
        here = self.at
        place = min(max(SPEEDS.index(self.speed) + by, 0), len(SPEEDS) - 1)
        self.speed = SPEEDS[place]
        self.go(here)
