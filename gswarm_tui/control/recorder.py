"""Client of a recorder: its fleet, its events, and the intents and queries of its user.

The fleet is a replica, see ``fleet/replica.py``: only the recorder's messages change it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from gswarm_tui.control.client import result_of
from gswarm_tui.control.intents import Intent, RecorderError
from gswarm_tui.control.messages import (
    LENGTH,
    MAX_STREAMED,
    VERSION,
    MessageError,
    decode,
    encode,
    read_message,
)
from gswarm_tui.fleet.event_codec import EventError, EventReader
from gswarm_tui.fleet.events import FrameArrived, RecorderStatus
from gswarm_tui.fleet.plain_values import typed
from gswarm_tui.fleet.replica import ReplicaError, restore_fleet, restore_history
from gswarm_tui.fleet.state import Fleet

FIRST_STATE_S = 30.0
SILENT_S = 30.0
"""Silence after which a connection counts as dead: a recorder sends something each second."""
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses before reconnecting; the last one repeats."""
NOT_CONNECTED, ENDED = "not connected to the recorder", "the recording has ended"
FRAMES_AT_ONCE, PAUSE_S = 64, 0.001
"""Frames that are applied at once, and the pause after them: a key passes through many callbacks."""

_LOG = logging.getLogger(__name__)


class RecorderGoneError(RecorderError):
    """Raised if a recorder and the parent that would restart it were killed, so that nobody records."""


