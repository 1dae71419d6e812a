"""Data of a plot, loaded from a recording."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.common.quantities import plural
from gswarm_tui.plotting.annotations import (
    Incident,
    SessionMark,
    load_annotations,
    require_values,
)
from gswarm_tui.plotting.grid import MAX_BINS, MetricGrid, load_grids
from gswarm_tui.plotting.metric_choice import MetricChoice
from gswarm_tui.store.figures.definitions import MINE
from gswarm_tui.store.querying.results import QuerySource


@dataclass(frozen=True, eq=False)
class PlotData:
    """A period with a grid for each choice of a metric, and its annotations.

    ``values`` are the names of mark values to draw, ``devices`` describes the hardware: "2 nodes, 16 × NVIDIA
    H100". ``running`` is false for a session without an end whose recording was interrupted. Not all events
    were read unless ``all_events``.
    """

    period: Period
    running: bool
    choices: tuple[MetricChoice, ...]
    grids: tuple[MetricGrid, ...]
    devices: str
    marks: tuple[SessionMark, ...]
    values: tuple[str, ...]
    incidents: tuple[Incident, ...]
    all_events: bool = True


class NothingMeasuredError(UserError):
    """Raised if a period has no sample to draw, or none of a metric."""


def load_plot_data(
    source: QuerySource,
    period: Period,
    choices: Sequence[MetricChoice],
    values: Sequence[str] = (),
    *,
    all_of_them: bool = True,
    most_bins: int = MAX_BINS,
) -> PlotData:
    """Load all data of a plot; with ``all_of_them``, an unmeasured metric is an error.

    Raises:
        UserError: there is nothing to draw, or a metric or value was never measured.
        StoreError: the file can't be read.
    """
    if period.seconds <= 0:
        raise UserError(f"{quote(period.name)} has no data: it ended when it began.")
    annotations = load_annotations(source, period)
    require_values(values, annotations.marks, period)
    grids_by_metric: dict[tuple[str, bool], MetricGrid] = {}
    for host in (False, True):
        if metrics := [choice.metric for choice in choices if choice.host is host]:
            for loaded in load_grids(source, period, metrics, host=host, most=most_bins):
                grids_by_metric[loaded.metric.name, host] = loaded
    measured = [
        one for one in choices if (grid := grids_by_metric.get((one.metric.name, one.host))) and grid.measured
    ]
    missing = [one for one in choices if one not in measured]
    if not measured or (missing and all_of_them):
        names = ", ".join(one.metric.short for one in missing)
        raise NothingMeasuredError(
            f"{quote(period.name)} in {source.path} has no samples of {names}; "
            f"gswarm-tui sql 'FROM event_log' --db={shlex.quote(str(source.path))} lists its events, "
            "and the column capabilities of the table nodes says what can't be measured."
        )
    return PlotData(
        period=period,
        running=source.running and period.ended_at is None,
        choices=tuple(measured),
        grids=tuple(grids_by_metric[one.metric.name, one.host] for one in measured),
        devices=_devices(source, period),
        marks=tuple(annotations.marks),
        values=tuple(dict.fromkeys(values)),
        incidents=tuple(annotations.incidents),
        all_events=annotations.complete,
    )


_DEVICES = f"""
SELECT count(DISTINCT n.node), count(DISTINCT (n.node, g.uuid)), list(DISTINCT g.name ORDER BY g.name)
FROM nodes n LEFT JOIN gpus g ON g.node_id = n.node_id AND g.{MINE} AND g.parent_index IS NULL
WHERE n.recording_id = ?
"""  # noqa: S608 (own names)


def _devices(source: QuerySource, period: Period) -> str:
    """Return a description such as "2 nodes, 16 × NVIDIA H100"."""
    [(nodes, gpus, models)] = source.query(_DEVICES, period.recording_id).rows()
    names = [name for name in models or () if name]
    kinds = f" of {len(names)} kinds" if len(names) > 1 else ""
    devices = f"{gpus} × {names[0]}" if len(names) == 1 else plural(gpus, "GPU") + kinds
    return f"{plural(nodes, 'node')}, {devices}"
