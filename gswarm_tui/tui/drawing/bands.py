"""Bands: the last minutes of each GPU as lines, for one or two metrics, on the fleet and the node screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, Metric
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.heatmap_data import HeatmapData
from gswarm_tui.tui.drawing.layout import NAME_LONGEST
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
from gswarm_tui.tui.drawing.text import clean, clip_left, width
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

    With ``newest`` each band ends with its newest value; names take ``label`` cells.
    """

    trends: Trends
    metrics: tuple[Metric, ...]
    now: float
    cells: int
    newest: bool = True
    label: int = LABEL_WIDTH

    @property
    def width(self) -> int:
        """Cells of a metric."""
        return (self.cells - GAP * (len(self.metrics) - 1)) // len(self.metrics)

    @property
    def columns(self) -> int:
        """Characters of a band's curve."""
        return band_width(self.width, newest=self.newest, label=self.label)

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

    def means(self, nodes: Sequence[NodeState], height: int, *, joined: bool = False) -> list[Spans]:
        """Draw a band with the mean of each node, or ``joined`` one with the mean over all of them."""
        names, columns = [clip_left(clean(node.name), self.label) for node in nodes], []
        for metric in self.metrics:
            data = HeatmapData(metric.name)
            data.update(nodes, self.now)
            sparks = [data.spark(at, self.now, self.columns, self.trends.span_s) for at in range(len(nodes))]
            if joined:
                known = np.isfinite(sparks).sum(axis=0)
                names = ["mean"]
                sparks = [np.where(known, np.nansum(sparks, axis=0) / np.maximum(known, 1), np.nan)]
            series = zip(names, sparks, strict=True)
            columns.append([PlotSeries(name, own, "", "", ramp=ramp_of(metric)) for name, own in series])
        return self._drawn(columns, height)

    def _drawn(
        self, columns: Sequence[Sequence[PlotSeries]], height: int, marks: Sequence[float] = ()
    ) -> list[Spans]:
        drawn = partial(band, width=self.width, height=height, newest=self.newest, label=self.label)
        columns_drawn = ([line for plot in series for line in drawn(plot)] for series in columns)
        return beside([overlay(lines, marks, self.label + 1, self.columns) for lines in columns_drawn])

    def axis(self) -> Spans:
        """Return the time axis below all bands."""
        axis = " " * (self.label + 1) + time_axis(self.trends.span_s, self.columns, self.trends.last)
        return beside([[(Span(f"{axis:<{self.width}}", "dim"),)]] * len(self.metrics))[0]


def with_mark(line: Spans) -> Spans:
    """Return the line of a band that has its name with the cursor's mark before it."""
    name = line[0].text.strip()
    return (Span(f"{f'{CURSOR_MARK} {name}':>{LABEL_WIDTH}} ", "accent"), *line[1:])


@dataclass(frozen=True, eq=False)
class MinutesPlan:
    """Lines of each band of a fleet's last minutes, from the top.

    One band of ``fleet`` lines has the mean over all ``nodes``; then come bands with the means of
    ``mean_nodes``, and those of the GPUs of ``gpu_nodes``.
    """

    mean_nodes: Sequence[NodeState]
    means: int
    gpu_nodes: Sequence[NodeState]
    gpus: int
    nodes: Sequence[NodeState] = ()
    fleet: int = 0

    @property
    def label(self) -> int:
        """Cells of the bands' names."""
        names = [1 + width(clean(node.name)) for node in self.mean_nodes]
        return min(NAME_LONGEST, max((LABEL_WIDTH, *names)))


def plan_minutes(
    nodes: Sequence[NodeState], chosen: NodeState | None, metric: Metric, room: int, events: int = 0
) -> MinutesPlan | None:
    """Share ``room`` lines: all GPUs if each gets two, else every node's mean and the chosen node's GPUs.

    Where both don't fit, the chosen node's GPUs, else the means. One mean over all nodes gets the lines that
    bands leave, and beside them only what further ``events`` don't use; alone it leaves these a third. None
    where nothing fits.
    """
    of_gpus = metric.name in GPU_BY_NAME
    own = [chosen] if chosen is not None and chosen.facts else []
    shown = [node for node in nodes if node.facts]
    plan = _plan_bands(shown if len(nodes) < room else [], own, room, of_gpus=of_gpus)
    headings = bool(plan.mean_nodes) + len(plan.gpu_nodes)
    bands = plan.means * len(plan.mean_nodes) + plan.gpus * sum(len(node.facts) for node in plan.gpu_nodes)
    # The axis takes a line, and so does the heading where no means of nodes have one.
    left = room - 1 - headings - bands - (not plan.mean_nodes)
    left -= events if bands else min(events, left // 3)
    # With fewer lines, those of heading and axis are better used for events.
    is_new = len(shown) > 1 or not plan.mean_nodes
    if is_new and 0 < len(shown) <= FLEET_MOST and left >= (1 if bands else FLEET_ALONE):
        return replace(plan, nodes=shown, fleet=min(MINUTES_HIGHEST, left))
    return plan if bands else None


def _plan_bands(
    known: Sequence[NodeState], own: Sequence[NodeState], room: int, *, of_gpus: bool
) -> MinutesPlan:
    """Share lines between the means of the ``known`` nodes and the GPUs of the chosen, its ``own``.

    The first of four plans is taken whose bands all get their least lines; means get the lines that remain.
    """
    several, gpus_of_own = len(known) > 1, own if of_gpus else []
    for mean_nodes, gpu_nodes, least in (
        ([], known if of_gpus and several else [], 2),
        (known if several or not of_gpus else [], gpus_of_own, 1),
        ([], gpus_of_own, 1),
        (known if of_gpus else own, [], 1),
    ):
        left = room - 1 - bool(mean_nodes) - len(gpu_nodes)
        gpus = sum(len(node.facts) for node in gpu_nodes)
        height = min(MINUTES_HIGHEST, left // max(1, len(mean_nodes) + gpus))
        if height >= least and (mean_nodes or gpus):
            means = min(MINUTES_HIGHEST, (left - height * gpus) // max(1, len(mean_nodes)))
            return MinutesPlan(mean_nodes, means, gpu_nodes, height)
    return MinutesPlan([], 0, [], 0)


def minutes(plan: MinutesPlan, plot: BandPlot) -> list[Spans]:
    """Plot the bands of a plan above one time axis."""
    lines: list[Spans] = []
    if plan.mean_nodes:
        of_gpus = plot.metrics[0].name in GPU_BY_NAME
        lines.append(plot.heading("mean of each node" if of_gpus else "each node"))
    elif plan.fleet:
        lines.append(plot.heading("all nodes"))
    if plan.fleet:
        lines += plot.means(plan.nodes, plan.fleet, joined=True)
    lines += plot.means(plan.mean_nodes, plan.means)
    for node in plan.gpu_nodes:
        lines += [plot.heading(node.name), *plot.bands(node, plan.gpus)]
    return [*lines, plot.axis()]
