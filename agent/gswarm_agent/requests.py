"""Short requests to running agents from other processes on the node: ``status`` and ``mark``.

Quick to import, because training loops make marks.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gswarm_agent import attach
from gswarm_agent.folder import LOCK, Folder, folders, tops

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Dict, List

STATUS = b"?"
"""The whole request for the status; the agent replies with JSON after the wire's first line."""
MARK = b"!"
"""The first byte of a request with a mark; a JSON object and a line break follow."""
LONGEST_REQUEST = 64 * 1024
_TIMEOUT_S = 10.0


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end belongs to this user."""
    _, uid = attach.peer(connection)
    return uid == os.geteuid()


def send_request(connection: socket.socket, request: bytes, timeout_s: float = _TIMEOUT_S) -> Any:
    """Send a request to an agent and return its reply. Raises OSError, and ValueError if it isn't JSON."""
    import json

    connection.settimeout(timeout_s)
    connection.sendall(request)
    reply = b""
    while True:
        data = connection.recv(65536)
        if not data:
            break
        reply += data
    _, _, text = reply.partition(b"\n")  # the wire's first line comes before it
    return json.loads(text)


def status(recording: str = "", top: str = "") -> List[Dict[str, Any]]:
    """Return an entry for each recording, or for one: its uid, node name, agent's pid, and waiting frames.

    ``pid`` is None if no agent runs. ``lives`` have the waiting frames of each life (see ``Spool.waiting``).
    """
    entries = []
    for folder in folders(tops(top)):
        uid, _, node = folder.name.partition("@")
        if LOCK in folder.names() and recording in ("", uid):
            entries.append({"recording": uid, "node": node, **_status_of(folder)})
    return entries


def _status_of(folder: Folder) -> Dict[str, Any]:
    with suppress(OSError, ValueError), attach.connect(folder) as connection:
        pid, _ = attach.peer(connection)
        return {"pid": pid, "lives": send_request(connection, STATUS)}
    from gswarm_agent.spool import Spool

    return {"pid": None, "lives": Spool(folder).waiting()}