class Route(Protocol):
    """Route to a recorder; ``place`` is its host, empty on this one."""

    place: str

    async def connect(self, uid: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the recorder of this recording, empty for the chosen one. Raises RecorderError."""

    async def why_closed(self) -> str:
        """Return why the last connection ended, as a clause; empty if nothing is known of it."""

    async def close(self) -> None:
        """End what is left of the last connection."""


class Recorder:
    """Client that follows a recorder; call all methods on its event ``loop``.

    ``run`` connects and follows the recorder until it ends, and reconnects when the connection breaks. The
    recorder refuses the changes of a client that is ``read_only``. It counts a ``screen`` as somebody being
    there. ``nodes`` are shown until the recorder has sent its state.

    ``place`` is the host of a recorder elsewhere, empty for this host. ``connected``: the state has arrived.
    ``ended``: the recorder reported its end, with a ``report`` on the recording. ``gone``: recorder and
    parent were killed. ``interruption`` is why it sends nothing, empty while it does. The callbacks in
    ``flushed`` are called when ``fleet`` has changed.
    """

    def __init__(
        self, route: Route, *, read_only: bool = False, screen: bool = False, nodes: Sequence[str] = ()
    ) -> None:
        self.place = route.place
        self.read_only = read_only
        self.connected = self.ended = self.gone = False
        self.interruption = ""
        self.report: dict[str, Any] = {}
        self.fleet = Fleet(nodes, derive_events=False)
        self.recorder: RecorderStatus | None = None
        self.started_at = time.time()
        self.flushed: list[Callable[[], None]] = []
        self.label, self.job_id, self.path, self.uid, self.recording_id = "", "", Path(), "", 0
        self.loop = asyncio.get_running_loop()
        self._route = route
        self._screen = screen
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._events = EventReader()
        self._ahead_s = self.started_at - _boot_time()
        self._ended_at: float | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[dict[str, Any]], None]] = {}

    def now(self) -> float:
        """Return the recorder's Unix time in seconds; its last, once the recording has ended."""
        return _boot_time() + self._ahead_s if self._ended_at is None else self._ended_at

    # The stream

    async def start(self) -> None:
        """Connect and receive the state of the fleet. Raises RecorderError, UserError."""
        try:
            async with asyncio.timeout(FIRST_STATE_S):
                await self._connect()
        except TimeoutError:
            self.close()
            raise RecorderError(f"{self._subject()} doesn't answer") from None
        except RecorderError:
            self.close()
            raise

    async def run(self) -> None:
        """Follow the recorder until the recording has ended; reconnect when the connection breaks.

        Raises RecorderError, UserError if the recorder can't be reached at first.
        """
        try:
            if not self.connected:
                await self.start()
            while not self.ended:
                try:
                    while not self.ended:
                        await self._handle(await self._receive())
                except RecorderError as error:
                    await self._reconnect(str(error))
        finally:
            self.close()

    async def _connect(self) -> None:
        """Connect, and wait for the first state. Raises RecorderError."""
        self._reader, self._writer = await self._route.connect(self.uid)
        hello = {"want": "view", "read_only": self.read_only, "screen": self._screen, "version": VERSION}
        self._writer.write(encode(hello))
        message = await self._receive()
        while "state" not in message:
            if "error" in message:
                raise RecorderError(str(message["error"]))
            message = await self._receive()
        self.interruption, self.gone = "", False
        await self._handle(message)

    async def _reconnect(self, why: str) -> None:
        """Retry until connected; meanwhile ``interruption`` has the reason."""
        self.close()
        for attempt in itertools.count():
            self.interruption = f"{why}; reconnecting …"
            self._flush()
            await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            try:
                await self.start()
                return
            except RecorderError as error:
                why, self.gone = str(error), isinstance(error, RecorderGoneError)

    def close(self) -> None:
        """Close the connection; requests that wait for a reply fail."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        for reply in list(self._waiting.values()):
            reply(self._unanswered())
        self._waiting.clear()

    async def _receive(self) -> dict[str, Any]:
        """Return the recorder's next message. Raises RecorderError."""
        if self._reader is None:
            raise RecorderError(NOT_CONNECTED)
        try:
            return await read_message(self._reader, MAX_STREAMED, SILENT_S)
        except TimeoutError:
            raise RecorderError(f"{self._subject()} sent nothing for {SILENT_S:.0f} s") from None
        except (OSError, asyncio.IncompleteReadError):
            why = await self._route.why_closed() or f"{self._subject()} closed the connection"
            raise RecorderError(why) from None
        except MessageError as error:
            raise RecorderError(f"{self._subject()} sent an invalid message: {error}") from None

    def _unanswered(self) -> dict[str, Any]:
        return {"error": ENDED if self.ended else NOT_CONNECTED, "kind": "store"}

    def _subject(self) -> str:
        return f"the recorder on {self.place}" if self.place else "the recorder"

    async def _handle(self, message: dict[str, Any]) -> None:
        """Apply a message. Raises RecorderError for an invalid one."""
        try:
            if "reply" in message:
                number, reply = message["reply"], decode(message["message"][LENGTH.size :])
                if (waiting := self._waiting.get(number)) is not None:
                    if "names" not in reply and "rows" not in reply:  # it is the last one
                        del self._waiting[number]
                    waiting(reply)
                return
            if "state" in message:
                self._restore(message["state"])
            await self._apply(message.get("events", ()))
            for history in message.get("history", ()):
                restore_history(self.fleet, history)
            if "now" in message:
                ahead_s = message["now"] - _boot_time()
                self._ahead_s = ahead_s if "state" in message else max(self._ahead_s, ahead_s)
                self.recorder = _status(message["recorder"])
        except (EventError, ReplicaError, MessageError, KeyError, TypeError, ValueError) as error:
            _LOG.warning("an invalid message", exc_info=True)
            raise RecorderError(f"{self._subject()} sent an invalid message: {error}") from None
        if "error" in message:
            raise RecorderError(str(message["error"]))
        if "ended" in message:
            self._ended_at, self.ended = self.now(), True
            self.report = message["ended"]
            self.interruption = "the recording ended; q closes this screen"
        self._flush()

    def _restore(self, state: dict[str, Any]) -> None:
        self._events = EventReader()
        self.fleet = restore_fleet(state, self._events)
        self.started_at, self.label = float(state["started_at"]), str(state["label"])
        self.job_id = str(state["job_id"])
        self.path, self.uid = Path(state["path"]), str(state["uid"])
        self.recording_id = int(state["recording_id"])
        self.connected = True

    async def _apply(self, packed: list[list[Any]]) -> None:
        """Apply events, with pauses between some frames, in which keys are handled."""
        frames: list[FrameArrived] = []
        for values in packed:
            event = self._events.event(values)
            if isinstance(event, FrameArrived):
                frames.append(event)
                if len(frames) == FRAMES_AT_ONCE:
                    self.fleet.apply_frames(frames)
                    frames.clear()
                    await asyncio.sleep(PAUSE_S)
                continue
            self.fleet.apply_frames(frames)
            frames.clear()
            self.fleet.apply(event)
        self.fleet.apply_frames(frames)

    def _flush(self) -> None:
        for callback in list(self.flushed):
            callback()

    # Requests

    def request(self, message: dict[str, Any], reply: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Send a request; ``reply`` gets each message of its reply. Return what cancels it."""
        number = next(self._numbers)
        if self._writer is None:
            reply(self._unanswered())
            return lambda: None
        self._waiting[number] = reply
        self._writer.write(encode(message | {"number": number, "version": VERSION}))

        def cancel() -> None:
            if self._waiting.pop(number, None) is not None and self._writer is not None:
                self._writer.write(encode({"cancel": number}))

        return cancel

    async def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let the recorder carry out an intent; return its result, which is on disk. Raises RecorderError."""
        return await self.fetch(intent.message())

    async def fetch(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request that has one reply, and return it. Raises RecorderError."""
        replied: asyncio.Future[dict[str, Any]] = self.loop.create_future()
        cancel = self.request(message, lambda reply: None if replied.done() else replied.set_result(reply))
        try:
            return result_of(await replied)
        finally:
            cancel()


def _boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _status(counts: list[Any] | None) -> RecorderStatus | None:
    if counts is None:
        return None
    path, rows, file_bytes, waiting, error, closed = counts
    return typed(RecorderStatus, path, rows, file_bytes, waiting, {}, error, closed)
