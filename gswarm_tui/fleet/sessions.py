"""Sessions of the fleet: named intervals, which may overlap, with their live means."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from gswarm_tui.fleet.events import SessionChanged, SessionStarted, SessionStopped, StopUndone
from gswarm_tui.fleet.frame_values import GpuTotals


@dataclass
class Session:
    """One session and its figures so far.

    Means are over GPU samples; energy is the growth of the energy counters in joules; ``covered_s`` holds,
    for each node, the seconds of the session that its frames stand for.
    """

    session_id: str
    name: str
    started_at: float
    note: str = ""
    ended_at: float | None = None
    util_sum: float = 0.0
    util_count: int = 0
    power_sum: float = 0.0
    power_count: int = 0
    energy_j: float = 0.0
    covered_s: dict[str, float] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        """Whether the session has no end yet."""
        return self.ended_at is None

    @property
    def mean_util(self) -> float | None:
        """Mean utilisation in %, None where nothing was measured."""
        return self.util_sum / self.util_count if self.util_count else None

    @property
    def mean_power_w(self) -> float | None:
        """Mean power of one GPU in W, None where nothing was measured."""
        return self.power_sum / self.power_count if self.power_count else None

    @property
    def until(self) -> float:
        """The session's end, infinite while it runs."""
        return math.inf if self.ended_at is None else self.ended_at

    @property
    def key(self) -> tuple[str, int]:
        """Name and start of the session: live and recorded fleets give it different ids."""
        return self.name, round(self.started_at * 1000)

    def seconds(self, now: float) -> float:
        """Return the session's duration; up to ``now`` while it runs."""
        return max(0.0, (now if self.ended_at is None else self.ended_at) - self.started_at)

    def covers(self, ts: float) -> bool:
        """Return whether the session contains a time: from its start to before its end."""
        return self.started_at <= ts < self.until

    def partial(self, nodes: Collection[str], now: float, tolerance_s: float) -> str:
        """Return "partial: 3 of 4 nodes" if some nodes lack part of the session, else "".

        ``tolerance_s`` allows for the time before the first sample and since the last.
        """
        enough = self.seconds(now) - tolerance_s
        complete = sum(self.covered_s.get(node, 0.0) >= enough for node in nodes)
        return "" if complete == len(nodes) else f"partial: {complete:,} of {len(nodes):,} nodes"

    def forget(self) -> None:
        """Drop the figures, because they can't be computed from the history."""
        self.util_sum = self.power_sum = self.energy_j = 0.0
        self.util_count = self.power_count = 0
        self.covered_s.clear()

    def add(self, node: str, sums: GpuTotals, energy_j: float, interval_s: float | None) -> None:
        """Add a node's frame to the figures.

        ``energy_j`` is the energy since the frame before, ``interval_s`` the time since then, None after a
        start or a gap.
        """
        self.covered_s[node] = self.covered_s.get(node, 0.0) + (interval_s or 0.0)
        self.util_sum += sums.util
        self.util_count += sums.util_count
        self.power_sum += sums.power
        self.power_count += sums.power_count
        self.energy_j += energy_j


class SessionBook:
    """All sessions of a recording, by id, in the order of their start."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.version = 0

    @property
    def running(self) -> list[Session]:
        """The sessions that haven't been stopped."""
        return [s for s in self.sessions.values() if s.running]

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

    def covering(self, ts: float) -> list[Session]:
        """Return the sessions, ended ones too, that cover a time."""
        return [session for session in self.sessions.values() if session.covers(ts)]


def suggest_name(taken: Iterable[str]) -> str:
    """Return a default name: "session-1", or the next number after the highest in use."""
    numbers = [int(m.group(1)) for name in taken if (m := re.fullmatch(r"session-(\d{1,9})", name))]
    return f"session-{max(numbers, default=0) + 1}"
