"""Limits of a session's name and note, for dialogs, commands and HTTP clients alike."""

from __future__ import annotations

MAX_NAME = 200
MAX_NOTE = 4000


class SessionNameError(ValueError):
    """Raised for a session's name or note that is invalid, or a name that another running session has."""


def check_name(name: str) -> None:
    """Raise SessionNameError for a name that no session can have."""
    if len(name) > MAX_NAME:
        raise SessionNameError(f"a session's name can have {MAX_NAME} characters; this one has {len(name):,}")
    if not name.isprintable():
        raise SessionNameError("a session's name must be one line of printable characters")


def check_note(note: str) -> None:
    """Raise SessionNameError for a note that no session can have."""
    if not note.isprintable():
        raise SessionNameError("a session's note must be one line of printable characters")
    if len(note) > MAX_NOTE:
        why = f"a session's note can have {MAX_NOTE:,} characters; this one has {len(note):,}"
        raise SessionNameError(why)
