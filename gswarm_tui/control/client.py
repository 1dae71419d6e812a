"""Client of the running heads of this user on this machine: their state, and intents for them.

Imports no database, because training loops set marks.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gswarm_agent.attach import connect
from gswarm_agent.folder import Folder
from gswarm_tui.common.errors import UserError
from gswarm_tui.control import registry
from gswarm_tui.control.intents import Intent
from gswarm_tui.control.messages import (
    LENGTH,
    MAX_REPLY,
    MAX_REQUEST,
    VERSION,
    MessageError,
    decode,
    encode,
    message_length,
)

TIMEOUT_S = 5.0
CANCELLED = "the query was cancelled"


class RequestError(UserError):
    """Raised for a request that a recorder refused or did not answer; the message gives the reason."""

    exit_status = 1


class RefusedIntentError(RequestError):
    """Raised for a request that a recorder refused: to repeat it won't help."""


class NoHeadError(UserError):
    """Raised if no running gswarm-tui fits."""

    exit_status = 3


@dataclass(frozen=True)
class Head:
    """A running gswarm-tui of this user on this machine; ``path`` is its recording, None without one.

    ``uid`` is the recording's id, ``started_at`` is Unix time in seconds, ``nodes`` are those watched. Its
    private folder is ``name`` in ``parent_folder``. ``metrics`` are the groups of metrics that are on. A head
    that ``hangs`` doesn't answer: it is suspended or stuck, and its recording is the one that it noted when
    it started. ``job`` is the label of its Slurm job, ``status`` all that it reports of itself.
    """

    pid: int
    path: Path | None
    uid: str
    started_at: float
    nodes: tuple[str, ...]
    parent_folder: str
    name: str
    hangs: bool = False
    metrics: tuple[str, ...] = ()
    job: str = ""
    status: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def records(self, path: Path) -> bool:
        """Return whether the head records into this file, also under another name."""
        with contextlib.suppress(OSError):
            return self.path is not None and (self.path == path.absolute() or self.path.samefile(path))
        return False

    def is_named(self, word: str) -> bool:
        """Return whether a word names it: the beginning of its ID, its job, file, session or process."""
        sessions = {session["name"] for session in self.status.get("sessions", ())}
        files = {self.path.name, self.path.stem} if self.path is not None else set()
        return (
            bool(word and self.uid.startswith(word))
            or word in {self.job, str(self.pid)} | files | sessions
            or self.of_job(word)
        )

    def of_job(self, job_id: str) -> bool:
        """Return whether its nodes are those of a job with this ID."""
        return bool(job_id) and self.job.rpartition(" ")[2] == job_id

    def has_ended(self) -> bool:
        """Return whether it has closed its recording and its socket."""
        return all(folder.name != self.name for folder in registry.running_folders((self.parent_folder,)))

    def describe_hang(self) -> str:
        """Explain that it doesn't answer, and what to do about it."""
        group = str(self.pid)
        with contextlib.suppress(ProcessLookupError):  # its parent is stopped, too
            group = f"-- -{os.getpgid(self.pid)}"
        return (
            f"{self.path or 'nothing'} is being recorded by gswarm-tui, process {self.pid}, which doesn't "
            f"answer; if it is suspended, resume it with kill -s CONT {group}, else end it with "
            f"kill -9 {self.pid}"
        )

    def connect(self) -> socket.socket:
        """Return a connection to its socket. Raises RequestError if it hangs or has ended."""
        for folder in registry.running_folders((self.parent_folder,)):
            if folder.name == self.name:
                try:
                    return connect(folder)
                except TimeoutError:
                    raise RequestError(self.describe_hang()) from None
                except OSError:
                    break
        raise RequestError(self.describe_end())

    def describe_end(self) -> str:
        """Explain that it ended during a request."""
        subject = f"the gswarm-tui that records {self.path or 'nothing'}"
        return f"{subject} ended before it replied; run the command again"

    def request(self, want: str) -> dict[str, Any]:
        """Return what it reports: its nodes, sessions or newest trace. Raises RequestError."""
        return self._request({"want": want})

    def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let it carry out an intent, and return the result. Raises RequestError."""
        return self._request(intent.message())

    def _request(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.hangs:
            raise RequestError(self.describe_hang())
        with contextlib.closing(Connection(self, TIMEOUT_S)) as connection:
            reply = connection.request(message)
        if "error" in reply:
            raise RefusedIntentError(str(reply["error"]))
        return reply


def running_heads(environ: Mapping[str, str]) -> list[Head]:
    """Return the running heads, the newest first and those that hang last."""
    heads = []
    for folder in registry.running_folders(registry.parent_folders(environ)):
        with contextlib.suppress(OSError, MessageError, KeyError, TypeError, ValueError):
            try:
                heads.append(_query_status(folder))
            except TimeoutError:
                heads.append(_hanging_head(folder))
    return sorted(heads, key=lambda head: -head.started_at)


def _query_status(folder: Folder) -> Head:
    with connect(folder) as connection:
        connection.settimeout(TIMEOUT_S)
        status = request(connection, {"want": "status"})
    path = None if status["path"] is None else Path(status["path"])
    return Head(
        status["pid"],
        path,
        status["uid"] or "",
        status["started_at"],
        tuple(status["nodes"]),
        folder.top,
        folder.name,
        metrics=tuple(status.get("metrics", ())),
        job=status.get("job") or "",
        status=status,
    )


def _hanging_head(folder: Folder) -> Head:
    if (note := registry.note_of(folder.name)) is None:
        return Head(int(folder.name), None, "", 0.0, (), folder.top, folder.name, hangs=True)
    return Head(note.pid, note.path, note.uid, 0.0, (), folder.top, folder.name, hangs=True)


def request(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request over a connection and return the first reply. Raises OSError, MessageError."""
    connection.sendall(encode(message | {"version": VERSION}, MAX_REQUEST))
    return _receive(connection)


def _receive(connection: socket.socket) -> dict[str, Any]:
    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (piece := connection.recv(min(size - len(data), 1 << 20))):
                raise ConnectionResetError("it has ended")
            data += piece
        return bytes(data)

    return decode(read(message_length(read(LENGTH.size), MAX_REPLY)))


class Connection:
    """A connection to a head, for one request whose replies and further messages belong together."""

    def __init__(self, head: Head, timeout_s: float | None) -> None:
        """Connect; a reply may take ``timeout_s``. Raises RequestError if the head hangs or has ended."""
        self._head = head
        self._cancelled = False
        self._connection = head.connect()
        self._connection.settimeout(timeout_s)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the first reply. Raises RequestError."""
        self.send(message)
        return self.receive()

    def send(self, message: dict[str, Any], limit: int = MAX_REQUEST) -> None:
        """Send a request, whose reply ``receive`` returns. Raises RequestError."""
        try:
            self._connection.sendall(encode(message | {"version": VERSION}, limit))
        except MessageError as error:
            raise RequestError(f"the request is too long: {error}") from None
        except OSError:
            raise RequestError(self._head.describe_end()) from None

    def receive(self) -> dict[str, Any]:
        """Return the next reply. Raises RequestError."""
        try:
            return _receive(self._connection)
        except TimeoutError:
            raise RequestError(self._head.describe_hang()) from None
        except (OSError, MessageError):
            if self._cancelled:
                return {"error": CANCELLED, "kind": "query"}
            raise RequestError(self._head.describe_end()) from None

    def cancel(self) -> None:
        """Close the connection while another thread reads."""
        self._cancelled = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
