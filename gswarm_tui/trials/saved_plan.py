"""Plans of trials in the state folder: the whole plan, from which this user's trials are resumed.

A recording has the plan without the command's secrets, and a stranger may have written it; so commands are
only run from here.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gswarm_agent.folder import is_plain, open_private
from gswarm_tui.common.paths import state_folder
from gswarm_tui.common.private_files import read_own, write_part
from gswarm_tui.trials.plan import TrialError, TrialPlan


def _folder() -> Path:
    return state_folder() / "trials"


def save_plan(plan: TrialPlan) -> None:
    """Save a plan, readable by this user alone. Raises TrialError."""
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        above = open_private(str(folder), create=True)
        try:
            part = write_part(above, plan.to_json().encode())
            os.rename(part, _file_name(plan.trial_id), src_dir_fd=above, dst_dir_fd=above)
        finally:
            os.close(above)
    except OSError as error:
        raise TrialError(f"the plan can't be saved in {folder}: {error.strerror or error}.") from None


def read_plan(trial_id: str) -> TrialPlan | None:
    """Return the plan of a trial that this user started, None if it isn't saved here. Raises TrialError."""
    try:
        name = _file_name(trial_id)
        above = open_private(str(_folder()))
        try:
            content = read_own(above, name)
        finally:
            os.close(above)
    except (OSError, ValueError):
        return None
    try:
        return TrialPlan.from_json(content.decode())
    except ValueError:
        raise TrialError(
            f"the plan of the trial can't be read: {_folder() / name} is damaged, or another version of "
            "gswarm-tui wrote it; start a new trial."
        ) from None


def remove_plan(trial_id: str) -> None:
    """Remove the plan of a trial that needs no resuming."""
    with suppress(OSError, ValueError):
        (_folder() / _file_name(trial_id)).unlink()


def _file_name(trial_id: str) -> str:
    """Return the file's name. Raises ValueError for an ID that could lead elsewhere."""
    if not is_plain(trial_id) or len(trial_id) > 100:
        raise ValueError(f"{trial_id!r} isn't the ID of a trial")
    return f"{trial_id}.json"
