"""Host metrics as lines: name, value and a small curve on a fixed scale, in as many columns as fit."""

from __future__ import annotations

from gswarm_agent.metrics import HOST_METRICS
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.tui.format import DASH
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.lines import Spans
from gswarm_tui.tui.widgets.plot import sparkline
from gswarm_tui.tui.widgets.trends import Trends

CELL_WIDTH = 38
LABEL_WIDTH = 15
VALUE_WIDTH = 9
GAP = 2


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
    cell = (width - 1 - GAP * (columns - 1)) // columns
    curve = max(4, cell - LABEL_WIDTH - VALUE_WIDTH - 2)
    cells: list[Spans] = []
    for metric in HOST_METRICS:
        plot = trends.host(node, metric, curve, now)
        quiet = plot.old or plot.now == DASH
        cells.append(
            (
                Span(f"{metric.label:<{LABEL_WIDTH}} ", "dim"),
                Span(f"{plot.now:>{VALUE_WIDTH}} ", "dim" if quiet else "text"),
                *sparkline(plot.levels),
            )
        )
    lines = []
    for at in range(height):
        line: list[Span] = [Span(" ")]
        for cell_at in range(at, len(cells), height):
            gap = [Span(" " * GAP)] if cell_at >= height else []
            line += [*gap, *cells[cell_at]]
        lines.append(tuple(line))
    return lines
