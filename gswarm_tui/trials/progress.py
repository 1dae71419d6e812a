"""Progress of a trial: what is done, running and left, its cost so far, and its expected end."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from gswarm_tui.analysis.periods import load_sessions
from gswarm_tui.analysis.summary_text import LabelledLine, TextTable
from gswarm_tui.common.quantities import DASH, duration, plural
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.figures import measure
from gswarm_tui.trials.outcome import RecordedTrial, expected_cost, expected_s, load_trials
from gswarm_tui.trials.plan import TrialRun
from gswarm_tui.trials.results import TrialResults, trial_results


@dataclass(frozen=True)
class TrialProgress:
    """A trial so far. ``running`` is the current run, and ``since`` when it began (Unix time).

    ``active`` is false once its recorder has ended: then the runs that are left aren't done.
    """

    trial: RecordedTrial
    results: TrialResults
    running: TrialRun | None
    since: float
    active: bool

    @property
    def waiting(self) -> list[TrialRun]:
        """The runs that haven't started."""
        return [run for run in self.trial.left if run != self.running]

    @property
    def finished(self) -> bool:
        """Whether no run is left."""
        return not self.trial.left


def load_progress(source: QuerySource) -> TrialProgress | None:
    """Return the newest trial of a recording; None without one. Raises UserError, StoreError."""
    trials = load_trials(source)
    if not trials:
        return None
    trial = trials[-1]
    results = trial_results(trial.plan, measure(source, trial.outcomes))
    running, since = None, 0.0
    if source.running:
        open_since = {
            one.name: one.started_at.replace(tzinfo=UTC).timestamp()
            for one in load_sessions(source)
            if one.ended_at is None
        }
        running = next((run for run in trial.left if run.session in open_since), None)
        since = open_since[running.session] if running else 0.0
    return TrialProgress(trial, results, running, since, source.running)


def progress_lines(progress: TrialProgress, now: float, zone: tzinfo | None = None) -> list[LabelledLine]:
    """Return what is done, running and left, the cost so far, and the expected end."""
    trial = progress.trial
    failed = sum(not outcome.ok for outcome in trial.outcomes)
    done = f"{len(trial.plan.runs) - len(trial.left)} of {plural(len(trial.plan.runs), 'run')} done"
    lines = [("runs", done + (f", {failed} of them failed" if failed else ""))]
    running, ran_s = progress.running, max(0.0, now - progress.since)
    hours = sum(outcome.gpu_hours for outcome in trial.outcomes)
    if running is not None:
        hours += running.placement.gpus * ran_s / 3600
    words = f"{_hours(hours)} GPU-h"
    if progress.finished:
        return [*lines, ("cost", words)]
    if not progress.active:
        return [*lines, ("cost", words), ("ended", f"{plural(len(trial.left), 'run')} left")]
    expected = None if running is None else expected_s(running, trial.outcomes)
    if running is not None:
        about = "" if expected is None else f" of about {duration(expected)}"
        lines.append(("running", f"{running}: {duration(ran_s)}{about}"))
    else:
        lines.append(("running", "none"))
    cost = expected_cost(progress.waiting, trial.outcomes)
    words += " so far"
    if cost is not None and progress.waiting:
        words += f", about {_hours(cost[0])} GPU-h for the runs left"
    lines.append(("cost", words))
    if expected is not None and ran_s > expected:
        return [*lines, ("end", "later than expected: this run takes longer than others of its placement")]
    if cost is None or (running is not None and expected is None):
        return [*lines, ("end", "unknown until a run has succeeded")]
    left_s = cost[1] + (0.0 if expected is None else expected - ran_s)
    at = datetime.fromtimestamp(now + left_s, zone)
    today = at.date() == datetime.fromtimestamp(now, zone).date()
    return [*lines, ("end", f"about {at:{'%H:%M' if today else '%Y-%m-%d %H:%M'}}, in {duration(left_s)}")]


def plan_table(progress: TrialProgress, now: float) -> TextTable:
    """Return a row for each run in the order of the plan: its state, time, nodes, and why it failed."""
    ended = {outcome.run.number: outcome for outcome in progress.trial.outcomes}
    rows: list[tuple[str, ...]] = []
    for run in progress.trial.plan.runs:
        which = (str(run.number), str(run.placement), "warm-up" if run.warm_up else str(run.repeat))
        if (outcome := ended.get(run.number)) is not None:
            nodes = fold(outcome.nodes) if outcome.nodes else DASH
            rows.append((*which, outcome.status, duration(outcome.wall_s), nodes, outcome.reason))
        elif run == progress.running:
            rows.append((*which, "running", duration(now - progress.since), DASH, ""))
        else:
            rows.append((*which, "left", DASH, DASH, ""))
    columns = ("run", "placement", "repeat", "state", "time", "nodes", "reason")
    return TextTable(columns, rows, frozenset({0, 4}))


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
