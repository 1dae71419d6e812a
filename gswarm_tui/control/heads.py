"""The heads of this user that run on this machine: what they say of themselves, and marks for them.

Quick to import, because marks are set in training loops: no database is needed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswarm_agent.mark import MarkError
from gswarm_agent.requests import connect, is_own
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

PATIENCE_S = 5.0


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
            with contextlib.closing(Line(connect(folder), PATIENCE_S)) as line:
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


def gone(head: Head) -> str:
    """What to say where a head didn't answer: whether it runs is looked up."""
    named = f"the gswarm-tui that records {head.path or 'nothing'}"
    try:
        reach(head, PATIENCE_S).close()
    except OSError:
        return f"{named} ended before it had answered; ask again"
    return f"{named} closed the connection without an answer; ask again"


def mark(head: Head, name: str, values: Mapping[str, int | float | str]) -> None:
    """Sets a mark in a head's recording, now. Raises MarkError."""
    try:
        with contextlib.closing(reach(head, PATIENCE_S)) as line:
            said = line.ask({"want": "mark", "name": name, "values": dict(values)})
    except (OSError, MessageError):
        raise MarkError(gone(head)) from None
    if "error" in said:
        raise MarkError(str(said["error"]))


def reach(head: Head, patience_s: float | None) -> Line:
    """A connection to a head. Raises OSError where it is gone."""
    for folder in places.running((head.top,)):
        if folder.name == head.name:
            with contextlib.suppress(OSError):
                return Line(connect(folder), patience_s)
    raise ConnectionRefusedError("it has ended")


class Line:
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
