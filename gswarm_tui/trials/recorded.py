"""Trials of a recording: their plans and the outcomes of their runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gswarm_agent.frame import INFO
from gswarm_tui.fleet.trial_kinds import TRIAL_RUN, TRIAL_RUN_STARTED
from gswarm_tui.slurm.jobs import JOB_REQUEUED
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.trial_views import TRIAL_RUNS, TRIALS
from gswarm_tui.trials.cost import reached_floor
from gswarm_tui.trials.outcome import INTERRUPTED, REPEATED, REQUEUED, RunOutcome
from gswarm_tui.trials.plan import TrialError, TrialPlan, TrialRun

DAMAGED = "it is damaged, or another version of gswarm-tui wrote it"

# A job may send the same mark from each of its ranks.
_MARKED = """
SELECT median(TRY_CAST(TRY_CAST(e.detail AS JSON) ->> $3 AS DOUBLE))
FROM events e
WHERE e.recording_id = $1 AND e.kind = 'mark' AND e.ts >= $2::TIMESTAMP
  AND e.ts < $2::TIMESTAMP + to_microseconds($4::BIGINT)
"""
_UNFINISHED = f"""
SELECT e.detail ->> '$.run' AS run, r.slurm_job_id AS job, epoch_us(s.started_at) / 1e6 AS started_at,
       greatest(0, date_diff('us', s.started_at, coalesce(
         s.ended_at, r.ended_at, (SELECT max(ts) FROM host_samples), s.started_at))) / 1e6 AS wall_s
FROM (FROM events WHERE kind = '{TRIAL_RUN_STARTED}' AND TRY_CAST(detail AS JSON) ->> '$.trial_id' = $1
      ORDER BY ts DESC LIMIT 1) e
JOIN recordings r USING (recording_id)
JOIN sessions s ON s.recording_id = e.recording_id AND s.name = e.detail ->> '$.session'
  AND s.started_at >= e.ts
WHERE NOT EXISTS (FROM events o WHERE o.kind = '{TRIAL_RUN}' AND o.ts >= e.ts)
ORDER BY s.started_at LIMIT 1
"""  # noqa: S608 (own names)


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of a recording: its plan, and the outcomes of the runs that ended.

    A run with one of the outcomes ``REPEATED`` is repeated when the trial is resumed, and has an outcome of
    each time.
    """

    plan: TrialPlan
    outcomes: tuple[RunOutcome, ...]

    @property
    def left(self) -> tuple[TrialRun, ...]:
        """The runs still to be done, the next one first: without those that the trial's floor leaves out."""
        done = {outcome.run.number for outcome in self.outcomes if outcome.status not in REPEATED}
        left = [run for run in self.plan.runs if run.number not in done]
        first = {run.placement.gpus: run for run in reversed(left)}
        dropped = {size for size, run in first.items() if reached_floor(self.plan, self.outcomes, run)}
        return tuple(run for run in left if run.warm_up or run.placement.gpus not in dropped)


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


def unfinished_run(source: QuerySource, trial: RecordedTrial, requeued_job: str = "") -> RunOutcome | None:
    """Return the outcome of the run with which a killed trial ended, None without one. Raises StoreError.

    The run's end is that of its session or recording, or else the last sample. ``requeued_job`` is the job
    that Slurm has requeued, empty if it has not.
    """
    for row in source.query(_UNFINISHED, trial.plan.trial_id).dicts():
        for run in trial.left:
            if str(run.number) == row["run"]:
                job = row["job"] or ""
                status, reason = INTERRUPTED, "the trial was interrupted"
                if job and job == requeued_job:
                    status, reason = REQUEUED, JOB_REQUEUED
                return RunOutcome(
                    *(trial.plan.trial_id, run, status, row["started_at"], row["wall_s"]),
                    reason=reason,
                    job=job,
                )
    return None


def _outcome(source: QuerySource, plan: TrialPlan, row: Mapping[str, Any]) -> RunOutcome:
    try:
        outcome = RunOutcome.from_row(row)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise TrialError(f"{source.path} has a run of a trial that can't be read: {DAMAGED}.") from None
    if plan.throughput_mark is None or not outcome.ok:
        return outcome
    ((marked,),) = source.query(
        _MARKED,
        row["recording_id"],
        str(row["ts"]),
        _pointer(plan.throughput_mark),
        round(1e6 * outcome.wall_s),
    ).rows()
    return replace(outcome, throughput=marked)


def _pointer(key: str) -> str:
    """Return the JSON pointer of a mark's value (RFC 6901): a key may have any character."""
    return "/" + key.replace("~", "~0").replace("/", "~1")


def add_event(path: Path, kind: str, text: str, detail: str) -> None:
    """Add an event of a trial to a file that no recorder has open; a new file is made. Raises StoreError."""
    from gswarm_tui.store.sql.schema import EVENTS
    from gswarm_tui.store.transfer.importing import importing

    with importing(path) as target:
        newest = target.next_free("recording_id") - 1
        row = {
            "ts": round(time.time() * 1e6),
            "recording_id": newest or None,
            "kind": kind,
            "severity": INFO,
            "message": text,
            "detail": detail,
        }
        target.add(EVENTS, {name: [value] for name, value in row.items()})
