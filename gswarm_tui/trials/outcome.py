"""Outcomes of a trial's runs, as they are recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from gswarm_tui.slurm.hosts import expand, fold
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.trial_views import TRIAL_RUNS, TRIALS
from gswarm_tui.trials.plan import Placement, TrialError, TrialPlan, TrialRun

OK, FAILED, TIMEOUT, INTERRUPTED = "ok", "failed", "timeout", "interrupted"
"""Only runs that are ``ok`` are compared; the others are kept and shown."""


class StoppedTrialError(TrialError):
    """The trial ended before all its runs."""

    exit_status = 3


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of one run; ``nodes`` are those that it used, ``started_at`` is Unix time.

    ``exit_status`` is None if the command didn't start or was ended, ``throughput`` if there is none or wall
    times are compared. ``reason`` says in a clause why the run isn't ``ok``. ``session_id`` is the number of
    its session in the file, None without one.
    """

    trial_id: str
    run: TrialRun
    status: str
    started_at: float
    wall_s: float
    nodes: tuple[str, ...] = ()
    throughput: float | None = None
    exit_status: int | None = None
    reason: str = ""
    job: str = ""
    session_id: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the run counts."""
        return self.status == OK

    def to_json(self) -> str:
        """Return the outcome as a flat JSON object, which the view ``trial_runs`` shows."""
        placement = self.run.placement
        return json.dumps({
            "trial_id": self.trial_id, "run": self.run.number,
            "nodes": placement.nodes, "gpus_per_node": placement.gpus_per_node, "placement": placement.spread,
            "repeat": self.run.repeat, "warm_up": self.run.warm_up, "status": self.status,
            "started_at": self.started_at, "wall_s": self.wall_s, "node_list": fold(self.nodes),
            "throughput": self.throughput, "exit_status": self.exit_status, "reason": self.reason,
            "job": self.job,
        }, ensure_ascii=False)  # fmt: skip

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RunOutcome:
        """Return the outcome of a row of ``trial_runs``. Raises KeyError, TypeError, ValueError."""
        placement = Placement(int(row["nodes"]), int(row["gpus_per_node"]), str(row["placement"]))
        wall_s, throughput = float(row["wall_s"]), row["throughput"]
        if placement.nodes < 1 or placement.gpus_per_node < 1 or not 0 <= wall_s < math.inf:
            raise ValueError("a number is out of range")
        node_list = str(row["node_list"] or "")
        return cls(
            trial_id=str(row["trial"]),
            run=TrialRun(int(row["run"]), placement, int(row["repeat"]), bool(row["warm_up"])),
            status=str(row["status"]),
            started_at=row["ts"].replace(tzinfo=UTC).timestamp(),
            wall_s=wall_s,
            nodes=expand([node_list], "the nodes of a trial's run") if node_list else (),
            throughput=None if throughput is None else float(throughput),
            exit_status=row["exit_status"],
            reason=str(row["reason"] or ""),
            job=str(row["job"] or ""),
            session_id=row["session_id"],
        )


DAMAGED = "it is damaged, or another version of gswarm-tui wrote it"


@dataclass(frozen=True)
class RecordedTrial:
    """A trial of a recording: its plan, and the outcomes of the runs that ended."""

    plan: TrialPlan
    outcomes: tuple[RunOutcome, ...]


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
