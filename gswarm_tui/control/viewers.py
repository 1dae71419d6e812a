"""Viewers of a recorder: streams of its fleet's state and events, over connections to its socket.

A viewer's stream begins with the fleet's state. After each flush of the hub follow the events since the last
one, encoded once for all viewers. Nothing waits for a viewer: one that doesn't keep up is sent nothing until
it has read all, and then the state again. Histories follow the state as fast as the viewer reads.
docs/decisions/014-viewers.md has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gswarm_tui.control.messages import MAX_STREAMED, MessageError, encode
from gswarm_tui.fleet.event_codec import encode_event
from gswarm_tui.fleet.events import Event
from gswarm_tui.fleet.replica import fleet_state, node_history
from gswarm_tui.link.hub import Hub

BEHIND_BYTES = 4 * 1024 * 1024
"""A viewer that has more than this to read is sent nothing until it has read all."""
HISTORY_BYTES = 1024 * 1024
"""About as much history is sent at once."""
END_S = 1.0
"""Viewers have this long to read that the recording has ended."""
MAX_VIEWERS = 64

Send = Callable[[bytes], Awaitable[None]]

_LOG = logging.getLogger(__name__)


class Client:
    """One client's connection and its running requests.

    Each request has a number, which its replies repeat, and ``{"cancel": number}`` cancels it. A request
    without a number gets bare replies; a client can have one of these at a time. A viewer that is
    ``following`` is sent events, else it needs the state first. ``screen``: somebody looks at it, in a
    terminal or a browser.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.screen = self.read_only = self.following = False
        self.history: asyncio.Task[None] | None = None
        self.requests: dict[int | None, asyncio.Task[None]] = {}
        self._replying = asyncio.Lock()

    @property
    def unread(self) -> int:
        """Bytes that wait in this process for the client."""
        return self.writer.transport.get_write_buffer_size()

    async def reply(self, number: int | None, message: bytes) -> None:
        """Send a message that replies to the request with this number."""
        async with self._replying:  # else all replies that wait here would be written at once
            await self.writer.drain()
            if number is not None:
                message = encode({"reply": number, "message": message}, MAX_STREAMED)
            self.writer.write(message)

    async def end(self) -> None:
        """End its tasks."""
        tasks = [task for task in (self.history, *self.requests.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(eq=False)
class Viewers:
    """All viewers of a hub; ``description`` returns facts about the recording, sent first.

    ``attended`` is called when a screen comes or goes.
    """

    hub: Hub
    description: Callable[[], Mapping[str, Any]]
    attended: Callable[[], None]

    def __post_init__(self) -> None:
        self._streams: list[Client] = []
        self._events: Sequence[Event] = ()

    @property
    def screens(self) -> int:
        """Number of screens in terminals and browsers."""
        return sum(stream.screen for stream in self._streams)

    async def end(self, report: Mapping[str, Any]) -> None:
        """Tell all viewers that the recording has ended; those that don't keep up won't learn it."""
        following = [stream.writer for stream in self._streams if stream.following]
        if following:
            for writer in following:
                writer.transport.set_write_buffer_limits(0)
                writer.write(encode({"ended": report, **self._progress()}))
            drained = asyncio.gather(*(writer.drain() for writer in following), return_exceptions=True)
            await asyncio.wait({drained}, timeout=END_S)

    def add(self, client: Client, request: Mapping[str, Any]) -> None:
        """Send a client the state and then all events. Raises MessageError if there are too many viewers."""
        if client in self._streams or len(self._streams) >= MAX_VIEWERS:
            raise MessageError(f"{len(self._streams)} viewers are attached; close one first")
        client.screen, client.read_only = bool(request.get("screen")), bool(request.get("read_only"))
        if not self._streams:
            self.hub.sinks.append(self)
            self.hub.flushed.append(self._flushed)
        self._streams.append(client)
        self.attended()
        self.hub.flush()

    def remove(self, client: Client) -> None:
        """Send a client no more events, if it is a viewer."""
        if client not in self._streams:
            return
        self._streams.remove(client)
        if not self._streams:
            self.hub.sinks.remove(self)
            self.hub.flushed.remove(self._flushed)
        self.attended()

    # The stream

    def submit(self, events: Sequence[Event]) -> None:
        """Take the events of a flush."""
        self._events = events

    def _flushed(self) -> None:
        """Send the events; an error disconnects the viewers, which reconnect, but not the recorder."""
        events, self._events = self._events, ()
        try:
            self._send(events)
        except Exception:
            _LOG.exception("events could not be sent to the viewers")
            for stream in self._streams:
                stream.writer.transport.abort()

    def _send(self, events: Sequence[Event]) -> None:
        """Send events to the viewers that keep up, and the state to those that have read all."""
        message = b""
        for stream in self._streams:
            unread = stream.unread
            if stream.following and unread > BEHIND_BYTES:
                stream.following = False
                _LOG.info("a viewer doesn't keep up: %d bytes wait", unread)
            if stream.following:
                if not message:
                    message = encode({"events": [encode_event(each) for each in events], **self._progress()})
                stream.writer.write(message)
            elif not unread:
                self._restart(stream)

    def _progress(self) -> dict[str, Any]:
        """Return the head's time and the recorder's state."""
        state, now = self.hub.recorder, self.hub.now()
        if state is None:
            return {"now": now, "recorder": None}
        counts = state.rows, state.file_bytes, state.waiting
        return {"now": now, "recorder": [state.path, *counts, state.error, state.closed]}

    def _restart(self, stream: Client) -> None:
        """Send the state of the fleet, and then the histories of its nodes."""
        stream.following = True
        state = {**self.description(), "started_at": self.hub.started_at, **fleet_state(self.hub.fleet)}
        stream.writer.write(encode({"state": state, **self._progress()}))
        if stream.history is not None:
            stream.history.cancel()
        stream.history = asyncio.create_task(self._send_history(stream))

    async def _send_history(self, stream: Client) -> None:
        """Send all nodes' histories, as fast as the viewer reads."""
        names = list(self.hub.fleet.nodes)
        with suppress(OSError):
            while names:
                await stream.writer.drain()
                if not stream.following:
                    return
                # What the fleet has applied must be sent before, or the viewer would add it once more.
                self.hub.flush()
                stream.writer.write(encode({"history": list(self._histories(names))}))

    def _histories(self, names: list[str]) -> Iterator[list[Any]]:
        """Take names off the list and yield their histories, up to about ``HISTORY_BYTES``."""
        size = 0
        while names and size < HISTORY_BYTES:
            if (history := node_history(self.hub.fleet.nodes[names.pop(0)])) is not None:
                size += sum(len(part) for parts in history[1:] for part in parts)
                yield history
