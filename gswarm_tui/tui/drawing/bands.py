"""Bands: the last minutes of each GPU as lines, for one or two metrics, on the fleet and the node screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, Metric
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.numbers import label
from gswarm_tui.tui.drawing.plot import (
    GAP,
    LABEL_WIDTH,
    PlotSeries,
    band,
    band_width,
    beside,
    overlay,
    time_axis,
)
from gswarm_tui.tui.drawing.ramp import ramp_of
from gswarm_tui.tui.drawing.spans import CURSOR_MARK, Span, Spans, heading_rule
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.trends import Trends

TWO_FROM = 150
"""Cells from which two metrics fit side by side."""
MINUTES_HIGHEST = 8
"""Lines of a band on the fleet screen."""
FLEET_ALONE = 4
"""Lines from which the mean over all nodes is drawn without other bands."""
FLEET_MOST = 256
"""Most nodes over which a mean is drawn: reading each takes 0.1 ms of the screen's time."""


def metrics_beside(metric: Metric, cells: int) -> tuple[Metric, ...]:
    """Return the metric, and on wide terminals utilisation or power beside it, since they may differ."""
    if cells < TWO_FROM or metric.name not in GPU_BY_NAME:
        return (metric,)
    return metric, GPU_BY_NAME["power_w" if metric.name == "util_pct" else "util_pct"]


@dataclass(frozen=True)
class BandPlot:
    """Bands of metrics side by side, in ``cells``, over the time range of ``trends`` up to ``now``.

    With ``newest`` each band ends with its newest value.
    """

    trends: Trends
    metrics: tuple[Metric, ...]
    now: float
    cells: int
    newest: bool = True

    @property
    def width(self) -> int:
        """Cells of a metric."""
        return (self.cells - GAP * (len(self.metrics) - 1)) // len(self.metrics)

    @property
    def columns(self) -> int:
        """Characters of a band's curve."""
        return band_width(self.width, newest=self.newest)

    def heading(self, name: str) -> Spans:
        """Return a rule with the name and the metric, and with the second metric above its bands."""
        words = [f"{clean(name)}: {label(self.metrics[0])}, {self.trends.span_label}"]
        words += [label(metric) for metric in self.metrics[1:]]
        return beside([[heading_rule(text, self.width)] for text in words])[0]

    def bands(self, node: NodeState, height: int, marks: Sequence[float] = ()) -> list[Spans]:
        """Draw a node's bands, each in ``height`` lines."""
        columns = [
            [
                replace(self.trends.gpu(node, row, metric, self.columns, self.now), label=facts.label)
                for row, facts in enumerate(node.facts)
            ]
            for metric in self.metrics
        ]
        return self._drawn(columns, height, marks)

    def mean(self, nodes: Sequence[NodeState], height: int) -> list[Spans]:
        """Draw one band with the mean over nodes."""
        columns = []
        for metric in self.metrics:
            data = HeatmapData(metric.name)
            data.update(nodes, self.now)
            sparks = [data.spark(at, self.now, self.columns, self.trends.span_s) for at in range(len(nodes))]
            known = np.isfinite(sparks).sum(axis=0)
            means = np.where(known, np.nansum(sparks, axis=0) / np.maximum(known, 1), np.nan)
            columns.append([PlotSeries("mean", means, "", "", ramp=ramp_of(metric))])
        return self._drawn(columns, height)

    def _drawn(
        self, columns: Sequence[Sequence[PlotSeries]], height: int, marks: Sequence[float] = ()
    ) -> list[Spans]:
        drawn = partial(band, width=self.width, height=height, newest=self.newest)
        columns_drawn = ([line for plot in series for line in drawn(plot)] for series in columns)
        return beside([overlay(lines, marks, LABEL_WIDTH + 1, self.columns) for lines in columns_drawn])

    def axis(self) -> Spans:
        """Return the time axis below all bands."""
        axis = " " * (LABEL_WIDTH + 1) + time_axis(self.trends.span_s, self.columns, self.trends.last)
        return beside([[(Span(f"{axis:<{self.width}}", "dim"),)]] * len(self.metrics))[0]


def with_mark(line: Spans) -> Spans:
    """Return the line of a band that has its name with the cursor's mark before it."""
    name = line[0].text.strip()
    return (Span(f"{f'{CURSOR_MARK} {name}':>{LABEL_WIDTH}} ", "accent"), *line[1:])


@dataclass(frozen=True, eq=False)
class MinutesPlan:
    """Lines of each band: the mean over ``nodes`` gets ``fleet``, each GPU of ``gpu_nodes`` gets ``gpus``."""

    nodes: Sequence[NodeState]
    fleet: int
    gpu_nodes: Sequence[NodeState]
    gpus: int


def plan_minutes(
    nodes: Sequence[NodeState], chosen: NodeState | None, metric: Metric, room: int, events: int = 0
) -> MinutesPlan | None:
    """Share ``room`` lines: a band for each GPU if each gets two, else for those of the chosen node.

    The mean over all nodes gets the lines that these leave, and beside them only what further ``events``
    don't use; alone it leaves these a third. None where nothing fits.
    """
    known = [node for node in nodes if node.facts]
    own = [chosen] if chosen is not None and chosen.facts else []
    gpu_nodes: Sequence[NodeState] = []
    height = gpus = 0
    for wanted, least in ((known, 2), (own, 1)) if metric.name in GPU_BY_NAME else ():
        gpus = sum(len(node.facts) for node in wanted)
        # The axis and the heading of each node take a line.
        height = min(MINUTES_HIGHEST, (room - 1 - len(wanted)) // max(1, gpus))
        if gpus and height >= least:
            gpu_nodes = wanted
            break
    # The mean has a heading, too.
    left = room - 2 - (len(gpu_nodes) + height * gpus if gpu_nodes else 0)
    left -= events if gpu_nodes else min(events, left // 3)
    # With fewer lines, those of heading and axis are better used for events.
    fits = left >= (1 if gpu_nodes else FLEET_ALONE) and 0 < len(known) <= FLEET_MOST
    fleet = min(MINUTES_HIGHEST, left) if fits and (len(known) > 1 or not gpu_nodes) else 0
    return MinutesPlan(known, fleet, gpu_nodes, height) if fleet or gpu_nodes else None


def minutes(plan: MinutesPlan, plot: BandPlot) -> list[Spans]:
    """Plot the bands of a plan above one time axis."""
    lines = [plot.heading("all nodes"), *plot.mean(plan.nodes, plan.fleet)] if plan.fleet else []
    for node in plan.gpu_nodes:
        lines += [plot.heading(node.name), *plot.bands(node, plan.gpus)]
    return [*lines, plot.axis()]
