"""Query source for a recording that is being written: its recorder runs the queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from gswarm_tui.control.client import CANCELLED, Connection, Head, result_of
from gswarm_tui.control.intents import RecorderError, RefusedError
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, Result

if TYPE_CHECKING:
    from gswarm_tui.control.recorder import Recorder
    from gswarm_tui.store.querying.arrays import Arrays


class RecorderSource:
    """Query source of a running recording; ``send`` sends a query. Call it outside an event loop."""

    running = True

    def __init__(self, path: Path, send: Callable[[dict[str, Any]], _Request]) -> None:
        self.path = path
        self._send = send
        self._lock = threading.Lock()
        self._open: set[_Request] = set()

    @classmethod
    def of_recorder(cls, recorder: Recorder) -> RecorderSource:
        """Return a source that sends queries over a client's connection."""
        return cls(recorder.path, lambda message: _StreamedRequest(recorder, message))

    @classmethod
    def of_head(cls, head: Head, path: Path) -> RecorderSource:
        """Return a source that connects to a recorder for each query."""

        def send(message: dict[str, Any]) -> Connection:
            connection = Connection(head, timeout_s=None)
            connection.send(message)
            return connection

        return cls(path, send)

    def query(self, sql: str, *values: object) -> Result:
        """Run one statement that reads. Raises QueryError, StoreError."""
        request = self._request("query", sql, values)
        head = self._receive(request)
        return Result(head["names"], head["types"], self._batches(request), lambda: self._close(request))

    def _batches(self, request: _Request) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while "end" not in (reply := self._receive(request)):
                yield [tuple(row) for row in reply["rows"]]
        finally:
            self._close(request)

    def arrays(self, sql: str, *values: object) -> Arrays:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        from gswarm_tui.store.querying.arrays import unpack_arrays

        request = self._request("arrays", sql, values)
        try:
            return unpack_arrays(self._receive(request)["arrays"])
        finally:
            self._close(request)

    def _request(self, want: str, sql: str, values: tuple[object, ...]) -> _Request:
        try:
            request = self._send({"want": want, "sql": sql, "values": list(values)})
        except RecorderError as error:
            raise StoreError(str(error)) from None
        with self._lock:
            self._open.add(request)
        return request

    def _receive(self, request: _Request) -> dict[str, Any]:
        try:
            return result_of(request.receive())
        except RecorderError as error:
            self._close(request)
            raise (QueryError if isinstance(error, RefusedError) else StoreError)(str(error)) from None

    def _close(self, request: _Request) -> None:
        with self._lock:
            self._open.discard(request)
        request.close()

    def interrupt(self) -> None:
        """Cancel all running queries, from any thread; they raise QueryError."""
        with self._lock:
            requests = list(self._open)
        for request in requests:
            request.cancel()

    close = interrupt


class _StreamedRequest:
    """A query over a client's stream: its replies arrive on the event loop."""

    def __init__(self, recorder: Recorder, message: dict[str, Any]) -> None:
        self._recorder = recorder
        self._replies: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._forget: Callable[[], None] = lambda: None
        recorder.loop.call_soon_threadsafe(self._send, message)

    def _send(self, message: dict[str, Any]) -> None:
        self._forget = self._recorder.request(message, self._replies.put)

    def _cancel(self) -> None:
        self._forget()

    def receive(self) -> dict[str, Any]:
        return self._replies.get()

    def cancel(self) -> None:
        self._replies.put({"error": CANCELLED, "kind": "query"})

    def close(self) -> None:
        if not self._recorder.loop.is_closed():
            self._recorder.loop.call_soon_threadsafe(self._cancel)


_Request = Connection | _StreamedRequest
"""A query that was sent, whose replies ``receive`` returns in any thread."""
