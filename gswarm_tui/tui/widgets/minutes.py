"""The last minutes of every GPU of a few nodes below each other, where a fleet leaves room for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gswarm_agent.metrics import GPU_BY_NAME, Metric
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.legend import label
from gswarm_tui.tui.text import clean, width
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.lines import Spans
from gswarm_tui.tui.widgets.plot import Plot, band, band_bins, band_width, bands_axis
from gswarm_tui.tui.widgets.trends import Trends

HIGHEST = 8


def minutes(
    nodes: Sequence[NodeState], metric: Metric, trends: Trends, now: float, size: tuple[int, int]
) -> list[Spans]:
    """For each node a heading and a band for each of its GPUs, or for its host, and a time axis under all.

    ``size`` is how many cells and lines there are at most: no line where not all fit. As they aren't drawn
    at every reading, the newest value isn't told.
    """
    cells, room = size
    known = [node for node in nodes if node.facts]
    bands = sum(len(node.facts) if metric.name in GPU_BY_NAME else 1 for node in known)
    height = min(HIGHEST, (room - len(known) - 1) // bands) if bands else 0
    if height < 1:
        return []
    bins = band_width(cells) * band_bins(height)
    lines: list[Spans] = []
    for node in known:
        words = f" {clean(node.name)}: {label(metric)}, {trends.span_in_words} "
        rule = "─" * (cells - width(words) - 1)
        lines.append((Span("─", "faint"), Span(words, "dim"), Span(rule, "faint")))
        for plot in _plots(node, metric, trends, bins, now):
            lines += band(replace(plot, now=""), cells, height)
    return [*lines, bands_axis(trends.span_s, cells)]


def _plots(node: NodeState, metric: Metric, trends: Trends, bins: int, now: float) -> Iterator[Plot]:
    if metric.name not in GPU_BY_NAME:
        yield trends.host(node, metric, bins, now).named("")
        return
    for row, facts in enumerate(node.facts):
        yield trends.gpu(node, row, metric, bins, now).named(f"{facts.index}")
