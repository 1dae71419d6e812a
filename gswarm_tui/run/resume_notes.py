"""Private notes in the state folder about open recordings, with what a recording mustn't hold: the setup."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.paths import state_folder


@dataclass(frozen=True)
class ResumeNote:
    """Note about one open recording: its ``setup`` command, which may contain secrets."""

    setup: str | None = None


def notes_folder() -> Path:
    """Return the folder of the notes. Raises UserError without a home folder."""
    return state_folder() / "open"


def write_note(uid: str, note: ResumeNote) -> None:
    """Write the note of an open recording, readable by this user alone. Raises OSError, UserError."""
    folder = notes_folder()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    above = open_private(str(folder), create=True)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        part = f".{_file_name(uid)}.{os.getpid()}"
        with os.fdopen(os.open(part, flags, 0o600, dir_fd=above), "w", encoding="utf-8") as file:
            json.dump(asdict(note), file)
        os.rename(part, _file_name(uid), src_dir_fd=above, dst_dir_fd=above)
    finally:
        os.close(above)


def read_note(uid: str) -> ResumeNote | None:
    """Return this user's note of a recording, None if there is none that nobody else can have written."""
    with suppress(OSError, ValueError):
        above = open_private(str(notes_folder()))
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(_file_name(uid), flags, dir_fd=above)
        finally:
            os.close(above)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            found = json.load(file)
            if os.fstat(descriptor).st_uid == os.geteuid() and isinstance(found, dict):
                setup = found.get("setup")
                return ResumeNote(setup if isinstance(setup, str) else None)
    return None


def remove_note(uid: str) -> None:
    """Remove the note of a recording that was closed, if there is one."""
    with suppress(OSError, ValueError):
        (notes_folder() / _file_name(uid)).unlink()


def _file_name(uid: str) -> str:
    """Return the note's file name. Raises ValueError for a uid that could lead elsewhere."""
    if not is_plain(uid) or len(uid) > 100:
        raise ValueError(f"{uid!r} identifies no recording")
    return f"{uid}.json"
