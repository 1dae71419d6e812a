"""Records scenes, which run on a manual clock, through hub and recorder into a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gswarm_tui.fleet.events import Event
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from tests.tui.scene import Scene


class Tap:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def submit(self, events: object) -> None:
        """Keep the events."""
        assert isinstance(events, list)
        self.events += events


def begin(path: Path, made: Scene, job: str | None = "4711") -> FileWriter:
    """Record a scene from now on, into a file that may already contain recordings."""
    info = RecordingInfo(
        started_at=made.time,
        host="login1",
        user_name="ada",
        command="gswarm-tui",
        interval_ms=round(made.interval_s * 1000),
        tool_version="0.1.0",
        slurm_job_id=job,
    )
    recorder = FileWriter(path, info, lambda _status: None)
    recorder.open()
    made.hub.started_at = made.time
    made.hub.sinks.append(recorder)
    return recorder


def recorded(path: Path, made: Scene, happens: Callable[[Scene], object]) -> list[Event]:
    """Record a scene from its start to its end and return all its events."""
    recorder, tap = begin(path, made), Tap()
    made.hub.sinks.append(tap)
    happens(made)
    made.hub.flush()
    status = recorder.close(made.time)
    assert status.error == ""
    return tap.events
