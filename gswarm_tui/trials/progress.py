"""Progress of a trial: what is done, running and left, its cost so far, and its expected end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from statistics import median

from gswarm_tui.analysis.periods import load_sessions
from gswarm_tui.analysis.summary_text import LabelledLine, TextTable
from gswarm_tui.common.quantities import DASH, duration, plural
from gswarm_tui.fleet.events import json_object
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.trial_kinds import TRIAL_RUN
from gswarm_tui.slurm.hosts import fold
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.figures import KnownFigures, measure
from gswarm_tui.trials.outcome import RunOutcome, expected_cost, expected_s
from gswarm_tui.trials.plan import TrialRun
from gswarm_tui.trials.recorded import RecordedTrial, load_trials
from gswarm_tui.trials.result_text import PlacementNames
from gswarm_tui.trials.results import MeasuredRun, TrialResults, trial_results


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

    def gpu_hours(self, now: float) -> float:
        """Return the GPU-hours so far."""
        ended = sum(outcome.gpu_hours for outcome in self.trial.outcomes)
        if self.running is None:
            return ended
        return ended + self.running.placement.gpus * max(0.0, now - self.since) / 3600

    def late(self, now: float) -> bool:
        """Whether the running run takes longer than expected."""
        of_run = None if self.running is None else expected_s(self.running, self.trial.outcomes)
        return of_run is not None and now - self.since > of_run

    def seconds_left(self, now: float) -> float | None:
        """Return the expected time to the end, without waiting for nodes; None if nothing is known yet."""
        cost = expected_cost(self.trial.plan, self.waiting, self.trial.outcomes)
        if cost is None or cost.bound:
            return None
        if self.running is None:
            return cost.seconds
        of_run = expected_s(self.running, self.trial.outcomes)
        return None if of_run is None else cost.seconds + of_run - (now - self.since)


def load_progress(source: QuerySource, known: KnownFigures | None = None) -> TrialProgress | None:
    """Return the newest trial of a recording; None without one. Raises UserError, StoreError.

    ``known`` keeps the figures of ended runs between calls.
    """
    trials = load_trials(source)
    if not trials:
        return None
    trial = trials[-1]
    results = trial_results(trial.plan, measure(source, trial.outcomes, known))
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


def follow(progress: TrialProgress, fleet: Fleet, *, ended: bool) -> TrialProgress:
    """Return the progress with what a live fleet has shown since it was loaded.

    Runs that ended meanwhile have no figures of their samples yet. ``ended`` is whether the recorder has.
    """
    trial, results = progress.trial, progress.results
    left = {run.number for run in trial.left}
    new = [outcome for outcome in _logged(fleet, trial.plan.trial_id) if outcome.run.number in left]
    if new:
        if (key := trial.plan.throughput_mark) is not None:
            new = [replace(outcome, throughput=_marked(fleet, key, outcome)) for outcome in new]
        trial = replace(trial, outcomes=(*trial.outcomes, *new))
        results = trial_results(trial.plan, [*results.runs, *map(MeasuredRun, new)])
    since = {session.name: session.started_at for session in fleet.sessions.running}
    running = None if ended else next((run for run in trial.left if run.session in since), None)
    return TrialProgress(trial, results, running, since[running.session] if running else 0.0, not ended)


def _logged(fleet: Fleet, trial_id: str) -> Iterator[RunOutcome]:
    """Yield the outcomes of a trial's runs among the latest events of a fleet."""
    for event in fleet.event_log:
        if event.kind == TRIAL_RUN and event.detail is not None:
            with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
                outcome = RunOutcome.from_json(event.detail)
                if outcome.trial_id == trial_id:
                    yield outcome


def _marked(fleet: Fleet, key: str, outcome: RunOutcome) -> float | None:
    """Return the median of a value in the marks of a run among the latest events; None without any."""
    values = []
    for event in fleet.event_log:
        if event.kind == "mark" and outcome.started_at <= event.at < outcome.started_at + outcome.wall_s:
            with suppress(KeyError, TypeError, ValueError):
                values.append(float(json_object(event.detail)[key]))
    return median(values) if values else None


def progress_lines(progress: TrialProgress, now: float, zone: tzinfo | None = None) -> list[LabelledLine]:
    """Return what is done, running and left, the cost so far, and the expected end."""
    trial, names = progress.trial, PlacementNames(progress.trial.plan.placements)
    failed = sum(not outcome.ok for outcome in trial.outcomes)
    done = f"{len(trial.outcomes)} of {plural(len(trial.plan.runs), 'run')} done"
    lines = [("runs", done + (f", {failed} of them failed" if failed else ""))]
    words = f"{_hours(progress.gpu_hours(now))} GPU-h"
    if progress.finished:
        return [*lines, ("cost", words)]
    if not progress.active:
        again = "; attach again during the next one" if trial.plan.salloc is not None else ""
        return [*lines, ("cost", words), ("ended", f"{plural(len(trial.left), 'run')} left{again}")]
    if (run := progress.running) is not None:
        expected = expected_s(run, trial.outcomes)
        about = "" if expected is None else f" of about {duration(expected)}"
        which = f"{names.name(run.placement)}, {'warm-up' if run.warm_up else f'repeat {run.repeat}'}"
        lines.append(("running", f"{which}: {duration(now - progress.since)}{about}"))
    else:
        lines.append(("running", "none" if trial.plan.salloc is None else "none; waiting for nodes"))
    cost = expected_cost(trial.plan, progress.waiting, trial.outcomes)
    words += " so far"
    if cost is not None and progress.waiting:
        words += f", {'at most' if cost.bound else 'about'} {_hours(cost.gpu_hours)} GPU-h for the runs left"
    if trial.plan.max_gpu_hours is not None:
        words += f"; limit {_hours(trial.plan.max_gpu_hours)} GPU-h"
    lines.append(("cost", words))
    if progress.late(now):
        return [*lines, ("end", "later than expected: this run takes longer than others of its placement")]
    left_s = progress.seconds_left(now)
    if left_s is None:
        until = "a run has succeeded" if trial.outcomes else "the warm-up run has ended"
        return [*lines, ("end", f"unknown until {until}")]
    at = datetime.fromtimestamp(now + left_s, zone)
    today = at.date() == datetime.fromtimestamp(now, zone).date()
    waits = ", if Slurm grants nodes at once" if trial.plan.salloc is not None else ""
    return [
        *lines,
        ("end", f"about {at:{'%H:%M' if today else '%Y-%m-%d %H:%M'}}, in {duration(left_s)}{waits}"),
    ]


def plan_table(progress: TrialProgress, now: float) -> TextTable:
    """Return a row for each run in the order of the plan: its state, time, nodes, and why it failed."""
    names = PlacementNames(progress.trial.plan.placements)
    ended = {outcome.run.number: outcome for outcome in progress.trial.outcomes}
    rows: list[tuple[str, ...]] = []
    for run in progress.trial.plan.runs:
        which = (str(run.number), names.name(run.placement), "warm-up" if run.warm_up else str(run.repeat))
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
