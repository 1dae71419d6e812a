"""Trials of a recording: their plans and the outcomes of their runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.trial_views import TRIAL_RUNS, TRIALS
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun

DAMAGED = "it is damaged, or another version of gswarm-tui wrote it"

# A job may send the same mark from each of its ranks.
_MARKED = """
SELECT median(TRY_CAST(TRY_CAST(e.detail AS JSON) ->> $3 AS DOUBLE))
FROM events e
WHERE e.recording_id = $1 AND e.kind = 'mark' AND e.ts >= $2::TIMESTAMP
  AND e.ts < $2::TIMESTAMP + to_microseconds($4::BIGINT)
"""


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
        trials.append(RecordedTrial(plan, tuple(_outcome(source, plan, row) for row in own)))
    return trials


def _outcome(source: QuerySource, plan: TrialPlan, row: Mapping[str, Any]) -> RunOutcome:
    try:
        outcome = RunOutcome.from_row(row)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TrialError(f"{source.path} has a run of a trial that can't be read: {DAMAGED}.") from None
    if plan.throughput_mark is None or not outcome.ok:
        return outcome
    # A JSON pointer (RFC 6901), because the key of a mark may have any character.
    pointer = "/" + plan.throughput_mark.replace("~", "~0").replace("/", "~1")
    since, lasted_us = str(row["ts"]), round(1e6 * outcome.wall_s)
    ((marked,),) = source.query(_MARKED, row["recording_id"], since, pointer, lasted_us).rows()
    return replace(outcome, throughput=marked)
