"""Results of a trial as data: a row for each placement, and one JSON object with everything."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from gswarm_tui.store.querying.results import Result
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.result_text import command_text, sentence
from gswarm_tui.trials.results import CAUSES, PlacementResult, TrialResults

_Value = Callable[[TrialResults, PlacementResult], Any]


def _wait(cause: str) -> _Value:
    return lambda _, row: row.waits.get(cause)


_COLUMNS: dict[str, tuple[str, _Value]] = {
    "nodes": ("INTEGER", lambda _, row: row.placement.nodes),
    "gpus_per_node": ("INTEGER", lambda _, row: row.placement.gpus_per_node),
    "gpus": ("INTEGER", lambda _, row: row.placement.gpus),
    "placement": ("VARCHAR", lambda _, row: row.placement.spread),
    "runs": ("INTEGER", lambda _, row: len(row.complete)),
    "incomplete_runs": ("INTEGER", lambda _, row: len(row.incomplete)),
    "wall_s": ("DOUBLE", lambda _, row: row.wall_s),
    "throughput": ("DOUBLE", lambda _, row: row.throughput),
    "spread": ("DOUBLE", lambda _, row: row.spread),
    "speed_up": ("DOUBLE", lambda _, row: row.speed_up),
    "efficiency": ("DOUBLE", lambda _, row: row.efficiency),
    "efficiency_min": ("DOUBLE", lambda _, row: row.efficiencies and row.efficiencies[0]),
    "efficiency_max": ("DOUBLE", lambda _, row: row.efficiencies and row.efficiencies[1]),
    "knee": ("BOOLEAN", lambda made, row: row is made.knee),
    "reason": ("VARCHAR", lambda _, row: row.reason or None),
    "unit": ("BIGINT", lambda made, _: made.unit),
    "gpu_s": ("DOUBLE", lambda _, row: row.gpu_s),
    "energy_j": ("DOUBLE", lambda _, row: row.energy_j),
    "nvlink_mb": ("DOUBLE", lambda _, row: row.nvlink_mb),
    "network_mb": ("DOUBLE", lambda _, row: row.network_mb),
    "util_mean_pct": ("DOUBLE", lambda _, row: row.util_mean_pct),
    "balance": ("DOUBLE", lambda _, row: row.balance),
    "waiting_share": ("DOUBLE", lambda _, row: row.waiting),
    **{f"waiting_{cause}_share": ("DOUBLE", _wait(cause)) for cause in CAUSES},
}


def placements_result(results: TrialResults) -> Result:
    """Return a row for each placement."""
    rows = [tuple(value(results, row) for _, value in _COLUMNS.values()) for row in results.rows]
    return Result(tuple(_COLUMNS), tuple(kind for kind, _ in _COLUMNS.values()), iter([rows]))


def results_json(results: TrialResults) -> dict[str, Any]:
    """Return the trial, its placements, its runs and the fit as one JSON object; times are in UTC."""
    fit = results.fit
    runs = sorted((run.outcome for run in results.runs), key=lambda one: one.started_at)
    return {
        "trial": results.plan.trial_id,
        "command": command_text(results),
        "throughput": results.plan.throughput or results.plan.throughput_mark,
        "sentence": sentence(results),
        "placements": placements_result(results).dicts(),
        "fit": None
        if fit is None
        else {
            "serial_s": fit.serial_s,
            "serial_s_range": results.serial_range,
            "serial_share": fit.serial_share,
            "parallel_s": fit.parallel_s,
            "communication_s": fit.communication_s,
            "relative_error": fit.error,
        },
        "runs": [_run(outcome) for outcome in runs],
    }


def _run(outcome: RunOutcome) -> dict[str, Any]:
    placement = outcome.run.placement
    return {
        "run": outcome.run.number,
        "nodes": placement.nodes,
        "gpus_per_node": placement.gpus_per_node,
        "placement": placement.spread,
        "repeat": outcome.run.repeat,
        "warm_up": outcome.run.warm_up,
        "status": outcome.status,
        "reason": outcome.reason or None,
        "started_at": datetime.fromtimestamp(outcome.started_at, UTC).isoformat().replace("+00:00", "Z"),
        "wall_s": outcome.wall_s,
        "throughput": outcome.throughput,
        "exit_status": outcome.exit_status,
        "node_names": list(outcome.nodes),
        "session_id": outcome.session_id,
    }
