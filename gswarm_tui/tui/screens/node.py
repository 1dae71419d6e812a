"""Node screen: GPUs, their history, the host, processes and unmeasured metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical

from gswarm_agent.metrics import GPU_BY_NAME, GPU_METRICS, HOST_BY_NAME, Metric
from gswarm_tui.common.quantities import DASH
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.actions import NODE
from gswarm_tui.tui.drawing.bands import BandPlot, metrics_beside, with_mark
from gswarm_tui.tui.drawing.numbers import host_metrics, label, quantity
from gswarm_tui.tui.drawing.plot import (
    GAP,
    PlotSeries,
    beside,
    curve_width,
    label_line,
    marks_in,
    panel,
    sparkline,
    window,
)
from gswarm_tui.tui.drawing.ramp import is_logarithmic
from gswarm_tui.tui.drawing.spans import Span, Spans, heading_rule
from gswarm_tui.tui.drawing.trends import Trends
from gswarm_tui.tui.screens import node_tables as tables
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import pick_metric
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.titles import node_title
from gswarm_tui.tui.widgets.lines import Canvas, ViewBar
from gswarm_tui.tui.widgets.table import TableView

CELL_WIDTH = 38
HOST_LABEL_WIDTH = 15
HOST_VALUE_WIDTH = 9
WORDS_WIDTH = HOST_LABEL_WIDTH + HOST_VALUE_WIDTH + 2
"""Cells of a metric before its curve."""


def shown_metrics(node: NodeState) -> list[Metric]:
    """Return the host metrics to draw, without what the title shows and a job that the node hasn't."""
    apart = {"job_memory_limit_mib", "job_oom_kills", *(n for n in node.unmeasured if n.startswith("job_"))}
    return [metric for metric in host_metrics(node.metrics) if metric.name not in apart]


