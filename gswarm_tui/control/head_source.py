"""Query source for a recording that is being written: its head runs the queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gswarm_tui.control.client import Connection, Head, connect_to, describe_hang, describe_missing_reply
from gswarm_tui.control.messages import MessageError
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, Result


class HeadSource:
    """Query source that sends each query to the recording's running head, over its own connection."""

    running = True

    def __init__(self, head: Head, path: Path) -> None:
        """``head`` writes the file at ``path``; each query connects."""
        self.path = path
        self._head = head
        self._connections: set[Connection] = set()
        self._lock = threading.Lock()

    def query(self, sql: str, *values: object) -> Result:
        """Run one statement that reads. Raises QueryError, StoreError."""
        try:
            connection = connect_to(self._head, None)
        except TimeoutError:
            raise StoreError(describe_hang(self._head)) from None
        except OSError:
            raise StoreError(describe_missing_reply(self._head)) from None
        with self._lock:
            self._connections.add(connection)

        def close() -> None:
            connection.close()
            with self._lock:
                self._connections.discard(connection)

        try:
            request = {"want": "query", "sql": sql, "values": list(values)}
            reply = self._checked(connection, lambda: connection.request(request))
        except BaseException:
            close()
            raise
        return Result(reply["names"], reply["types"], self._batches(connection, close), close)

    def _batches(self, connection: Connection, close: Callable[[], None]) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while "end" not in (reply := self._checked(connection, connection.read)):
                yield [tuple(row) for row in reply["rows"]]
        finally:
            close()

    def _checked(self, connection: Connection, receive: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the next reply. Raises QueryError, StoreError."""
        try:
            reply = receive()
        except (OSError, MessageError):
            if connection.cancelled:
                raise QueryError("the query was cancelled") from None
            raise StoreError(describe_missing_reply(self._head)) from None
        if "error" in reply:
            raise (QueryError if reply.get("kind") == "query" else StoreError)(str(reply["error"]))
        return reply

    def interrupt(self) -> None:
        """Cancel all running queries, from any thread; they raise QueryError."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.cancel()

    close = interrupt
