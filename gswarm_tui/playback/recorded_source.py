"""Source of the player: a recording in a file, finished or still being written."""

from __future__ import annotations

from collections.abc import Callable

from gswarm_agent.frame import INFO, gpu_label
from gswarm_tui.fleet.events import Event, EventLogged
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.timeline import KINDS, MARK, JumpTarget, ReplayTimeline, SessionRange
from gswarm_tui.store.querying.arrays import ArraySource
from gswarm_tui.store.reading.fleet_builder import FleetBuilder
from gswarm_tui.store.reading.frames import read_events
from gswarm_tui.store.reading.recording_reader import RecordingReader


class RecordedSource:
    """Source that reads one recording from a file, which grows while ``running``; times are Unix seconds.

    ``until`` returns how far a running recording can be read; None for one that has ended. ``live``
    returns the running recording's fleet, which has nodes and sessions sooner than the file.
    """

    def __init__(
        self,
        source: ArraySource,
        recording_id: int,
        until: Callable[[], float] | None = None,
        live: Callable[[], Fleet] | None = None,
    ) -> None:
        """Open a recording. Raises StoreError."""
        self.recording = RecordingReader(source, recording_id, () if live is None else list(live().nodes))
        self.interval_s = self.recording.interval_s
        self.running = until is not None
        self._until = until
        self._live = live
        self._builder = FleetBuilder(self.recording)

    def end(self) -> float:
        """Return the time up to which the recording can be read now."""
        return self.recording.end if self._until is None else self._until()

    def events(self, since: float, until: float) -> list[Event]:
        """Return the events after ``since`` up to and including ``until``, in order. Raises StoreError."""
        self._refresh()
        return read_events(self.recording, since, until)

    def fleet(self, at: float) -> Fleet:
        """Return a new fleet as it was at a time, with its history. Raises StoreError."""
        self._refresh()
        return self._builder.fleet(at)

    def timeline(self) -> ReplayTimeline:
        """Return the recording's sessions, warnings, errors and marks. Raises StoreError."""
        return ReplayTimeline(self._sessions(), list(map(_target, self.recording.notable_events())))

    def _sessions(self) -> list[SessionRange]:
        if self._live is not None:  # another thread changes it: copy at once
            book = list(self._live().sessions.sessions.values())
            return [
                SessionRange(one.name, one.started_at, one.ended_at, one.session_id, one.note) for one in book
            ]
        return [
            SessionRange(
                row["name"],
                row["start_us"] / 1e6,
                None if row["end_us"] is None else row["end_us"] / 1e6,
                str(row["session_id"]),
                row["note"] or "",
            )
            for row in self.recording.sessions()
        ]

    def _refresh(self) -> None:
        """Read what a running recording has gained: nodes, machines, agents."""
        if self.running:
            self.recording.refresh()


def _target(event: EventLogged) -> JumpTarget:
    kind = MARK if event.kind == MARK else event.severity
    who = (event.node or "") + ("" if event.gpu is None else f":{gpu_label(event.gpu)}")
    return JumpTarget(event.at, kind if kind in KINDS else INFO, f"{who} {event.message}".strip())
