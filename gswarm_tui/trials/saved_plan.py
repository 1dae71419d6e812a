"""Plans of trials in the state folder: the whole plan, from which this user's trials are resumed.

A recording has the plan without the command's secrets, and a stranger may have written it; so commands are
only run from here.
"""

from __future__ import annotations

from contextlib import suppress

from gswarm_tui.common.private_files import PrivateFolder
from gswarm_tui.trials.plan import TrialError, TrialPlan

_PLANS = PrivateFolder("trials")


def save_plan(plan: TrialPlan) -> None:
    """Save a plan, readable by this user alone. Raises TrialError."""
    try:
        _PLANS.write(f"{plan.trial_id}.json", plan.to_json().encode())
    except OSError as error:
        raise TrialError(f"the plan can't be saved in {_PLANS.path}: {error.strerror or error}.") from None


def read_plan(trial_id: str) -> TrialPlan | None:
    """Return the plan of a trial that this user started, None if it isn't saved here. Raises TrialError."""
    name = f"{trial_id}.json"
    try:
        content = _PLANS.read(name)
    except OSError:
        return None
    try:
        return TrialPlan.from_json(content.decode())
    except ValueError:
        raise TrialError(
            f"the plan of the trial can't be read: {_PLANS.path / name} is damaged, or another version of "
            "gswarm-tui wrote it; start a new trial."
        ) from None


def remove_plan(trial_id: str) -> None:
    """Remove the plan of a trial that needs no resuming."""
    with suppress(OSError):
        _PLANS.remove(f"{trial_id}.json")
