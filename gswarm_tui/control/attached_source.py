"""Query source for a viewer: its recorder runs the queries, over the viewer's connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.arrays import Arrays, unpack_arrays
from gswarm_tui.store.querying.results import QueryError, Result

_CANCELLED = {"error": "the query was cancelled", "kind": "query"}


class AttachedSource:
    """Query source of an attached run; call its methods in other threads than the event loop's."""

    running = True

    def __init__(self, run: AttachedRun) -> None:
        self.path = run.path
        self._run = run
        self._lock = threading.Lock()
        self._open: set[_Request] = set()

    def query(self, sql: str, *values: object) -> Result:
        """Run one statement that reads. Raises QueryError, StoreError."""
        request = self._send("query", sql, values)
        head = request.receive()
        return Result(head["names"], head["types"], self._batches(request), request.close)

    def _batches(self, request: _Request) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while "end" not in (reply := request.receive()):
                yield [tuple(row) for row in reply["rows"]]
        finally:
            request.close()

    def arrays(self, sql: str, *values: object) -> Arrays:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        request = self._send("arrays", sql, values)
        try:
            return unpack_arrays(request.receive()["arrays"])
        finally:
            request.close()

    def _send(self, want: str, sql: str, values: tuple[object, ...]) -> _Request:
        request = _Request(self._run.loop, self._ended)
        with self._lock:
            self._open.add(request)
        message = {"want": want, "sql": sql, "values": list(values)}
        self._run.loop.call_soon_threadsafe(request.send, self._run, message)
        return request

    def _ended(self, request: _Request) -> None:
        with self._lock:
            self._open.discard(request)

    def interrupt(self) -> None:
        """Cancel all running queries, from any thread; they raise QueryError."""
        with self._lock:
            requests = list(self._open)
        for request in requests:
            request.replies.put(_CANCELLED)

    close = interrupt


class _Request:
    """One request and its replies, which arrive on the event loop and are received in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[_Request], None]) -> None:
        self.replies: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._loop = loop
        self._ended = ended
        self._cancel: Callable[[], None] = lambda: None

    def send(self, run: AttachedRun, message: dict[str, Any]) -> None:
        """Send it; called on the event loop."""
        self._cancel = run.request(message, self.replies.put)

    def receive(self) -> dict[str, Any]:
        """Return the next reply. Raises QueryError, StoreError."""
        reply = self.replies.get()
        if "error" in reply:
            self.close()
            raise (QueryError if reply.get("kind") == "query" else StoreError)(str(reply["error"]))
        return reply

    def close(self) -> None:
        """Let the recorder forget it, if it hasn't been answered."""
        self._ended(self)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._cancel()
