"""The recorders of this user on this machine, and blocking requests to one of them.

``recorder.py`` has the client that follows a recorder. This module imports no database and no fleet, because
training loops set marks.
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
from gswarm_tui.control import messages, registry
from gswarm_tui.control.intents import Intent, RecorderError, RefusedError

RELAY_MAGIC = b"\x00gswarm-view\n"
"""The stream of ``attach --relay`` begins with it; what a login shell printed before is noise."""
TIMEOUT_S = 5.0
CANCELLED = "the query was cancelled"


class NoHeadError(UserError):
    """Raised if no running gswarm-tui fits."""

    exit_status = 3


@dataclass(frozen=True)
class Head:
    """A running gswarm-tui of this user on this machine; ``path`` is its recording, None without one.

    ``uid`` is the recording's id. Its private folder is ``name`` in ``parent_folder``. ``job`` is the label
    of its Slurm job, ``nodes`` are those watched, ``status`` is all that it reports of itself. A head that
    ``hangs`` doesn't answer: it is suspended or stuck, and its recording is the one that it noted when it
    started.
    """

    pid: int
    path: Path | None
    uid: str
    parent_folder: str
    name: str
    hangs: bool = False
    job: str = ""
    nodes: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def records(self, path: Path) -> bool:
        """Return whether the recorder records into this file, also under another name."""
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

    def describe_end(self) -> str:
        """Explain that it ended during a request."""
        subject = f"the gswarm-tui that records {self.path or 'nothing'}"
        return f"{subject} ended before it replied; run the command again"

    def connect(self) -> socket.socket:
        """Return a connection to its socket. Raises RecorderError if it hangs or has ended."""
        for folder in registry.running_folders((self.parent_folder,)):
            if folder.name == self.name:
                try:
                    return connect(folder)
                except TimeoutError:
                    raise RecorderError(self.describe_hang()) from None
                except OSError:
                    break
        raise RecorderError(self.describe_end())

    def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let it carry out an intent, and return the result. Raises RecorderError."""
        return self.request(intent.message())

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return the reply. Raises RecorderError."""
        if self.hangs:
            raise RecorderError(self.describe_hang())
        with contextlib.closing(Connection(self, TIMEOUT_S)) as connection:
            connection.send(message)
            return result_of(connection.receive())


def result_of(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a recorder's reply. Raises RefusedError for a refused request, RecorderError for a failure."""
    if "error" in reply:
        raise (RefusedError if reply.get("kind") == "query" else RecorderError)(str(reply["error"]))
    return reply


def running_heads(environ: Mapping[str, str]) -> list[Head]:
    """Return the running recorders, the newest first and those that hang last."""
    heads = []
    for folder in registry.running_folders(registry.parent_folders(environ)):
        with contextlib.suppress(OSError, messages.MessageError, KeyError, TypeError, ValueError):
            heads.append(_head(folder))
    return sorted(heads, key=lambda head: -head.status.get("started_at", 0.0))


def _head(folder: Folder) -> Head:
    """Return the head with this private folder. Raises OSError, MessageError and errors of its values."""
    hangs = False
    try:
        with connect(folder) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.sendall(
                messages.encode({"want": "status", "version": messages.VERSION}, messages.MAX_REQUEST)
            )
            status = _receive(connection)
    except TimeoutError:
        note, hangs = registry.read_note(f"{socket.gethostname()}-{folder.name}.json"), True
        status = {"pid": int(folder.name)} if note is None else note._asdict()
    path = status.get("path")
    return Head(
        status["pid"],
        None if path is None else Path(path),
        status.get("uid") or "",
        folder.top,
        folder.name,
        hangs,
        status.get("job") or "",
        tuple(status.get("nodes", ())),
        status,
    )


def _receive(connection: socket.socket) -> dict[str, Any]:
    def read(size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (piece := connection.recv(min(size - len(data), 1 << 20))):
                raise ConnectionResetError("it has ended")
            data += piece
        return bytes(data)

    return messages.decode(read(messages.message_length(read(messages.LENGTH.size), messages.MAX_REPLY)))


class Connection:
    """A connection to a recorder, for one request whose replies and further messages belong together."""

    def __init__(self, head: Head, timeout_s: float | None) -> None:
        """Connect; a reply may take ``timeout_s``. Raises RecorderError if the head hangs or has ended."""
        self._head = head
        self._cancelled = False
        self._connection = head.connect()
        self._connection.settimeout(timeout_s)

    def send(self, message: dict[str, Any], limit: int = messages.MAX_REQUEST) -> None:
        """Send a request, whose reply ``receive`` returns. Raises RecorderError."""
        try:
            self._connection.sendall(messages.encode(message | {"version": messages.VERSION}, limit))
        except messages.MessageError as error:
            raise RecorderError(f"the request is too long: {error}") from None
        except OSError:
            raise RecorderError(self._head.describe_end()) from None

    def receive(self) -> dict[str, Any]:
        """Return the next reply. Raises RecorderError."""
        try:
            return _receive(self._connection)
        except TimeoutError:
            raise RecorderError(self._head.describe_hang()) from None
        except (OSError, messages.MessageError):
            if self._cancelled:
                return {"error": CANCELLED, "kind": "query"}
            raise RecorderError(self._head.describe_end()) from None

    def cancel(self) -> None:
        """Close the connection while another thread reads."""
        self._cancelled = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
