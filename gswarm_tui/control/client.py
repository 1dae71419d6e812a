"""A command's end of a running head's socket: which heads there are, their answers, and marks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswarm_agent.attach import connect
from gswarm_agent.visitor import is_own
from gswarm_tui.control import places
from gswarm_tui.control.messages import (
    LENGTH,
    MAX_REPLY,
    MAX_REQUEST,
    VERSION,
    MessageError,
    decode,
    encode,
    length,
)
from gswarm_tui.store.asking import Answer, QueryError
from gswarm_tui.store.database import StoreError

PATIENCE_S = 5.0
_GONE = "the gswarm-tui that records {} ended before it had answered; ask again"


@dataclass(frozen=True)
class Head:
    """A running gswarm-tui of this user on this machine; ``path`` is its recording, None without one.

    ``uid`` is the recording's name to the agents, ``started_at`` is Unix time in seconds, ``nodes`` are those
    that it watches.
    """

    pid: int
    path: Path | None
    uid: str
    started_at: float
    nodes: tuple[str, ...]
    top: str
    name: str

    def records(self, path: Path) -> bool:
        """Whether this is the file that it writes, by whatever name."""
        with contextlib.suppress(OSError):
            return self.path is not None and (self.path == path.absolute() or self.path.samefile(path))
        return False


def heads(environ: Mapping[str, str]) -> list[Head]:
    """The heads that run, the newest first; those that don't answer in time aren't among them."""
    found = []
    for folder in places.running(places.tops(environ)):
        with contextlib.suppress(OSError, MessageError, KeyError, TypeError, ValueError):
            with contextlib.closing(_Line(connect(folder), PATIENCE_S)) as line:
                said = line.ask({"want": "status"})
            path = None if said["path"] is None else Path(said["path"])
            found.append(
                Head(
                    said["pid"],
                    path,
                    said["uid"],
                    said["started_at"],
                    tuple(said["nodes"]),
                    folder.top,
                    folder.name,
                )
            )
    return sorted(found, key=lambda head: -head.started_at)


def mark(head: Head, name: str, values: Mapping[str, int | float | str]) -> None:
    """Sets a mark in a head's recording, now. Raises QueryError, StoreError."""
    with contextlib.closing(_reach(head, PATIENCE_S)) as line:
        try:
            _raise_error(line.ask({"want": "mark", "name": name, "values": dict(values)}))
        except (OSError, MessageError):
            raise StoreError(_GONE.format(head.path or "nothing")) from None


class RunningSource:
    """A recording that is being written, which its head answers for: a connection for each query."""

    running = True

    def __init__(self, head: Head, path: Path) -> None:
        """``head`` writes the file at ``path``. Nothing is connected yet."""
        self.path = path
        self._head = head
        self._lines: set[_Line] = set()
        self._lock = threading.Lock()

    def ask(self, sql: str, *values: object) -> Answer:
        """The answer to one statement that reads. Raises QueryError, StoreError."""
        line = _reach(self._head, None)
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
        return Answer(said["names"], said["types"], self._batches(line, close), close)

    def _batches(self, line: _Line, close: Callable[[], None]) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while "end" not in (said := self._said(line, line.read)):
                yield [tuple(row) for row in said["rows"]]
        finally:
            close()

    def _said(self, line: _Line, say: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What comes next. Raises QueryError, StoreError."""
        try:
            said = say()
        except (OSError, MessageError):
            if line.cancelled:
                raise QueryError("the query was cancelled") from None
            raise StoreError(_GONE.format(self.path)) from None
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


class _Line:
    """A connection to a head, which is asked one thing."""

    def __init__(self, connection: socket.socket, patience_s: float | None) -> None:
        """Raises OSError where nobody of this user's is at the other end."""
        self._connection = connection
        self.cancelled = False
        if not is_own(connection):
            connection.close()
            raise OSError("it is another user's")
        connection.settimeout(patience_s)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The first answer. Raises OSError, MessageError."""
        self._connection.sendall(encode(request | {"version": VERSION}, MAX_REQUEST))
        return self.read()

    def read(self) -> dict[str, Any]:
        """The next message. Raises OSError, MessageError."""
        return decode(self._exactly(length(self._exactly(LENGTH.size), MAX_REPLY)))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (piece := self._connection.recv(min(size - len(data), 1 << 20))):
                raise ConnectionResetError("it has ended")
            data += piece
        return bytes(data)

    def cancel(self) -> None:
        """Ends it while another thread reads."""
        self.cancelled = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it."""
        self._connection.close()


def _reach(head: Head, patience_s: float | None) -> _Line:
    """Raises StoreError where the head is gone."""
    for folder in places.running((head.top,)):
        if folder.name == head.name:
            with contextlib.suppress(OSError):
                return _Line(connect(folder), patience_s)
    raise StoreError(_GONE.format(head.path or "nothing"))


def _raise_error(said: Mapping[str, Any]) -> None:
    if "error" in said:
        raise (QueryError if said.get("kind") == "query" else StoreError)(str(said["error"]))
