"""Client of a hub in this process, for tests of the app: it carries out intents at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from gswarm_tui.asking.asking import Asking
from gswarm_tui.control import registry
from gswarm_tui.control.execution import Executor
from gswarm_tui.control.intents import (
    ChangeSession,
    Intent,
    IntentError,
    RefusedError,
    SetMark,
    StartSession,
    StopRecording,
    StopSession,
    UndoStop,
    read_intent,
)
from gswarm_tui.control.server import ControlServer
from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub
from gswarm_tui.store.recording.recorder import FileWriter


def carry_out(hub: Hub, intent: Intent) -> dict[str, Any]:
    """Carry out an intent as a recorder does."""
    return Executor(hub, recorded=True).carry_out(intent)


def control_server(
    hub: Hub,
    recorder: FileWriter | None,
    environ: Mapping[str, str],
    *,
    end: Callable[[str], None] = lambda _why: None,
    label: str = "",
    job_id: str = "",
) -> ControlServer:
    """Return a server for a hub's clients, in a folder of its own. Raises OSError."""
    listening = registry.Listening.open(registry.parent_folders(environ))
    uid = "" if recorder is None else recorder.uid
    return ControlServer(hub, recorder, listening, environ, uid=uid, end=end, label=label, job_id=job_id)


class LocalHub(Hub):
    """Hub with shortcuts for the intents of its user."""

    def start_session(self, name: str, *, started_at: float | None = None, note: str = "") -> str:
        """Start a session, and return its id."""
        return str(carry_out(self, StartSession(name, started_at, note))["session_id"])

    def stop_session(self, session_id: str, *, ended_at: float | None = None) -> None:
        """Stop a session."""
        carry_out(self, StopSession(int(session_id), ended_at))

    def undo_stop(self, session_id: str) -> None:
        """Undo the stop of a session."""
        carry_out(self, UndoStop(session_id))

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Change a session's name or note."""
        carry_out(self, ChangeSession(int(session_id), name, note))

    def mark(self, name: str, values: Mapping[str, Any], *, at: float | None = None) -> None:
        """Set a mark."""
        carry_out(self, SetMark(name, values, at))


class LocalClient:
    """Client of a hub, with the state that a client of a recorder elsewhere has; tests set it."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.place = ""
        self.read_only = False
        self.connected = True
        self.ended = self.gone = False
        self.interruption = ""
        self.intents: list[Intent] = []
        self.asking: Asking | None = None

    @property
    def fleet(self) -> Fleet:
        """The hub's fleet."""
        return self.hub.fleet

    @property
    def recorder(self) -> RecorderStatus | None:
        """The state of the hub's recorder."""
        return None if self.ended else self.hub.recorder

    @property
    def started_at(self) -> float:
        """The hub's start."""
        return self.hub.started_at

    @property
    def flushed(self) -> list[Callable[[], None]]:
        """Callbacks for changes of the fleet."""
        return self.hub.flushed

    def now(self) -> float:
        """Return the hub's time."""
        return self.hub.now()

    async def fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return how the job is being asked, or carry out an intent."""
        if message["want"] == "asked":
            return {} if self.asking is None else self.asking.state()
        intent = read_intent(message)
        assert intent is not None
        return await self.carry_out(intent)

    async def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Carry out an intent."""
        self.intents.append(intent)
        try:
            executor = Executor(self.hub, recorded=self.hub.recorder is not None, asking=self.asking)
            result = executor.carry_out(intent)
        except IntentError as error:
            raise RefusedError(str(error)) from None
        self.ended |= isinstance(intent, StopRecording)
        self.hub.flush()
        for recorder in self.hub.sinks:
            if isinstance(recorder, FileWriter):  # as a recorder's socket answers after the commit
                await asyncio.wrap_future(recorder.commit())
        return result
