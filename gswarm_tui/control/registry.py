"""Registry of this user's running heads.

On one machine, each head has a private folder with its socket and its lock. For other machines that share the
home folder, it leaves a note that names its machine and recording.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gswarm_agent.folder import LOCK, SOCKET, Folder, FolderError, folders
from gswarm_tui.common.paths import runtime_folder
from gswarm_tui.common.private_files import PrivateFolder

_NOTES = PrivateFolder("recording")
BACKLOG = 100
"""Clients that wait while a recorder is restarted."""
SHARED = f"/tmp/gswarm-tui-heads-{os.geteuid()}"  # noqa: S108  # created with mode 0700


class RecorderNote(NamedTuple):
    """The recording of a head, where that head runs, and what it monitors: a job's label and its nodes."""

    path: Path
    uid: str
    host: str
    pid: int
    job: str
    nodes: tuple[str, ...]


def parent_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that hold the recorders' folders, the preferred one first."""
    runtime = runtime_folder(environ)
    return (SHARED,) if runtime is None else (str(runtime), SHARED)


class Listening(NamedTuple):
    """Socket at which clients reach a recorder, in a private folder, and the folder's lock.

    The recorder's parent opens it, so that clients wait in it while a recorder is restarted.
    """

    folder: Folder
    lock: int
    socket: socket.socket

    @classmethod
    def open(cls, parents: Sequence[str]) -> Listening:
        """Create this process's folder, and listen there. Raises OSError."""
        for left in folders(parents):  # by killed recorders
            with suppress(OSError):
                if LOCK in left.names() and (free := left.lock()) is not None:
                    left.remove()
                    os.close(free)
        try:
            folder = Folder.find(parents, str(os.getpid()))
        except FolderError as error:
            raise OSError(str(error)) from None
        if (lock := folder.lock()) is None:
            folder.close()
            raise OSError(f"another process uses {folder.path}")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(folder.address())
        listening.listen(BACKLOG)
        return cls(folder, lock, listening)

    def close(self) -> None:
        """Remove the folder, and with it the socket."""
        self.socket.close()
        self.folder.remove()
        self.folder.close()
        os.close(self.lock)


def running_folders(parents: Sequence[str]) -> Iterator[Folder]:
    """Yield the folders that have a socket; each is closed before the next."""
    for folder in folders(parents):
        if SOCKET in folder.names():
            yield folder


def leave_note(folder: str, path: Path, uid: str, job: str, nodes: Sequence[str]) -> Path | None:
    """Note that this process records into a file; return the note, to be removed at the end.

    ``folder`` is the name of the recorder's private folder, the process that created it.
    """
    host = socket.gethostname()
    name = f"{host}-{folder}.json"
    with suppress(OSError):
        for old in _NOTES.path.glob(f"{host}-*.json"):
            pid = old.stem.removeprefix(f"{host}-")
            if not Path(f"/proc/{pid}").exists():
                old.unlink(missing_ok=True)
        note = RecorderNote(path, uid, host, os.getpid(), job, tuple(nodes))._asdict() | {"path": str(path)}
        _NOTES.write(name, json.dumps(note).encode())
        return _NOTES.path / name
    return None


def read_note(name: str) -> RecorderNote | None:
    """Return the note of a recorder, host-process.json; None if it is missing, or cut short."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(_NOTES.read(name))
        place = str(found["host"]), int(found["pid"])
        return RecorderNote(
            Path(found["path"]), str(found["uid"]), *place, str(found["job"]), tuple(found["nodes"])
        )
    return None


def remote_notes() -> list[RecorderNote]:
    """Return the notes of recorders on other machines that record."""
    notes = [read_note(file.name) for file in _NOTES.path.glob("*.json")]
    return [note for note in notes if note is not None and note.host != socket.gethostname()]


def describe_remote_writer(path: Path) -> str:
    """Describe the recorder on another machine that records into a file; empty if none is known."""
    for writer in remote_notes():
        if writer.path == path.absolute():
            return (
                f"{path} is being recorded by gswarm-tui on {writer.host}, process {writer.pid}; "
                f"run this command there, or after that process has ended"
            )
    return ""
