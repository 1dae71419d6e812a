"""Bands: the last minutes of each GPU as lines, for one or two metrics, on the fleet and the node screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gswarm_agent.metrics import GPU_BY_NAME, Metric
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.drawing.curve import time_axis
from gswarm_tui.tui.drawing.legend import label
from gswarm_tui.tui.drawing.plot import (
    GAP,
    LABEL_WIDTH,
    PlotSeries,
    band,
    band_bins,
    band_width,
    beside,
    overlay,
)
from gswarm_tui.tui.drawing.spans import CURSOR_MARK, Span, Spans, heading_rule
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.trends import Trends

TWO_FROM = 150
"""Cells from which two metrics fit side by side."""
MINUTES_HIGHEST = 8
"""Lines of a band on the fleet screen."""


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
        bins = self.columns * band_bins(height)
        columns = []
        for metric in self.metrics:
            lines: list[Spans] = []
            for plot in self._series(node, metric, bins):
                lines += band(plot, self.width, height, newest=self.newest)
            columns.append(overlay(lines, marks, LABEL_WIDTH + 1, self.columns))
        return beside(columns)

    def _series(self, node: NodeState, metric: Metric, bins: int) -> list[PlotSeries]:
        if metric.name not in GPU_BY_NAME:
            return [replace(self.trends.host(node, metric, bins, self.now), label="")]
        return [
            replace(self.trends.gpu(node, row, metric, bins, self.now), label=f"{facts.index}")
            for row, facts in enumerate(node.facts)
        ]

    def axis(self) -> Spans:
        """Return the time axis below all bands."""
        axis = " " * (LABEL_WIDTH + 1) + time_axis(self.trends.span_s, self.columns, self.trends.last)
        return beside([[(Span(f"{axis:<{self.width}}", "dim"),)]] * len(self.metrics))[0]


def with_mark(line: Spans) -> Spans:
    """Return the lowest line of a band with the cursor's mark before its label."""
    name = line[0].text.strip()
    return (Span(f"{f'{CURSOR_MARK} {name}':>{LABEL_WIDTH}} ", "accent"), *line[1:])


def minutes_height(nodes: Sequence[NodeState], metric: Metric, room: int) -> int:
    """Return the lines of each band so that all bands of nodes fit into ``room``; 0 where they don't."""
    if len(nodes) >= room:
        return 0
    known = [node for node in nodes if node.facts]
    bands = sum(len(node.facts) for node in known) if metric.name in GPU_BY_NAME else len(known)
    return max(0, min(MINUTES_HIGHEST, (room - len(known) - 1) // bands)) if bands else 0


def minutes(nodes: Sequence[NodeState], plot: BandPlot, height: int) -> list[Spans]:
    """Plot the bands of nodes, each in ``height`` lines, above one time axis; nothing for 0."""
    if not height:
        return []
    lines: list[Spans] = []
    for node in nodes:
        if node.facts:
            lines += [plot.heading(node.name), *plot.bands(node, height)]
    return [*lines, plot.axis()]
