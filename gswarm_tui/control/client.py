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

from gswarm_agent.folder import Folder
from gswarm_agent.requests import connect, is_own
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


class RequestError(Exception):
    """Raised for a request that a head refused or did not answer; the message gives the reason."""


class RefusedIntentError(RequestError):
    """Raised for a request that a head refused: to repeat it won't help."""


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
    with contextlib.closing(Connection(connect(folder, TIMEOUT_S), TIMEOUT_S)) as connection:
        status = connection.request({"want": "status"})
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


def describe_hang(head: Head) -> str:
    """Explain that a head doesn't answer, and what to do about it."""
    group = str(head.pid)
    with contextlib.suppress(ProcessLookupError):  # its parent is stopped, too
        group = f"-- -{os.getpgid(head.pid)}"
    return (
        f"{head.path or 'nothing'} is being recorded by gswarm-tui, process {head.pid}, which doesn't "
        f"answer; if it is suspended, resume it with kill -s CONT {group}, else end it with "
        f"kill -9 {head.pid}"
    )


def describe_missing_reply(head: Head) -> str:
    """Explain why a head sent no reply: it hangs, it ended, or it closed the connection."""
    subject = f"the gswarm-tui that records {head.path or 'nothing'}"
    try:
        connect_to(head, TIMEOUT_S).close()
    except TimeoutError:
        return describe_hang(head)
    except OSError:
        return f"{subject} ended before it replied; run the command again"
    return f"{subject} closed the connection without a reply; run the command again"


def carry_out(head: Head, intent: Intent) -> dict[str, Any]:
    """Let a head carry out an intent, and return the result. Raises RequestError."""
    return _request(head, intent.message())


def list_nodes(head: Head) -> list[dict[str, Any]]:
    """Return the state of each node of a head. Raises RequestError."""
    nodes: list[dict[str, Any]] = _request(head, {"want": "nodes"})["nodes"]
    return nodes


def list_sessions(head: Head) -> list[dict[str, Any]]:
    """Return the sessions of a head's recording, in the order of their start. Raises RequestError."""
    sessions: list[dict[str, Any]] = _request(head, {"want": "sessions"})["sessions"]
    return sessions


def trace_state(head: Head) -> dict[str, Any]:
    """Return the state of a head's newest trace, empty without one. Raises RequestError."""
    return _request(head, {"want": "trace"})


def _request(head: Head, message: dict[str, Any]) -> dict[str, Any]:
    """Send a request and return its reply. Raises RequestError."""
    if head.hangs:
        raise RequestError(describe_hang(head))
    try:
        with contextlib.closing(connect_to(head, TIMEOUT_S)) as connection:
            reply = connection.request(message)
    except TimeoutError:
        raise RequestError(describe_hang(head)) from None
    except (OSError, MessageError):
        raise RequestError(describe_missing_reply(head)) from None
    if "error" in reply:
        raise RefusedIntentError(str(reply["error"]))
    return reply


def has_ended(head: Head) -> bool:
    """Return whether a head has closed its recording and its socket."""
    return all(folder.name != head.name for folder in registry.running_folders((head.parent_folder,)))


def connect_to(head: Head, timeout_s: float | None) -> Connection:
    """Connect to a head. Raises OSError if it has ended, TimeoutError if it hangs."""
    return Connection(open_socket(head), timeout_s)


def open_socket(head: Head) -> socket.socket:
    """Return a connection to a head's socket. Raises OSError if it has ended, TimeoutError if it hangs."""
    for folder in registry.running_folders((head.parent_folder,)):
        if folder.name == head.name:
            try:
                return connect(folder, TIMEOUT_S)
            except TimeoutError:
                raise
            except OSError:
                break
    raise ConnectionRefusedError("it has ended")


class Connection:
    """A connection to a head, for one request."""

    def __init__(self, connection: socket.socket, timeout_s: float | None) -> None:
        """Raises OSError if the other end belongs to another user."""
        self._connection = connection
        self.cancelled = False
        if not is_own(connection):
            connection.close()
            raise OSError("it belongs to another user")
        connection.settimeout(timeout_s)

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the first reply. Raises OSError, MessageError."""
        self.send(message)
        return self.read()

    def send(self, message: dict[str, Any], limit: int = MAX_REQUEST) -> None:
        """Send a request, whose reply ``read`` returns. Raises OSError, MessageError."""
        self._connection.sendall(encode(message | {"version": VERSION}, limit))

    def read(self) -> dict[str, Any]:
        """Return the next reply. Raises OSError, MessageError."""
        return decode(self._receive(message_length(self._receive(LENGTH.size), MAX_REPLY)))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (piece := self._connection.recv(min(size - len(data), 1 << 20))):
                raise ConnectionResetError("it has ended")
            data += piece
        return bytes(data)

    def cancel(self) -> None:
        """Close the connection while another thread reads."""
        self.cancelled = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
