"""Cost of a trial: GPU-hours and time of the runs that are left, expected from those that ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialPlan, TrialRun


class ExpectedCost(NamedTuple):
    """GPU-hours and seconds of runs; ``bound`` if they are the most that ``--timeout`` allows."""

    gpu_hours: float
    seconds: float
    bound: bool = False


def gpu_hours(outcomes: Iterable[RunOutcome]) -> float:
    """Return the GPU-hours of runs that ended."""
    return sum(outcome.gpu_hours for outcome in outcomes)


def expected_s(run: TrialRun, outcomes: Sequence[RunOutcome]) -> float | None:
    """Return the wall time to expect of a run: that of its placement, else of the nearest smaller one.

    A larger placement is rarely slower, so this is more often too high than too low. None before a run ended
    well.
    """
    ended = [outcome for outcome in outcomes if outcome.ok]
    own = [outcome for outcome in ended if outcome.run.placement == run.placement]
    if not own:
        gpus = run.placement.gpus
        sizes = {outcome.run.placement.gpus for outcome in ended}
        nearest = max((size for size in sizes if size <= gpus), default=min(sizes, default=0))
        own = [outcome for outcome in ended if outcome.run.placement.gpus == nearest]
    measured = [outcome for outcome in own if not outcome.run.warm_up] or own
    return median(outcome.wall_s for outcome in measured) if measured else None


def expected_cost(
    plan: TrialPlan, runs: Iterable[TrialRun], outcomes: Sequence[RunOutcome]
) -> ExpectedCost | None:
    """Return the cost to expect of runs; before the first ended, the most that it can be, or None."""
    hours = seconds = 0.0
    bound = False
    for run in runs:
        wall_s = expected_s(run, outcomes)
        if wall_s is None:
            wall_s, bound = plan.timeout_s, True
        if wall_s is None:
            return None
        hours += run.placement.gpus * wall_s / 3600
        seconds += wall_s
    return ExpectedCost(hours, seconds, bound)
