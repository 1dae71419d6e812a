"""Figures of a trial's runs from their samples: energy, utilisation and balance of their GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_tui.analysis.comparison import balance
from gswarm_tui.analysis.periods import Period, load_sessions
from gswarm_tui.analysis.summary_data import summarize
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.results import MeasuredRun, RunFigures

_WITH_PROCESSES = """
SELECT DISTINCT n.node, g.gpu_index
FROM process_samples p JOIN gpus g USING (gpu_id) JOIN nodes n USING (node_id)
WHERE p.ts > $1::TIMESTAMP AND p.ts <= $2::TIMESTAMP AND n.recording_id = $3
"""


def measure(source: QuerySource, outcomes: Sequence[RunOutcome]) -> list[MeasuredRun]:
    """Return the runs with the figures of their sessions. Raises StoreError."""
    periods = {one.session_id: one for one in load_sessions(source)}
    return [
        MeasuredRun(one, _figures(source, periods[one.session_id], one))
        if one.session_id in periods
        else MeasuredRun(one)
        for one in outcomes
    ]


def _figures(source: QuerySource, period: Period, outcome: RunOutcome) -> RunFigures | None:
    """Return the figures of a run; None if none of its GPUs was sampled."""
    summary = summarize(source, period)
    span = str(period.started_at), str(period.until)
    running = source.query(_WITH_PROCESSES, *span, period.recording_id).rows()
    # A run may use a part of a node's GPUs: those with processes come first, then the most utilised.
    sampled = sorted(
        (one for one in summary.gpus if one.samples),
        key=lambda one: (
            (one.node, one.gpu_index) not in running,
            -(one.util_mean_pct or 0.0),
            one.gpu_index or 0,
        ),
    )
    each = outcome.run.placement.gpus_per_node
    gpus = [gpu for node in outcome.nodes for gpu in [one for one in sampled if one.node == node][:each]]
    if not gpus:
        return None
    energies = [one.energy_j for one in gpus if one.energy_j is not None]
    means = [one.util_mean_pct for one in gpus if one.util_mean_pct is not None]
    return RunFigures(
        energy_j=sum(energies) if energies else None,
        util_mean_pct=sum(means) / len(means) if means else None,
        balance=balance(gpus),
    )
