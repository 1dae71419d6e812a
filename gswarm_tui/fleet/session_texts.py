"""Limits of a session's name and note, for dialogs, commands and HTTP clients alike."""

from __future__ import annotations

MAX_NAME = 200
MAX_NOTE = 4000


class SessionNameError(ValueError):
    """Raised for a session's name or note that is invalid, or a name that another running session has."""


def check_name(name: str) -> None:
    """Raise SessionNameError for a name that no session can have."""
    _check("name", name, MAX_NAME)


def check_note(note: str) -> None:
    """Raise SessionNameError for a note that no session can have."""
    _check("note", note, MAX_NOTE)


def _check(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise SessionNameError(f"a session's {what} can have {most:,} characters; this one has {len(text):,}")
    if not text.isprintable():
        raise SessionNameError(f"a session's {what} must be one line of printable characters")
