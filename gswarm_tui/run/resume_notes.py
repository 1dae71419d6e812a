"""Private notes in the state folder about open recordings, by which ``recover`` knows this user's own.

A recording contains the options to reach its nodes, and a stranger may have written them. A note holds the
options with which this user started the recording, and what a recording mustn't hold: the setup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gswarm_tui.common.private_files import PrivateFolder

NOTES = PrivateFolder("open")


def write_note(uid: str, options: Mapping[str, Any], setup: str) -> None:
    """Write the note of an open recording, readable by this user alone. Raises OSError, UserError.

    ``setup`` is its setup command, which may contain secrets, empty without one.
    """
    content = {"uid": uid, "options": options, "setup": setup}
    NOTES.write(f"{uid}.json", json.dumps(content).encode())


def read_note(uid: str, options: Mapping[str, Any]) -> str | None:
    """Return the setup of a recording that this user started with these options; None without a note."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(NOTES.read(f"{uid}.json"))
        if (found["uid"], found["options"]) == (uid, options):
            return str(found["setup"])
    return None


def remove_note(uid: str) -> None:
    """Remove the note of a recording that was closed, if there is one."""
    with suppress(OSError):
        NOTES.remove(f"{uid}.json")
