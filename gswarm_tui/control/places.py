"""Where running heads of this user are found: a private folder for each, with its socket and its lock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from gswarm_agent.folder import LOCK, SOCKET, Folder, FolderError, folders
from gswarm_tui.common.paths import runtime_folder

SHARED = f"/tmp/gswarm-tui-heads-{os.geteuid()}"  # noqa: S108  # what is made there is private


def tops(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The folders that hold those of heads, the preferred one first."""
    own = runtime_folder(environ)
    return (SHARED,) if own is None else (str(own), SHARED)


def make(places: Sequence[str]) -> tuple[Folder, int]:
    """A folder for this process with its lock, which says that it runs. Raises OSError."""
    remove_left(places)
    try:
        folder = Folder.find(places, str(os.getpid()))
    except FolderError as error:
        raise OSError(str(error)) from None
    if (lock := folder.lock()) is None:
        folder.close()
        raise OSError(f"another process uses {folder.path}")
    return folder, lock


def remove_left(places: Sequence[str]) -> None:
    """Remove the folders of heads that were killed."""
    for folder in folders(places):
        with suppress(OSError):
            lock = folder.lock() if LOCK in folder.names() else None
            if lock is not None:
                folder.remove()
                os.close(lock)


def running(places: Sequence[str]) -> Iterator[Folder]:
    """The folders with a socket, each closed when the next is asked for."""
    for folder in folders(places):
        if SOCKET in folder.names():
            yield folder
