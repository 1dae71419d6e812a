"""Sessions of the fleet: named intervals, which may overlap, with their live means."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gswarm_tui.fleet.events import SessionChanged, SessionStarted, SessionStopped, StopUndone
from gswarm_tui.fleet.frame_values import GpuTotals
from gswarm_tui.fleet.session_texts import SessionNameError, check_name

_NO_TIME_S = 1e-6
"""Remainder, by rounding, of a time that was added and subtracted."""


@dataclass
class Session:
    """One session and its figures so far.

    A frame counts by the part of its interval that lies in the session. Means are over the time of all GPUs
    (``util_s`` and ``power_s`` in seconds); energy is in joules; ``covered_s`` holds, for each node, the
    seconds of the session that its frames cover.
    """

    session_id: str
    name: str
    started_at: float
    note: str = ""
    ended_at: float | None = None
    util_sum: float = 0.0
    util_s: float = 0.0
    power_sum: float = 0.0
    power_s: float = 0.0
    energy_j: float = 0.0
    covered_s: dict[str, float] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the session has no end yet."""
        return self.ended_at is None

    @property
    def mean_util(self) -> float | None:
        """Mean utilisation in %, None where nothing was measured."""
        return self.util_sum / self.util_s if self.util_s > _NO_TIME_S else None

    @property
    def mean_power_w(self) -> float | None:
        """Mean power of one GPU in W, None where nothing was measured."""
        return self.power_sum / self.power_s if self.power_s > _NO_TIME_S else None

    @property
    def until(self) -> float:
        """The session's end, infinite while it runs."""
        return math.inf if self.ended_at is None else self.ended_at

    def seconds(self, now: float) -> float:
        """Return the session's duration; up to ``now`` while it runs."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.started_at)

    def overlap_s(self, ts: float, interval_s: float | None) -> float:
        """Return how much of the interval before a frame lies in the session, in seconds."""
        return max(0.0, min(ts, self.until) - max(ts - (interval_s or 0.0), self.started_at))

    def partial(self, nodes: Collection[str], now: float, tolerance_s: float) -> str:
        """Return "partial: 3 of 4 nodes" if some nodes lack part of the session, else "".

        ``tolerance_s`` allows for the time before the first sample and since the last.
        """
        enough = self.seconds(now) - tolerance_s
        complete = sum(self.covered_s.get(node, 0.0) >= enough for node in nodes)
        return "" if complete == len(nodes) else f"partial: {complete:,} of {len(nodes):,} nodes"

    def forget(self) -> None:
        """Drop the figures, because they can't be computed from the history."""
        self.util_sum = self.util_s = self.power_sum = self.power_s = self.energy_j = 0.0
        self.covered_s.clear()

    def add(self, node: str, sums: GpuTotals, seconds: float) -> None:
        """Add a node's frame to the figures, weighted by its seconds within the session."""
        self.covered_s[node] = self.covered_s.get(node, 0.0) + seconds
        self.util_sum += sums.util * seconds
        self.util_s += sums.util_count * seconds
        self.power_sum += sums.power * seconds
        self.power_s += sums.power_count * seconds


class SessionBook:
    """All sessions of a recording, by id, in the order of their start."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.version = 0

    @property
    def running(self) -> list[Session]:
        """The sessions that haven't been stopped."""
        return [s for s in self.sessions.values() if s.running]

    def check_name(self, name: str, renamed: Session | None = None) -> None:
        """Raise SessionNameError if a name is invalid or a running session but the ``renamed`` one has it."""
        check_name(name)
        if any(session.name == name.strip() and session is not renamed for session in self.running):
            raise SessionNameError(f"a session of this name is running: {name.strip()}")

    def start(self, event: SessionStarted) -> Session:
        """Add a session that was started."""
        session = Session(event.session_id, event.name, event.started_at, event.note)
        self.sessions[event.session_id] = session
        self.version += 1
        return session

    def change(self, event: SessionChanged) -> Session:
        """Change the name or note of a session."""
        session = self.sessions[event.session_id]
        if event.name is not None:
            session.name = event.name
        if event.note is not None:
            session.note = event.note
        self.version += 1
        return session

    def stop(self, event: SessionStopped) -> Session:
        """Set the end of a session; a second stop changes nothing."""
        session = self.sessions[event.session_id]
        if session.ended_at is None:
            session.ended_at = max(event.ended_at, session.started_at)
            self.version += 1
        return session

    def undo_stop(self, event: StopUndone) -> Session:
        """Remove the end of a session."""
        session = self.sessions[event.session_id]
        session.ended_at = None
        self.version += 1
        return session

    def restore(self, session: Session) -> None:
        """Add a session of a resumed recording."""
        self.sessions[session.session_id] = session
        self.version += 1

    def overlapping(self, start: float, until: float) -> list[Session]:
        """Return the sessions, ended ones too, that a period overlaps."""
        return [one for one in self.sessions.values() if one.started_at < until and start < one.until]


def suggest_name(taken: Iterable[str]) -> str:
    """Return a default name: "session-1", or the next number after the highest in use."""
    numbers = [int(m.group(1)) for name in taken if (m := re.fullmatch(r"session-(\d{1,9})", name))]
    return f"session-{max(numbers, default=0) + 1}"
