"""Host metrics as lines: name, value and a curve on a fixed scale, side by side or as wide as the screen."""

from __future__ import annotations

from gswarm_agent.metrics import HOST_METRICS, Metric
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.format import DASH
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.curve import time_axis
from gswarm_tui.tui.widgets.lines import Spans
from gswarm_tui.tui.widgets.plot import Plot, sparkline
from gswarm_tui.tui.widgets.trends import Trends

CELL_WIDTH = 38
LABEL_WIDTH = 15
VALUE_WIDTH = 9
GAP = 2
WORDS_WIDTH = LABEL_WIDTH + VALUE_WIDTH + 2
"""Cells of a metric before its curve."""


def host_columns(width: int) -> int:
    """How many metrics stand side by side."""
    return max(1, min(4, (width - 1 + GAP) // (CELL_WIDTH + GAP)))


def host_height(width: int) -> int:
    """Lines that all metrics need."""
    return -(-len(HOST_METRICS) // host_columns(width))


def host_lines(node: NodeState, trends: Trends, width: int, now: float) -> list[Spans]:
    """All host metrics, column by column."""
    columns = host_columns(width)
    height = host_height(width)
    curve = max(4, (width - 1 - GAP * (columns - 1)) // columns - WORDS_WIDTH)
    cells = [_lines(metric, trends.host(node, metric, curve, now), 1)[0] for metric in HOST_METRICS]
    lines = []
    for at in range(height):
        line: list[Span] = [Span(" ")]
        for cell_at in range(at, len(cells), height):
            gap = [Span(" " * GAP)] if cell_at >= height else []
            line += [*gap, *cells[cell_at]]
        lines.append(tuple(line))
    return lines


def host_plots(node: NodeState, trends: Trends, width: int, height: int, now: float) -> list[Spans]:
    """All host metrics below each other over one time axis; side by side where there are too few lines."""
    each = (height - 1) // len(HOST_METRICS)
    if each < 1:
        return host_lines(node, trends, width, now)
    curve = max(4, width - 2 - WORDS_WIDTH)
    lines = [
        (Span(" "), *line)
        for metric in HOST_METRICS
        for line in _lines(metric, trends.host(node, metric, curve, now), each)
    ]
    return [*lines, (Span(" " * (1 + WORDS_WIDTH) + time_axis(trends.span_s, curve), "dim"),)]


def _lines(metric: Metric, plot: Plot, height: int) -> list[Spans]:
    """One metric: its curve of so many lines, with name and value before the lowest."""
    quiet = plot.old or plot.now == DASH
    words = (
        Span(f"{metric.label:<{LABEL_WIDTH}} ", "dim"),
        Span(f"{plot.now:>{VALUE_WIDTH}} ", "dim" if quiet else "text"),
    )
    *upper, lowest = sparkline(plot.levels, height)
    return [*((Span(" " * WORDS_WIDTH), *line) for line in upper), (*words, *lowest)]
