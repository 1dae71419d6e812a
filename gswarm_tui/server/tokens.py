"""Tokens of a recording's HTTP server, in private files of this user.

Each recording has two: one for everything, and one that can only read metrics. They are kept over restarts of
the recorder and removed when the recording ends.
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

SCRAPE = ".scrape"


class Tokens(NamedTuple):
    """Tokens of a recording: ``control`` for all requests, ``scrape`` for ``GET /metrics`` alone."""

    control: str
    scrape: str


def token_path(uid: str) -> Path:
    """Return the file of a recording's control token; the scrape token's ends in ``.scrape``."""
    return _folder() / uid


def read_tokens(uid: str) -> Tokens:
    """Return a recording's tokens, and create them first if it has none. Raises UserError."""
    folder = _folder()
    try:
        _check_uid(uid)
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        above = open_private(str(folder), create=True)
        try:
            control, scrape = (
                read_or_create(above, name, f"{secrets.token_urlsafe(32)}\n".encode()).decode().strip()
                for name in (uid, uid + SCRAPE)
            )
        finally:
            os.close(above)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"the tokens in {folder} can't be used: {why}.") from None
    if not control or not scrape:
        raise UserError(f"a token file of recording {uid} in {folder} is empty; remove it.")
    return Tokens(control, scrape)


def remove_tokens(uid: str) -> None:
    """Remove the tokens of a recording that has ended, if it had any."""
    with suppress(OSError, ValueError, UserError):
        _check_uid(uid)
        for name in (uid, uid + SCRAPE):
            (_folder() / name).unlink(missing_ok=True)


def _folder() -> Path:
    return state_folder() / "tokens"


def _check_uid(uid: str) -> None:
    """Raise ValueError for a uid that could lead to another file."""
    if not is_plain(uid) or len(uid) > 100:
        raise ValueError(f"{uid!r} isn't the ID of a recording")
