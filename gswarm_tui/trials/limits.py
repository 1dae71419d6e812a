"""Limits of a trial: the efficiency below which it stops, and the GPU-hours that it may cost."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_tui.trials.cost import expected_cost, gpu_hours
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun

TIMEOUT_OPTION = "--timeout"


class StoppedTrialError(TrialError):
    """The trial ended before all its runs; it can be resumed."""

    exit_status = 3


def reached_floor(plan: TrialPlan, outcomes: Sequence[RunOutcome], run: TrialRun) -> str:
    """Return a sentence if placements smaller than this run's are below the plan's efficiency, else ""."""
    from gswarm_tui.trials.results import MeasuredRun, trial_results

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
