"""Whether a user sees the demo for the first time."""

from __future__ import annotations

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.paths import state_folder


def is_first_demo() -> bool:
    """Return whether this is the user's first demo, and note it; without a state folder it never is."""
    try:
        note = state_folder() / "demo-seen"
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note.touch(exist_ok=False)
    except (UserError, OSError):
        return False
    return True
