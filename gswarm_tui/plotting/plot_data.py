"""What a plot shows, asked of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.plotting.annotations import (
    Incident,
    OverlappingSession,
    PlotMark,
    load_annotations,
    overlapping_sessions,
    require_values,
)
from gswarm_tui.plotting.grid import MOST_BINS, GridRows, MetricGrid, load_grids
from gswarm_tui.plotting.metric_choice import MEAN, MetricChoice, of_kind
from gswarm_tui.store.querying.results import QuerySource


@dataclass(frozen=True, eq=False)
class PlotData:
    """A span with a grid for each choice, and what happened in it.

    ``how`` says whether bins hold the mean or the largest value ("mean", "max"), ``values`` which values of
    marks are drawn, ``devices`` what was measured: "2 nodes, 16 × NVIDIA H100". ``running`` is false for a
    session without an end whose recording nobody writes: it was interrupted.
    """

    span: Period
    running: bool
    how: str
    choices: tuple[MetricChoice, ...]
    grids: tuple[MetricGrid, ...]
    devices: str
    marks: tuple[PlotMark, ...]
    values: tuple[str, ...]
    troubles: tuple[Incident, ...]
    others: tuple[OverlappingSession, ...]


def load_plot_data(
    source: QuerySource,
    span: Period,
    choices: Sequence[MetricChoice],
    values: Sequence[str] = (),
    how: str = MEAN,
    *,
    all_of_them: bool = True,
    most_bins: int = MOST_BINS,
) -> PlotData:
    """Ask a recording for all that the plot shows; ``all_of_them`` refuses choices that weren't measured.

    Raises:
        UserError: there is nothing to draw, or a metric or value was never measured.
        StoreError: the file can't be read.
    """
    if span.seconds <= 0:
        raise UserError(f"{quote(span.name)} has no data: it ended as it began.")
    marks, troubles = load_annotations(source, span)
    require_values(values, marks, span)
    found: dict[tuple[str, bool], MetricGrid] = {}
    for host in (False, True):
        if metrics := of_kind(choices, host=host):
            devices = GridRows(source, span.recording_id, host=host)
            if devices.all:
                for grid in load_grids(source, span, devices, metrics, how, most=most_bins):
                    found[grid.metric.name, host] = grid
    measured = [
        one
        for one in choices
        if (one.metric.name, one.host) in found and found[one.metric.name, one.host].measured
    ]
    missing = [one for one in choices if one not in measured]
    if not measured or (missing and all_of_them):
        raise UserError(_nothing(source, span, missing))
    return PlotData(
        span=span,
        running=source.running and span.ended_at is None,
        how=how,
        choices=tuple(measured),
        grids=tuple(found[one.metric.name, one.host] for one in measured),
        devices=_devices(source, span),
        marks=tuple(marks),
        values=tuple(dict.fromkeys(values)),
        troubles=tuple(troubles),
        others=tuple(overlapping_sessions(source, span)),
    )


_FRAMES = """
SELECT count(*) FROM host_samples h JOIN nodes n USING (node_id)
WHERE n.recording_id = ? AND h.ts >= ?::TIMESTAMP AND h.ts < ?::TIMESTAMP
"""
_DEVICES = """
SELECT count(DISTINCT n.node), count(DISTINCT (n.node, g.uuid)), list(DISTINCT g.name ORDER BY g.name)
FROM nodes n LEFT JOIN gpus g ON g.node_id = n.node_id AND g.allocated IS NOT FALSE
WHERE n.recording_id = ?
"""


def _nothing(source: QuerySource, span: Period, missing: Sequence[MetricChoice]) -> str:
    [(frames,)] = source.query(_FRAMES, span.recording_id, span.started_at, span.until).rows()
    if not frames:
        return f"{quote(span.name)} has no data: no node was measured in it."
    *first, last = (one.metric.short for one in missing)
    names = f"{', '.join(first)} and {last}" if first else last
    were = "was" if len(missing) == 1 else "were"
    return (
        f"{names} {were} never measured in {quote(span.name)}; "
        "the nodes' capabilities in the recording say why, if they know."
    )


def _devices(source: QuerySource, span: Period) -> str:
    """ "2 nodes, 16 × NVIDIA H100" """
    [(nodes, gpus, models)] = source.query(_DEVICES, span.recording_id).rows()
    names = [name for name in models or () if name]
    what = names[0] if len(names) == 1 else f"GPU{'s' * (gpus != 1)}"
    kinds = f" of {len(names)} kinds" if len(names) > 1 else ""
    return f"{nodes} node{'s' * (nodes != 1)}, {gpus} {'× ' * (len(names) == 1)}{what}{kinds}"
