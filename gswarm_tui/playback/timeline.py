"""The timeline of a recording: its sessions and the events to jump to."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from gswarm_agent.frame import ERROR, INFO, WARNING

MARK = "mark"
SAME_TIME_S = 0.001
"""Times closer than this count as the same, so that a jump leaves the current target."""


@dataclass(frozen=True)
class SessionRange:
    """A session on the timeline; ``end`` is None while it runs."""

    name: str
    start: float
    end: float | None
    session_id: str = ""
    note: str = ""


@dataclass(frozen=True)
class JumpTarget:
    """A time to jump to, with its kind (one of ``KINDS``) and description."""

    at: float
    kind: str
    description: str


KINDS = (INFO, WARNING, MARK, ERROR)
"""Kinds of jump targets; in one cell, a later kind hides an earlier one. Session starts and ends are info."""


class ReplayTimeline:
    """Sessions and jump targets of a recording, ordered by time."""

    def __init__(self, sessions: Sequence[SessionRange] = (), targets: Sequence[JumpTarget] = ()) -> None:
        self.sessions = tuple(sorted(sessions, key=lambda one: one.start))
        bounds = [JumpTarget(one.start, INFO, f"{one.name} begins") for one in self.sessions]
        bounds += [
            JumpTarget(one.end, INFO, f"{one.name} ends") for one in self.sessions if one.end is not None
        ]
        self.targets = tuple(sorted([*targets, *bounds], key=lambda stop: stop.at))
        self._times = [stop.at for stop in self.targets]

    def after(self, at: float) -> JumpTarget | None:
        """Return the next target after a time."""
        place = bisect_right(self._times, at + SAME_TIME_S)
        return self.targets[place] if place < len(self.targets) else None

    def before(self, at: float) -> JumpTarget | None:
        """Return the last target before a time."""
        place = bisect_left(self._times, at - SAME_TIME_S)
        return self.targets[place - 1] if place else None

    def between(self, start: float, end: float) -> tuple[JumpTarget, ...]:
        """Return the targets from ``start`` to before ``end``."""
        return self.targets[bisect_left(self._times, start) : bisect_left(self._times, end)]
