"""Folder on a node through which traces of a job's processes can be requested later.

``gswarm-tui record`` puts its path into the environment of its command, on all nodes alike, so it
depends on the user and the recording only.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from gswarm_agent.folder import Folder, folders, problems_of, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict

ENDPOINT = "dynolog"
"""Kineto's name of the socket to which PyTorch processes send their requests."""
FLIGHT_PREFIX = "/tmp/gswarm-flight-"  # noqa: S108  # exists in every container, too
"""Beginning of the paths of Flight Recorder's dumps and pipes, ``/tmp/gswarm-flight-TOKEN-RANK.pipe``.

A process that can't make its pipe ends. So the folder is one that exists everywhere, and the token is random:
another user who knew it could take the name.
"""
_SOCKETS = "kineto-"


def socket_folder(recording: str) -> str:
    """Return the path of the recording's folder for Kineto's sockets and traces.

    Kineto appends 53 characters to it, and an address has room for 107.
    """
    return f"{tops()[0]}/{_SOCKETS}{recording[:8]}"


def obstacles(recording: str) -> Dict[str, str]:
    """Make the socket folder; return why traces are unavailable on this node, as capabilities."""
    why = make_socket_folder(recording)
    if why:
        return {"traces": why}
    with suppress(OSError):  # left by an agent that was killed
        os.unlink(f"{socket_folder(recording)}/{ENDPOINT}")  # noqa: PTH108
    return {}


def make_socket_folder(recording: str) -> str:
    """Make the recording's socket folder; return why it can't be private, empty if it is."""
    path = socket_folder(recording)
    top, _, name = path.rpartition("/")
    try:
        Folder(top, name, create=True).close()
    except OSError as error:
        return next(iter(problems_of([top, path])), f"{path}: {error.strerror}")
    return ""


def remove_places(recording: str) -> None:
    """Remove the socket folder of a recording that has ended here; one that holds other files stays."""
    top, _, name = socket_folder(recording).rpartition("/")
    # Agents of several nodes may run on one machine.
    if any(each.name.startswith(recording[:8]) for each in folders([top])):
        return
    with suppress(OSError):
        folder = Folder(top, name)
        above, own = folder.descriptors
        for entry in folder.names():
            if stat.S_ISSOCK(os.stat(entry, dir_fd=own, follow_symlinks=False).st_mode):
                folder.unlink(entry)
        os.rmdir(name, dir_fd=above)
        folder.close()
