"""Tokens of a recording's servers, in private files of this user.

Each recording has three: for everything, for reading metrics alone, and for watching in a browser. They are
kept over restarts of the recorder and removed when the recording ends.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.private_files import read_or_create

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
    return _folder() / (uid + kind)


def read_tokens(uid: str) -> Tokens:
    """Return a recording's tokens, and create them first if it has none. Raises UserError."""
    folder = _folder()
    try:
        _check_uid(uid)
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        above = open_private(str(folder), create=True)
        try:
            control, scrape, watch = (
                read_or_create(above, name, f"{secrets.token_urlsafe(32)}\n".encode()).decode().strip()
                for name in _file_names(uid)
            )
        finally:
            os.close(above)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the tokens in {folder} can't be used: {why}.") from None
    if not (control and scrape and watch):
        raise UserError(f"a token file of recording {uid} in {folder} is empty; remove it.")
    return Tokens(control, scrape, watch, uid)


def check_folder() -> None:
    """Refuse a folder that others can enter. Raises UserError."""
    with suppress(FileNotFoundError):
        try:
            os.close(open_private(str(_folder())))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UserError(f"the tokens in {_folder()} can't be used: {error.strerror}.") from None


def are_removed(uid: str) -> bool:
    """Return whether the user removed a recording's control token, to lock everybody out, or it has ended."""
    try:
        token_path(uid).stat()
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return False


def are_replaced(tokens: Tokens) -> bool:
    """Return whether the user removed a recording's tokens, even if another server made new ones since."""
    try:
        return token_path(tokens.uid).read_text().strip() != tokens.control
    except OSError as error:
        return isinstance(error, FileNotFoundError)


def remove_tokens(uid: str) -> None:
    """Remove the tokens of a recording that has ended, if it had any."""
    with suppress(OSError, ValueError, UserError):
        _check_uid(uid)
        for name in _file_names(uid):
            (_folder() / name).unlink(missing_ok=True)


def _file_names(uid: str) -> tuple[str, str, str]:
    return uid, uid + SCRAPE, uid + WATCH


def _folder() -> Path:
    return state_folder() / "tokens"


def _check_uid(uid: str) -> None:
    """Raise ValueError for a uid that could lead to another file."""
    if not is_plain(uid) or len(uid) > 100:
        raise ValueError(f"{uid!r} isn't the ID of a recording")