def host_columns(width: int) -> int:
    """Return how many host metrics fit side by side."""
    return max(1, min(4, (width - 1 + GAP) // (CELL_WIDTH + GAP)))


def host_height(width: int, metrics: int) -> int:
    """Return the lines of a number of host metrics."""
    return -(-metrics // host_columns(width))


def host_lines(node: NodeState, trends: Trends, width: int, now: float) -> list[Spans]:
    """Draw all host metrics, column by column."""
    columns, metrics = host_columns(width), shown_metrics(node)
    height = host_height(width, len(metrics))
    curve = max(4, (width - 1 - GAP * (columns - 1)) // columns - WORDS_WIDTH)
    cells = [_line(metric, trends.host(node, metric, curve, now)) for metric in metrics]
    cells += [()] * (-len(cells) % height)
    side_by_side = beside([cells[at : at + height] for at in range(0, len(cells), height)])
    return [(Span(" "), *line) for line in side_by_side]


def _line(metric: Metric, plot: PlotSeries) -> Spans:
    """Return a metric's name, value and curve."""
    name = Span(f"{metric.label:<{HOST_LABEL_WIDTH}} ", "dim")
    value = Span(f"{plot.now:>{HOST_VALUE_WIDTH}} ", "dim" if plot.now == DASH else plot.now_role)
    return (name, value, *sparkline(plot.levels, ramp=plot.ramp)[0])


ALL, PLOTS, HOST, PROCESSES = "overview", "plots", "host", "processes"
CONNECTIONS, UNMEASURED = "links", "not measured"
# fmt: off
WIDGETS = {
    ALL: "#gpus", PLOTS: "#plots", HOST: "#host",
    PROCESSES: "#processes", CONNECTIONS: "#links", UNMEASURED: "#unmeasured",
}
# fmt: on
"""The widget of each view; the overview has several, the most important of them here."""
PANEL_LOWEST = 6
PROCESSES_LOWEST = 5
BAND_HIGHEST = 12


def heights(room: int, gpus: int, host: int, processes: int) -> tuple[int, int, int, int, int]:
    """Share the overview's lines: GPUs and plots first, then host and processes where they fit.

    Returns the height of a GPU's curve, and the lines of the GPUs' table, plots, host and processes, 0 for
    hidden. With a curve of 0 not all GPUs fit: only the GPU under the cursor is plotted.
    """
    table = min(max(gpus, 1) + 2, max(5, room - PANEL_LOWEST))
    left = max(0, room - table)
    bands = gpus + 1
    if gpus == 0:
        return 0, table, 0, min(left, host + 1), 0
    if left < bands:
        return 0, table, left, 0, 0
    left -= bands
    host_part = host + 1 if left >= host + 1 else 0
    left -= host_part
    processes_part = min(left, processes + 3) if left >= PROCESSES_LOWEST else 0
    left -= processes_part
    higher = min(BAND_HIGHEST - 1, left // gpus)
    plots = bands + higher * gpus
    rest = room - table - plots - host_part
    return 1 + higher, table, plots, host_part, rest if processes_part else 0


class NodeScreen(ViewerScreen):
    """One node: its GPUs with all metrics, the host, and the processes on its GPUs.

    The chosen metric of each GPU is plotted over time. The last view lists what couldn't be measured, and
    why.
    """

    SCREEN = NODE
    VIEWS: ClassVar = tuple(WIDGETS)
    DEFAULT_CSS = "NodeScreen > #body { height: 1fr; }"

    def __init__(self, node: str, gpu: int | None = None) -> None:
        super().__init__()
        self.node, self.gpu = node, gpu
        self._trends = Trends()
        self._metric = GPU_METRICS[0]
        self._band = 0

    def compose_body(self) -> ComposeResult:
        """Views, and the widgets of all views."""
        yield ViewBar(self.VIEWS)
        with Vertical(id="body"):
            columns = tables.gpu_columns(tables.listed_metrics(self.state))
            yield TableView(columns, picks_column=True, empty="no GPUs", id="gpus")
            yield Canvas(id="plots")
            yield Canvas(id="host")
            yield TableView(tables.PROCESS_TABLE_COLUMNS, empty="no GPU processes", id="processes")
            yield TableView((), empty="the agent found no connections between GPUs", id="links")
            yield TableView(tables.UNMEASURED_TABLE, empty="all metrics are measured", id="unmeasured")

    def on_mount(self) -> None:
        """Put the cursor on the requested GPU."""
        self.query_one("#gpus", TableView).cursor = self.gpu or 0
        self._focus_view()

    @property
    def state(self) -> NodeState:
        """The node's state."""
        return self.fleet.nodes[self.node]

    @property
    def table(self) -> TableView:
        """The table that the arrow keys move in."""
        return self.query_one("#gpus" if self.view in (PLOTS, HOST) else WIDGETS[self.view], TableView)

    def draw(self) -> None:
        """Draw the node."""
        now, node = self.viewer.now(), self.state
        self.show_title(*node_title(node, now, self.size.width))
        self._trends.settle([node], now, self.time_shown)
        self._arrange()
        self.query_one(ViewBar).show_hint(self._hint(node))
        old = node.standing(now) is not Standing.LIVE
        names = "gpus", "processes", "links", "unmeasured"
        gpus, processes, links, unmeasured = (self.query_one(f"#{name}", TableView) for name in names)
        plots, host = self.query_one("#plots", Canvas), self.query_one("#host", Canvas)
        if gpus.display:
            columns = tables.gpu_columns(tables.listed_metrics(node))
            gpus.show_columns(columns, tables.gpu_rows(node, self._metric, now))
        if plots.display:
            plots.show(self._plot_lines(node, now))
        if host.display:
            width = self.size.width
            host.show([heading_rule("host", width), *host_lines(node, self._trends, width, now)])
        if node.hello is None:
            return
        if processes.display:
            processes.empty = tables.no_processes(node, "no GPU processes")
            rows = tables.process_rows(node.hello, node.processes, old=old)
            processes.show_columns(tables.PROCESS_TABLE_COLUMNS, rows)
        if links.display:
            rows = tables.link_rows(node, node.hello, old=old) if node.hello.links else []
            links.show_columns(tables.link_columns(node.hello), rows)
        if unmeasured.display:
            unmeasured.show(tables.unmeasured_rows(node))

    def _arrange(self) -> None:
        """Set the height of each widget."""
        room, node = self.query_one("#body").size.height, self.state
        gpus = len(node.facts)
        if self.view == ALL:
            host = host_height(self.size.width, len(shown_metrics(node)))
            self._band, *parts = heights(room, gpus, host, len(node.processes))
            lines = dict(zip(("#gpus", "#plots", "#host", "#processes"), parts, strict=True))
        else:
            self._band = max(0, (room - 1) // gpus) if gpus else 0
            lines = {WIDGETS[self.view]: room}
        for name in WIDGETS.values():
            part = self.query_one(name)
            part.styles.height = lines.get(name, 0)
            part.display = lines.get(name, 0) > 0

    def _plot_lines(self, node: NodeState, now: float) -> list[Spans]:
        cells = self.size.width - 1
        height = self.query_one("#plots").styles.height
        room = int(height.value) if height is not None else 0
        if not node.facts or room < 2:
            return []
        if not self._band:
            row = min(self.query_one("#gpus", TableView).cursor, len(node.facts) - 1)
            bins = curve_width(cells)
            plot = self._trends.gpu(node, row, self._metric, bins, now)
            named = replace(plot, label=f"GPU {node.facts[row].label}, {plot.label}")
            axis = self._trends.span_s, self._trends.last
            return panel(named, cells, room, *axis, marks=self._marks(bins, now))
        bands = BandPlot(self._trends, self._metrics, now, cells)
        lines = bands.bands(node, self._band, self._marks(bands.columns, now))
        chosen = self.query_one("#gpus", TableView).cursor * self._band + label_line(self._band)
        if chosen < len(lines):
            lines[chosen] = with_mark(lines[chosen])
        return [*lines, bands.axis()]

    @property
    def _metrics(self) -> tuple[Metric, ...]:
        """The plotted metric, and the one beside it."""
        return metrics_beside(self._metric, self.size.width - 1) if self._band else (self._metric,)

    def _marks(self, bins: int, now: float) -> list[float]:
        return marks_in(self.fleet.event_log, window(now, self._trends.span_s, bins))

    def _hint(self, node: NodeState) -> str:
        """Return the plotted metrics and their scales, which bands don't print."""
        if self.view not in (ALL, PLOTS):
            return self._trends.span_label if self.view == HOST else ""
        return " · ".join(self._scale(node, metric) for metric in self._metrics)

    def _scale(self, node: NodeState, metric: Metric) -> str:
        facts = node.facts[0] if node.facts else None
        top = self._trends.top(metric, facts, node.gpus[:, GPU_METRICS.index(metric)])
        low = "log, to" if is_logarithmic(metric) else "0 to"
        return f"{label(metric)} {low} {quantity(top, metric)}"

    def on_view_bar_picked(self) -> None:
        """Show the view and focus its widget."""
        self.update_view()
        self._focus_view()

    def _focus_view(self) -> None:
        self.set_focus(self.query_one(WIDGETS[self.view]))

    def on_table_view_moved(self, event: TableView.Moved) -> None:
        """Plot the selected GPU and metric."""
        if event.table.id == "gpus":
            self._metric = tables.listed_metrics(self.state)[max(0, event.table.column - tables.FROZEN)]
            self.gpu = event.table.cursor
            self.update_view()

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Open the GPU of a row."""
        if event.table.id == "gpus":
            self.viewer.show(GpuScreen(self.node, event.table.cursor))

    def action_move(self, where: str) -> None:
        """Move the cursor, or scroll a view without one."""
        if self.view == HOST:
            self.query_one("#host", Canvas).move(where)
        elif self.view == PLOTS and where in ("left", "right"):
            self.query_one("#gpus", TableView).move(where)
        else:
            self.table.move(where)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        self.table.choose()

    def action_step_span(self) -> None:
        """Change the plotted time range."""
        self._trends.lengthen()
        self.update_view()

    def action_metric(self, name: str) -> None:
        """Plot a metric; a host metric shows the host view."""
        if name in GPU_BY_NAME:
            listed = tables.listed_metrics(self.state)
            if GPU_BY_NAME[name] in listed:
                column = listed.index(GPU_BY_NAME[name]) + tables.FROZEN
                self.query_one("#gpus", TableView).pick_column(column)
        elif name in HOST_BY_NAME:
            self.query_one(ViewBar).pick(HOST)

    def action_pick_metric(self) -> None:
        """Choose the metric from a list."""
        pick_metric(self.app, "plot which metric?", self._metric, self.action_metric)
