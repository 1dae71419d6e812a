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
from gswarm_tui.trials.cost import expected_cost, expected_s
from gswarm_tui.trials.figures import KnownFigures, measure
from gswarm_tui.trials.outcome import NODE_LOST, OVER_LIMIT, TIMEOUT, RunOutcome, failures
from gswarm_tui.trials.plan import TrialRun
from gswarm_tui.trials.recorded import RecordedTrial, load_trials
from gswarm_tui.trials.result_text import PlacementNames
from gswarm_tui.trials.results import MeasuredRun, TrialResults, trial_results

_STATES = {TIMEOUT: "timed out", NODE_LOST: "lost node", OVER_LIMIT: "over limit"}
"""Words for those outcomes whose names aren't words."""


@dataclass(frozen=True)
class TrialProgress:
    """A trial so far. ``running`` is the current run, and ``since`` when it began (Unix time).

    ``active`` is false once its recorder has ended: then what is left needs ``trial --resume``.
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
    def done(self) -> list[RunOutcome]:
        """The outcomes of the runs that are done; those of runs to be repeated aren't among them."""
        left = {run.number for run in self.trial.left}
        return [outcome for outcome in self.trial.outcomes if outcome.run.number not in left]

    @property
    def done_share(self) -> tuple[int, int]:
        """The number of runs that are done, and of all."""
        done = len({outcome.run.number for outcome in self.done})
        return done, done + len(self.trial.left)

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
    known = {_run_key(outcome) for outcome in trial.outcomes}
    new = [outcome for outcome in _logged(fleet, trial.plan.trial_id) if _run_key(outcome) not in known]
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


def _run_key(outcome: RunOutcome) -> tuple[int, int]:
    return outcome.run.number, round(1000 * outcome.started_at)


def progress_lines(progress: TrialProgress, now: float, zone: tzinfo | None = None) -> list[LabelledLine]:
    """Return what is done, running and left, the cost so far, and the expected end."""
    trial, names, failed = progress.trial, placement_names(progress), failures(progress.done)
    done = f"{progress.done_share[0]} of {plural(progress.done_share[1], 'run')} done"
    lines = [("runs", done + (f", {failed} of them failed" if failed else ""))]
    words = f"{_hours(progress.gpu_hours(now))} GPU-h"
    if progress.finished:
        return [*lines, ("cost", words)]
    if not progress.active:
        left = plural(len(trial.left), "run")
        how = "gswarm-tui trial --resume does them"
        if trial.plan.salloc is not None:
            how = f"attach again during the next run; if the trial has ended, {how}"
        return [*lines, ("cost", words), ("ended", f"{left} left; {how}")]
    if (run := progress.running) is not None:
        expected = expected_s(run, trial.outcomes)
        about = "" if expected is None else f" of about {duration(expected)}"
        lines.append(("running", f"{run_name(names, run)}: {duration(now - progress.since)}{about}"))
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


def placement_names(progress: TrialProgress) -> PlacementNames:
    """Return short names of all placements of the plan."""
    return PlacementNames(progress.trial.plan.placements)


def run_name(names: PlacementNames, run: TrialRun) -> str:
    """Return a run in words: "4 nodes, repeat 2"."""
    return f"{names.name(run.placement)}, {'warm-up' if run.warm_up else f'repeat {run.repeat}'}"


def plan_table(progress: TrialProgress, now: float) -> TextTable:
    """Return a row for each run in the order of the plan: its state, time, nodes, and why it failed.

    A run that was repeated has a row of each time.
    """
    names = placement_names(progress)
    rows: list[tuple[str, ...]] = []
    for run in progress.trial.plan.runs:
        ended = [one for one in progress.trial.outcomes if one.run.number == run.number]
        rows += [_outcome_row(names, one) for one in ended]
        if run == progress.running:
            rows.append((*_named(names, run), "running", duration(now - progress.since), DASH, ""))
        elif run in progress.trial.left:
            rows.append((*_named(names, run), "left", DASH, DASH, ""))
    columns = ("run", "placement", "repeat", "state", "time", "nodes", "reason")
    return TextTable(columns, rows, frozenset({0, 4}))


def row_sessions(progress: TrialProgress) -> list[float | None]:
    """Return when the run of each row of ``plan_table`` began (Unix time); None for one that hasn't."""
    found: list[float | None] = []
    for run in progress.trial.plan.runs:
        found += [one.started_at for one in progress.trial.outcomes if one.run.number == run.number]
        if run in progress.trial.left:
            found.append(progress.since if run == progress.running else None)
    return found


def _outcome_row(names: PlacementNames, outcome: RunOutcome) -> tuple[str, ...]:
    state = _STATES.get(outcome.status, outcome.status)
    nodes = fold(outcome.nodes) if outcome.nodes else DASH
    return (*_named(names, outcome.run), state, duration(outcome.wall_s), nodes, outcome.reason)


def _named(names: PlacementNames, run: TrialRun) -> tuple[str, str, str]:
    return str(run.number), names.name(run.placement), "warm-up" if run.warm_up else str(run.repeat)


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
