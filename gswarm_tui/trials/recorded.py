"""Trials of a recording: their plans and the outcomes of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.trial_views import TRIAL_RUNS, TRIALS
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun

DAMAGED = "it is damaged, or another version of gswarm-tui wrote it"


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of a recording: its plan, and the outcomes of the runs that ended."""

    plan: TrialPlan
    outcomes: tuple[RunOutcome, ...]

    @property
    def left(self) -> tuple[TrialRun, ...]:
        """The runs still to be done, the next one first."""
        done = {outcome.run.number for outcome in self.outcomes}
        return tuple(run for run in self.plan.runs if run.number not in done)


def load_trials(source: QuerySource) -> list[RecordedTrial]:
    """Return the trials of a recording file, the oldest first. Raises TrialError, StoreError."""
    rows = source.query(TRIAL_RUNS).dicts()
    trials = []
    for trial in source.query(TRIALS).dicts():
        try:
            plan = TrialPlan.from_json(trial["plan"])
        except ValueError:
            raise TrialError(f"{source.path} has a trial whose plan can't be read: {DAMAGED}.") from None
        own = [row for row in rows if row["trial"] == plan.trial_id]
        trials.append(RecordedTrial(plan, tuple(_outcome(source, row) for row in own)))
    return trials


def _outcome(source: QuerySource, row: Mapping[str, Any]) -> RunOutcome:
    try:
        return RunOutcome.from_row(row)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TrialError(f"{source.path} has a run of a trial that can't be read: {DAMAGED}.") from None
