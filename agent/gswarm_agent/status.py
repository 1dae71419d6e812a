"""What waits on this node: the recordings that are served here, and what was left of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Dict, List

from gswarm_agent.attach import peer_pid
from gswarm_agent.calling import connect
from gswarm_agent.folder import LOCK, Folder, folders, tops
from gswarm_agent.spool import Spool
from gswarm_agent.visitor import STATUS
from gswarm_agent.wire import MAGIC

_PATIENCE_S = 10.0


def status(recording: str = "", top: str = "") -> List[Dict[str, Any]]:
    """An entry for each recording, or for one: its uid, the node's name, the agent's pid, and what waits.

    ``pid`` is None where no agent runs. ``lives`` have frames, first_ns and last_ns (``Waiting``).
    """
    found = []
    for folder in folders(tops(top)):
        uid, _, node = folder.name.partition("@")
        if LOCK in folder.names() and recording in ("", uid):
            found.append({"recording": uid, "node": node, **_of(folder)})
    return found


def _of(folder: Folder) -> Dict[str, Any]:
    with suppress(OSError, ValueError):
        return _asked(folder)
    return {"pid": None, "lives": [vars(waiting) for waiting in Spool(folder).waiting()]}


def _asked(folder: Folder) -> Dict[str, Any]:
    """What the running agent says. Raises OSError where there is none."""
    import json

    with connect(folder) as connection:
        connection.settimeout(_PATIENCE_S)
        pid = peer_pid(connection)
        connection.sendall(STATUS)
        said = b""
        while True:
            data = connection.recv(65536)
            if not data:
                break
            said += data
    lives = json.loads(said[said.index(MAGIC) + len(MAGIC) :])
    return {"pid": pid, "lives": lives}
