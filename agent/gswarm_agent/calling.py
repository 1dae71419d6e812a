"""How others than heads call on whoever serves a folder: the commands of a node, and marks for a head."""

from __future__ import annotations

import socket

from gswarm_agent import attach
from gswarm_agent.folder import Folder


def connect(folder: Folder) -> socket.socket:
    """A connection to who serves a folder. Raises OSError."""
    return socket.socket(fileno=attach.connect(folder).detach())
