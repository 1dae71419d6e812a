"""Cost of a trial: what the runs left are expected to take, and the limits that end it before them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun
from gswarm_tui.trials.results import MeasuredRun, trial_results

TIMEOUT_OPTION = "--timeout"


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


class StoppedTrialError(TrialError):
    """The trial ended before all its runs; it can be resumed."""

    exit_status = 3


def reached_floor(plan: TrialPlan, outcomes: Sequence[RunOutcome], run: TrialRun) -> str:
    """Return a sentence if placements smaller than this run's are below the plan's efficiency, else ""."""
    if plan.floor is None or run.warm_up:
        return ""
    compared = trial_results(plan, [MeasuredRun(outcome) for outcome in outcomes]).compared
    smaller = [row for row in compared if row.placement.gpus < run.placement.gpus]
    if not smaller:
        return ""
    most = max(row.placement.gpus for row in smaller)
    best = max(row.efficiency or 0.0 for row in smaller if row.placement.gpus == most)
    if best >= plan.floor:
        return ""
    return (
        f"{most} GPUs have an efficiency of {100 * best:.0f} %, below the floor of {100 * plan.floor:.0f} %: "
        "no larger placement is tried"
    )


def longest_time(plan: TrialPlan, outcomes: Sequence[RunOutcome], run: TrialRun) -> tuple[float | None, str]:
    """Return the longest time of a run in seconds, None for any, and the option that sets it.

    Raises StoppedTrialError if the run would exceed ``--max-gpu-hours``.
    """
    if plan.max_gpu_hours is None:
        return plan.timeout_s, TIMEOUT_OPTION
    used = gpu_hours(outcomes)
    expected = expected_cost(plan, [run], outcomes)
    cost = 0.0 if expected is None or expected.bound else expected.gpu_hours
    if used + cost >= plan.max_gpu_hours:
        about = f", and the next run takes about {cost:.3g}" if cost else ""
        raise StoppedTrialError(
            f"the runs took {used:.3g} GPU-hours{about}; --max-gpu-hours is {plan.max_gpu_hours:g}. Raise it "
            "to resume."
        )
    left_s = (plan.max_gpu_hours - used) * 3600 / run.placement.gpus
    if plan.timeout_s is not None and plan.timeout_s <= left_s:
        return plan.timeout_s, TIMEOUT_OPTION
    return left_s, "--max-gpu-hours"
