"""Tokens of a recording's servers, in private files of this user.

Each recording has three: for everything, for reading metrics alone, and for watching in a browser. They are
kept over restarts of the recorder and removed when the recording ends.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.private_files import PrivateFolder

_TOKENS = PrivateFolder("tokens")
SCRAPE, WATCH = ".scrape", ".watch"


class Tokens(NamedTuple):
    """Tokens of a recording: ``control`` for everything, ``scrape`` for ``GET /metrics`` alone.

    ``watch`` is for screens in a browser that change nothing. ``uid`` is empty for tokens without files.
    """

    control: str
    scrape: str
    watch: str
    uid: str = ""


def token_path(uid: str, kind: str = "") -> Path:
    """Return the file of a recording's control token, or of its ``SCRAPE`` or ``WATCH`` token."""
    return _TOKENS.path / (uid + kind)


def read_tokens(uid: str) -> Tokens:
    """Return a recording's tokens, and create them first if it has none. Raises UserError."""
    try:
        control, scrape, watch = (
            _TOKENS.read_or_create(name, f"{secrets.token_urlsafe(32)}\n".encode()).decode().strip()
            for name in _file_names(uid)
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the tokens in {_TOKENS.path} can't be used: {why}.") from None
    if not (control and scrape and watch):
        raise UserError(f"a token file of recording {uid} in {_TOKENS.path} is empty; remove it.")
    return Tokens(control, scrape, watch, uid)


def check_folder() -> None:
    """Refuse a folder that others can enter. Raises UserError."""
    try:
        _TOKENS.check()
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"the tokens in {_TOKENS.path} can't be used: {error.strerror}.") from None


def are_replaced(tokens: Tokens) -> bool:
    """Return whether a recording has ended, or the user removed its tokens to lock everybody out.

    Another server may have made new ones since.
    """
    try:
        return token_path(tokens.uid).read_text().strip() != tokens.control
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def remove_tokens(uid: str) -> None:
    """Remove the tokens of a recording that has ended, if it had any."""
    with suppress(OSError, UserError):
        for name in _file_names(uid):
            _TOKENS.remove(name)


def _file_names(uid: str) -> tuple[str, str, str]:
    return uid, uid + SCRAPE, uid + WATCH
