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

from gswarm_agent.folder import LOCK, SOCKET, Folder, FolderError, folders, problems_of, top_below_home
from gswarm_tui.common.paths import runtime_folder
from gswarm_tui.common.private_files import PrivateFolder

_NOTES = PrivateFolder("recording")
SHARED = f"/tmp/gswarm-tui-heads-{os.geteuid()}"  # noqa: S108  # created with mode 0700


class _Note(NamedTuple):
    """The recording of a head, and where that head runs."""

    path: Path
    uid: str
    host: str
    pid: int


def parent_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that hold the heads' folders, the preferred one first.

    Another user may have taken the name in /tmp, so the last one is below the home folder.
    """
    runtime, below_home = runtime_folder(environ), top_below_home()
    local = (SHARED,) if runtime is None else (str(runtime), SHARED)
    return (*local, f"{below_home}-heads") if below_home else local


def describe_obstacles(parents: Sequence[str]) -> str:
    """Return the unusable folders among these with their owners, as a clause; empty if all can be used."""
    return "; ".join(problems_of(parents))


def register(parents: Sequence[str]) -> tuple[Folder, int]:
    """Create this process's folder and lock it. Raises OSError."""
    _remove_stale(parents)
    try:
        folder = Folder.find(parents, str(os.getpid()))
    except FolderError as error:
        raise OSError(str(error)) from None
    if (lock := folder.lock()) is None:
        folder.close()
        raise OSError(f"another process uses {folder.path}")
    return folder, lock


def _remove_stale(parents: Sequence[str]) -> None:
    """Remove the folders of killed heads."""
    for folder in folders(parents):
        with suppress(OSError):
            lock = folder.lock() if LOCK in folder.names() else None
            if lock is not None:
                folder.remove()
                os.close(lock)


def running_folders(parents: Sequence[str]) -> Iterator[Folder]:
    """Yield the folders that have a socket; each is closed before the next."""
    for folder in folders(parents):
        if SOCKET in folder.names():
            yield folder


def leave_note(path: Path, uid: str) -> Path | None:
    """Note that this process records into a file; return the note, to be removed at the end."""
    host = socket.gethostname()
    name = _note_name(host, os.getpid())
    with suppress(OSError):
        for old in _NOTES.path.glob(f"{host}-*.json"):
            pid = old.stem.removeprefix(f"{host}-")
            if not Path(f"/proc/{pid}").exists():
                old.unlink(missing_ok=True)
        note = {"path": str(path), "uid": uid, "host": host, "pid": os.getpid()}
        _NOTES.write(name, json.dumps(note).encode())
        return _NOTES.path / name
    return None


def _note_name(host: str, pid: int) -> str:
    return f"{host}-{pid}.json"


def _read_note(name: str) -> _Note | None:
    """Return a note; None if it is missing, or cut short."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(_NOTES.read(name))
        return _Note(Path(found["path"]), str(found["uid"]), str(found["host"]), int(found["pid"]))
    return None


def recording_of(pid: int) -> tuple[Path, str] | None:
    """Return the file and the uid of the recording that a head on this machine noted; None without a note."""
    note = _read_note(_note_name(socket.gethostname(), pid))
    return None if note is None else (note.path, note.uid)


def _remote_notes() -> list[_Note]:
    """Return the notes of heads on other machines that record."""
    notes = [_read_note(file.name) for file in _NOTES.path.glob("*.json")]
    return [note for note in notes if note is not None and note.host != socket.gethostname()]


def remote_hosts() -> list[str]:
    """Return the other machines on which heads of this user noted that they record."""
    return sorted({note.host for note in _remote_notes()})


def describe_remote_writer(path: Path) -> str:
    """Describe the head on another machine that records into a file; empty if none is known."""
    for writer in _remote_notes():
        if writer.path == path.absolute():
            return (
                f"{path} is being recorded by gswarm-tui on {writer.host}, process {writer.pid}; "
                f"run this command there, or after that process has ended"
            )
    return ""
