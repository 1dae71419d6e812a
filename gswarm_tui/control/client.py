"""A recording that is being written, as a source of answers: its head is asked over the private socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gswarm_tui.control.heads import Head, Line, gone, reach
from gswarm_tui.control.messages import MessageError
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.results import QueryError, Result


class _UnansweredError(StoreError):
    """The connection ended, with no word of why."""


class RunningSource:
    """A recording that is being written, which its head answers for: a connection for each query."""

    running = True

    def __init__(self, head: Head, path: Path) -> None:
        """``head`` writes the file at ``path``. Nothing is connected yet."""
        self.path = path
        self._head = head
        self._lines: set[Line] = set()
        self._lock = threading.Lock()

    def query(self, sql: str, *values: object) -> Result:
        """The answer to one statement that reads. Raises QueryError, StoreError."""
        try:
            return self._ask(sql, values)
        except _UnansweredError:  # it changes nothing to ask that again
            return self._ask(sql, values)

    def _ask(self, sql: str, values: tuple[object, ...]) -> Result:
        try:
            line = reach(self._head, None)
        except OSError:
            raise StoreError(gone(self._head)) from None
        with self._lock:
            self._lines.add(line)

        def close() -> None:
            line.close()
            with self._lock:
                self._lines.discard(line)

        try:
            said = self._said(line, lambda: line.ask({"want": "query", "sql": sql, "values": list(values)}))
        except BaseException:
            close()
            raise
        return Result(said["names"], said["types"], self._batches(line, close), close)

    def _batches(self, line: Line, close: Callable[[], None]) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while "end" not in (said := self._said(line, line.read)):
                yield [tuple(row) for row in said["rows"]]
        finally:
            close()

    def _said(self, line: Line, say: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What comes next. Raises QueryError, StoreError."""
        try:
            said = say()
        except (OSError, MessageError):
            if line.cancelled:
                raise QueryError("the query was cancelled") from None
            raise _UnansweredError(gone(self._head)) from None
        _raise_error(said)
        return said

    def interrupt(self) -> None:
        """Ends what isn't answered yet, from any thread: QueryError is raised where it is awaited."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            line.cancel()

    def close(self) -> None:
        """Let go of it; what isn't answered yet ends."""
        self.interrupt()


def _raise_error(said: Mapping[str, Any]) -> None:
    if "error" in said:
        raise (QueryError if said.get("kind") == "query" else StoreError)(str(said["error"]))
