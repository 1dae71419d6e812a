"""Outcome of one run of a trial: how it ended, and what is compared."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gswarm_tui.slurm.hosts import expand, fold
from gswarm_tui.trials.plan import MOST_COUNTED, Placement, TrialRun

OK, FAILED, TIMEOUT, REQUEUED, NODE_LOST = "ok", "failed", "timeout", "requeued", "node_lost"
OVER_LIMIT, INTERRUPTED, REFUSED = "over_limit", "interrupted", "refused"
"""Only runs that are ``ok`` are compared; the others are kept and shown.

Slurm refused to start a run that is ``refused``.
"""
REPEATED = (REQUEUED, NODE_LOST, OVER_LIMIT, INTERRUPTED, REFUSED)
"""Runs with such an outcome are repeated when their trial is resumed: their placement isn't the reason."""
LONGEST_S = 1e9
"""Longer times are only in crafted recordings."""


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

    @property
    def gpu_hours(self) -> float:
        """GPU-hours that the run cost."""
        return self.run.placement.gpus * self.wall_s / 3600

    def to_json(self) -> str:
        """Return the outcome as a flat JSON object, which the view ``trial_runs`` shows."""
        placement = self.run.placement
        return json.dumps(
            {
                "trial_id": self.trial_id,
                "run": self.run.number,
                "nodes": placement.nodes,
                "gpus_per_node": placement.gpus_per_node,
                "placement": placement.spread,
                "repeat": self.run.repeat,
                "warm_up": self.run.warm_up,
                "status": self.status,
                "started_at": self.started_at,
                "wall_s": self.wall_s,
                "node_list": fold(self.nodes),
                "throughput": self.throughput,
                "exit_status": self.exit_status,
                "reason": self.reason,
                "job": self.job,
            },
            ensure_ascii=False,
        )

    @classmethod
    def from_json(cls, text: str) -> RunOutcome:
        """Return the outcome of the JSON object of an event. Raises KeyError, TypeError, ValueError."""
        values = json.loads(text)
        ts = datetime.fromtimestamp(values["started_at"], UTC)
        return cls.from_row({**values, "trial": values["trial_id"], "ts": ts, "session_id": None})

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RunOutcome:
        """Return the outcome of a row of ``trial_runs``. Raises KeyError, TypeError, ValueError."""
        placement = Placement(int(row["nodes"]), int(row["gpus_per_node"]), str(row["placement"]))
        wall_s, throughput = float(row["wall_s"]), row["throughput"]
        if not (
            0 < placement.nodes <= MOST_COUNTED
            and 0 < placement.gpus_per_node <= MOST_COUNTED
            and 0 <= wall_s <= LONGEST_S
            and (throughput is None or math.isfinite(throughput))
        ):
            raise ValueError("a number is out of range")
        run = TrialRun(int(row["run"]), placement, int(row["repeat"]), bool(row["warm_up"]))
        node_list = str(row["node_list"] or "")
        return cls(
            trial_id=str(row["trial"]),
            run=run,
            status=str(row["status"]),
            started_at=row["ts"].replace(tzinfo=UTC).timestamp(),
            wall_s=float(row["wall_s"]),
            nodes=expand([node_list], "the nodes of a trial's run") if node_list else (),
            throughput=row["throughput"],
            exit_status=row["exit_status"],
            reason=str(row["reason"] or ""),
            job=str(row["job"] or ""),
            session_id=row["session_id"],
        )


def failures(outcomes: Iterable[RunOutcome]) -> int:
    """Return how many runs failed; one that was repeated and then ended well doesn't count."""
    outcomes = list(outcomes)
    ok = {outcome.run.number for outcome in outcomes if outcome.ok}
    return len({outcome.run.number for outcome in outcomes} - ok)
