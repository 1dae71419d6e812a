"""Private notes in the state folder about open recordings, by which ``recover`` knows this user's own.

A recording contains the options to reach its nodes, and a stranger may have written them. A note holds a
keyed hash of the options with which this user started the recording, and what a recording mustn't hold: the
setup.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.private_files import read_or_create, read_own, write_part

_KEY = "key"


@dataclass(frozen=True)
class ResumeNote:
    """Note about one open recording: its ``setup`` command, which may contain secrets."""

    setup: str | None = None


def notes_folder() -> Path:
    """Return the folder of the notes. Raises UserError without a home folder."""
    return state_folder() / "open"


def write_note(uid: str, options: Mapping[str, Any], note: ResumeNote) -> None:
    """Write the note of an open recording, readable by this user alone. Raises OSError, UserError."""
    folder = notes_folder()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    above = open_private(str(folder), create=True)
    try:
        key = read_or_create(above, _KEY, secrets.token_bytes(32))
        content = asdict(note) | {"options_hash": _hash(key, uid, options)}
        part = write_part(above, json.dumps(content).encode())
        os.rename(part, _file_name(uid), src_dir_fd=above, dst_dir_fd=above)
    finally:
        os.close(above)


def read_note(uid: str, options: Mapping[str, Any]) -> ResumeNote | None:
    """Return the note of a recording that this user started with these options, None without one."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        above = open_private(str(notes_folder()))
        try:
            found = json.loads(read_own(above, _file_name(uid)))
            expected = _hash(read_own(above, _KEY), uid, options)
        finally:
            os.close(above)
        setup = found["setup"]
        if hmac.compare_digest(found["options_hash"], expected):
            return ResumeNote(None if setup is None else str(setup))
    return None


def remove_note(uid: str) -> None:
    """Remove the note of a recording that was closed, if there is one."""
    with suppress(OSError, ValueError):
        (notes_folder() / _file_name(uid)).unlink()


def _file_name(uid: str) -> str:
    """Return the note's file name. Raises ValueError for a uid that could lead elsewhere."""
    if not is_plain(uid) or len(uid) > 100:
        raise ValueError(f"{uid!r} isn't the ID of a recording")
    return f"{uid}.json"


def _hash(key: bytes, uid: str, options: Mapping[str, Any]) -> str:
    text = json.dumps([uid, options], sort_keys=True)
    return hmac.digest(key, text.encode(), "sha256").hex()
