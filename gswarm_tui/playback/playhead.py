"""The playhead: position in a recording, speed and pause. The clock is passed in."""

from __future__ import annotations

from collections.abc import Callable

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Playhead:
    """Position between ``start`` and ``end`` (Unix seconds) that moves with a clock while it plays.

    ``clock`` returns seconds of any epoch. ``end`` may grow with the recording.
    """

    def __init__(self, start: float, end: float, at: float, clock: Callable[[], float]) -> None:
        self.start = start
        self.end = max(start, end)
        self.speed = 1.0
        self.paused = True
        self._clock = clock
        self._at = self.clamp(at)
        self._since = clock()

    def clamp(self, at: float) -> float:
        """Return the time, limited to the range from start to end."""
        return min(max(at, self.start), self.end)

    @property
    def at(self) -> float:
        """The position now."""
        if self.paused:
            return self._at
        return self.clamp(self._at + (self._clock() - self._since) * self.speed)

    @property
    def ended(self) -> bool:
        """Whether the position is the end."""
        return self.at >= self.end

    def move_to(self, at: float) -> None:
        """Move to a time and keep playing or pausing."""
        self._at = self.clamp(at)
        self._since = self._clock()

    def play(self) -> None:
        """Play, from the start if the end was reached."""
        if self.paused:
            self.move_to(self.start if self.ended else self._at)
            self.paused = False

    def pause(self) -> None:
        """Stop at the current position."""
        self._at, self.paused = self.at, True

    def change_speed(self, by: int) -> None:
        """Change to a speed ``by`` steps further in ``SPEEDS``."""
        position = self.at
        place = min(max(SPEEDS.index(self.speed) + by, 0), len(SPEEDS) - 1)
        self.speed = SPEEDS[place]
        self.move_to(position)
