"""A recording of a file as a tape, finished or still being written; joins the store to the player."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gswarm_agent.frame import INFO
from gswarm_tui.fleet.events import Event, Happened
from gswarm_tui.fleet.node import Rings
from gswarm_tui.fleet.sessions import SessionBook
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.track import KINDS, MARK, Stop, Stretch, Track
from gswarm_tui.store.moment import Moments
from gswarm_tui.store.playback import Playback, Source


class RecordedTape:
    """One recording; see ``Tape``.

    ``until`` tells how far one that is being written can be read, None is for one that has ended. ``names``
    are all of its nodes where the file may not know them yet, and ``book`` has its sessions sooner than that.
    """

    def __init__(
        self,
        source: Source,
        recording_id: int,
        until: Callable[[], float] | None = None,
        names: Sequence[str] = (),
        book: SessionBook | None = None,
    ) -> None:
        """Reads what it is about. Raises StoreError."""
        self.recording = Playback(source, recording_id, names)
        self.interval_s = self.recording.interval_s
        self.running = until is not None
        self._until = until
        self._book = book
        self._moments = Moments(self.recording)

    def end(self) -> float:
        """How far it can be read now."""
        return self.recording.end if self._until is None else self._until()

    def events(self, since: float, until: float) -> list[Event]:
        """What happened after a time, up to and with another, in order. Raises StoreError."""
        self._learn()
        return self.recording.events(since, until)

    def fleet(self, at: float) -> Fleet:
        """The fleet as it was at a time, a new one with the last minutes of history. Raises StoreError."""
        self._learn()
        return self._moments.fleet(at)

    def rings(self, at: float) -> dict[str, Rings]:
        """All the history of its nodes then, by name, where ``fleet`` gives less. Raises StoreError."""
        return self._moments.rings(at)

    def track(self) -> Track:
        """Its sessions, warnings, errors and marks. Raises StoreError."""
        return Track(self._sessions(), list(stops(self.recording.turns())))

    def _sessions(self) -> list[Stretch]:
        if self._book is not None:  # of another thread: all at once
            return [
                Stretch(one.name, one.started_at, one.ended_at) for one in list(self._book.sessions.values())
            ]
        return [
            Stretch(
                row["name"], row["start_us"] / 1e6, None if row["end_us"] is None else row["end_us"] / 1e6
            )
            for row in self.recording.sessions()
        ]

    def _learn(self) -> None:
        if self.running:
            self.recording.learn()


def stops(happened: Iterable[Happened]) -> Iterable[Stop]:
    """Happenings as stops on a track."""
    for one in happened:
        kind = MARK if one.kind == MARK else one.severity
        who = (one.node or "") + ("" if one.gpu is None else f":{one.gpu}")
        yield Stop(one.at, kind if kind in KINDS else INFO, f"{who} {one.message}".strip())
