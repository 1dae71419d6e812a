"""What there is along a recording: its sessions, and what happened that is worth going to. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from gswarm_agent.frame import ERROR, INFO, WARNING

MARK = "mark"
SAME_S = 0.001
"""Times closer than this are the same: a stop that one is at isn't the next one."""


@dataclass(frozen=True)
class SessionRange:
    """A session along the track; ``end`` is None while it runs."""

    name: str
    start: float
    end: float | None


@dataclass(frozen=True)
class JumpTarget:
    """A time worth going to, ``kind`` one of ``KINDS``, and what was there in words."""

    at: float
    kind: str
    words: str


KINDS = (INFO, MARK, WARNING, ERROR)
"""What a stop may be, what matters most last; sessions begin and end with info."""


class ReplayTimeline:
    """Sessions and stops, in the order of their times."""

    def __init__(self, sessions: Sequence[SessionRange] = (), stops: Sequence[JumpTarget] = ()) -> None:
        self.sessions = tuple(sorted(sessions, key=lambda one: one.start))
        bounds = [JumpTarget(one.start, INFO, f"{one.name} begins") for one in self.sessions]
        bounds += [
            JumpTarget(one.end, INFO, f"{one.name} ends") for one in self.sessions if one.end is not None
        ]
        self.stops = tuple(sorted([*stops, *bounds], key=lambda stop: stop.at))
        self._times = [stop.at for stop in self.stops]

    def after(self, at: float) -> JumpTarget | None:
        """The next stop after a time."""
        place = bisect_right(self._times, at + SAME_S)
        return self.stops[place] if place < len(self.stops) else None

    def before(self, at: float) -> JumpTarget | None:
        """The last stop before a time."""
        place = bisect_left(self._times, at - SAME_S)
        return self.stops[place - 1] if place else None

    def between(self, start: float, end: float) -> tuple[JumpTarget, ...]:
        """The stops from a time up to, without, another."""
        return self.stops[bisect_left(self._times, start) : bisect_left(self._times, end)]
