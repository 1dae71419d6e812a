"""How others than heads call on whoever serves a folder, commands of a node and marks; and who they are."""

from __future__ import annotations

import os
import socket
import struct

from gswarm_agent import attach
from gswarm_agent.folder import Folder

ASKING = b"!"
"""What a visitor's request begins with that makes a mark; a JSON object and a line break follow."""
MOST_REQUEST = 64 * 1024


def connect(folder: Folder) -> socket.socket:
    """A connection to who serves a folder. Raises OSError."""
    return socket.socket(fileno=attach.connect(folder).detach())


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    layout = struct.Struct("3i")
    _, uid, _ = layout.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size))
    return bool(uid == os.geteuid())
