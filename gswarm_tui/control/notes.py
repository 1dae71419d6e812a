"""Who records what, noted in the user's home, which machines share: the others can tell who holds a file."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

from gswarm_tui.common.paths import state_folder


def _folder() -> Path:
    return state_folder() / "recording"


def leave(path: Path) -> Path | None:
    """Notes that this process records into the file; the note, if it could be made, is removed at the end."""
    folder, host = _folder(), socket.gethostname()
    note = folder / f"{host}-{os.getpid()}.json"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in folder.glob(f"{host}-*.json"):
            pid = old.stem.removeprefix(f"{host}-")
            if not Path(f"/proc/{pid}").exists():
                old.unlink(missing_ok=True)
        note.touch(0o600)
        note.write_text(json.dumps({"path": str(path), "host": host, "pid": os.getpid()}))
        return note
    return None


def elsewhere(path: Path) -> str:
    """A sentence about who records into the file on another machine; empty where nobody is known to."""
    for note in _folder().glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(note.read_text())
            if said["path"] == str(path.absolute()) and said["host"] != socket.gethostname():
                return (
                    f"{path} is being recorded by gswarm-tui on {said['host']}, process {said['pid']}; "
                    f"run this command there, or when that has ended"
                )
    return ""
