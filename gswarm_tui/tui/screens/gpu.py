"""GPU screen: all metrics, their history and the GPU's processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from gswarm_agent.metrics import GPU_BY_NAME, GPU_METRICS, INSTANCE_COLUMNS, REASON_NAMES, Metric
from gswarm_tui.common.quantities import DASH, energy
from gswarm_tui.fleet.health import gpu_health
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.throttling import HARMFUL, reason_names
from gswarm_tui.tui.actions import GPU
from gswarm_tui.tui.drawing.numbers import meaning, quantity
from gswarm_tui.tui.drawing.plot import GAP, bar, beside, curve_width, marks_in, panel, window
from gswarm_tui.tui.drawing.ramp import bucket, fractions, ramp_of, top_of
from gswarm_tui.tui.drawing.spans import Span, Spans, heading_rule
from gswarm_tui.tui.drawing.text import clip, pad, wrap
from gswarm_tui.tui.drawing.trends import Trends
from gswarm_tui.tui.screens import node_tables as tables
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.titles import gpu_title
from gswarm_tui.tui.widgets.lines import Canvas, ViewBar
from gswarm_tui.tui.widgets.table import TableView

LABEL_WIDTH = 17
VALUE_WIDTH = 10
BAR_WIDTH = 14
NARROW = 1 + LABEL_WIDTH + 1 + VALUE_WIDTH + 2 + BAR_WIDTH
"""Cells of the metric list without meanings."""
MEANING_LEAST = 30
_LEFT_OUT = (
    *("sm_occupancy_pct", "fp64_active_pct", "fp32_active_pct", "fp16_active_pct"),
    *("c2c_tx_mb_s", "c2c_rx_mb_s", "mem_clock_mhz", "pstate", "power_instant_w"),
)
"""Metrics that the overview has no room for; the view of metrics has all."""


def metric_lines(
    node: NodeState, row: int, cells: int, now: float, metrics: Sequence[Metric] = tables.LISTED_METRICS
) -> list[Spans]:
    """Return a line per metric; an unmeasured one shows the reason in the place of its meaning."""
    if row >= len(node.facts):
        return []
    old = node.standing(now) is not Standing.LIVE
    room = cells - NARROW - 2
    lines: list[Spans] = []
    values = dict(zip(GPU_METRICS, node.gpus[row].tolist(), strict=True))
    for metric in metrics:
        value = values[metric]
        label = Span(f" {metric.label:<{LABEL_WIDTH}} ", "dim")
        if metric.unit == "bits":
            words, role = reasons_text(value)
            for part in wrap(words, max(12, cells - LABEL_WIDTH - 3)):
                lines.append((label, Span(part, "dim" if old else role)))
                label = Span(" " * (LABEL_WIDTH + 2))
            continue
        text = energy(value / 1000) if metric.unit == "mJ" else quantity(value, metric)
        missing = text == DASH
        number = Span(pad(text, VALUE_WIDTH, right=True), "dim" if missing or old else "text")
        spans = [label, number, Span("  "), _bar(metric, value, top_of(metric, node.facts[row]))]
        if room >= MEANING_LEAST:
            words = why_missing(node, row, metric) if missing else meaning(metric)
            spans.append(Span("  " + clip(words, room), "warning" if missing else "dim"))
        lines.append(tuple(spans))
    return lines


def health_lines(node: NodeState, row: int, cells: int) -> list[Spans]:
    """Return what is wrong with a GPU and where nothing was found, in a few lines."""
    health = gpu_health(node, row)
    texts = [
        *((f"! {text}", "warning") for text in health.found),
        *((text, "text") for text in health.counted),
    ]
    heads = {"nothing found in: ": health.clear, "not measured: ": health.unmeasured}
    texts += [(head + ", ".join(areas), "dim") for head, areas in heads.items() if areas]
    parts = [(part, role) for text, role in texts for part in wrap(text, cells - 2)]
    return [heading_rule("health", cells), *((Span(f" {part}", role),) for part, role in parts)]


def _bar(metric: Metric, value: float, top: float | None) -> Span:
    """Draw a bar where the scale has an end; performance states have none."""
    if top is None or metric.unit == "P" or math.isnan(value):
        return Span(" " * BAR_WIDTH)
    level = float(fractions(metric, np.array([value]), top)[0])
    return Span(bar(level, BAR_WIDTH), f"ink{ramp_of(metric)}{bucket(level)}")


def reasons_text(bits: float) -> tuple[str, str]:
    """Return clock reasons as text, and the text's role."""
    if math.isnan(bits):
        return DASH, "dim"
    held = reason_names(int(bits))
    if held:
        return held, "warning" if int(bits) & HARMFUL else "text"
    others = ", ".join(name for bit, name in REASON_NAMES.items() if bit & int(bits))
    return others or "not throttled", "text"


def why_missing(node: NodeState, row: int, metric: Metric) -> str:
    """Return why a GPU's metric is missing."""
    known, facts = node.unmeasured, node.facts[row]
    index, of_instance = facts.index, "" if facts.parent_index is None else "mig"
    for name in (f"gpu{index}.{metric.name}", metric.name, f"gpu{index}", of_instance, "gpu"):
        if name in known:
            return known[name]
    return "not in the newest frame"


ALL, PLOTS, METRICS, PROCESSES = "overview", "plots", "metrics", "processes"
PLOTTED = (
    *("util_pct", "sm_active_pct", "tensor_active_pct", "mem_used_mib", "power_w", "temp_c", "sm_clock_mhz"),
    *("nvlink_tx_mb_s", "pcie_rx_mb_s", "mem_util_pct", "dram_active_pct", "nvlink_rx_mb_s", "pcie_tx_mb_s"),
    *("mem_temp_c", "mem_clock_mhz"),
)
"""Plotted metrics, most important first: as many as fit."""
PANEL_WIDTH, PANEL_HEIGHT = 38, 6
WIDE = 100
PROCESSES_MOST = 4


class GpuScreen(ViewerScreen):
    """One GPU: all its metrics as numbers and as bars, their history, and its processes."""

    SCREEN = GPU
    AUTO_FOCUS = ""
    VIEWS: ClassVar = (ALL, PLOTS, METRICS, PROCESSES)
    DEFAULT_CSS = """
    GpuScreen > #body, GpuScreen #upper, GpuScreen #metrics, GpuScreen #plots { height: 1fr; }
    GpuScreen #plots { width: 1fr; }
    """

    def __init__(self, node: str, gpu: int) -> None:
        super().__init__()
        self.node, self.gpu = node, gpu
        self._trends = Trends()

    def compose_body(self) -> ComposeResult:
        """Views, metrics, plots and processes."""
        yield ViewBar(self.VIEWS)
        with Vertical(id="body"):
            with Horizontal(id="upper"):
                yield Canvas(id="metrics")
                yield Canvas(id="plots")
            yield TableView(tables.PROCESS_TABLE_COLUMNS, empty="no process on this GPU", id="processes")

    @property
    def state(self) -> NodeState:
        """The GPU's node."""
        return self.fleet.nodes[self.node]

    def draw(self) -> None:
        """Draw the GPU."""
        now, node = self.viewer.now(), self.state
        self.show_title(*gpu_title(node, self.gpu, now, self.size.width))
        self._trends.settle([node], now, self.time_shown)
        self._arrange()
        metrics, plots = self.query_one("#metrics", Canvas), self.query_one("#plots", Canvas)
        processes = self.query_one("#processes", TableView)
        if metrics.display:
            listed = tables.LISTED_METRICS if self.view == METRICS else self._overview()
            lines = metric_lines(node, self.gpu, metrics.size.width, now, listed)
            # The block must not be cut below its heading; faults are also below the title.
            if lines and (self.view == METRICS or len(lines) + 2 <= metrics.size.height):
                lines += health_lines(node, self.gpu, metrics.size.width)
            metrics.show(lines)
        if plots.display:
            plots.show(self._plot_lines(node, plots.size.width - 1, plots.size.height, now))
        if processes.display and node.hello is not None:
            mine = [p for p in node.processes if p.gpu == self.gpu]
            old = node.standing(now) is not Standing.LIVE
            divided = node.facts[self.gpu].index in {fact.parent_index for fact in node.facts}
            words = "its MIG instances list their processes" if divided else "no process on this GPU"
            processes.empty = tables.no_processes(node, words)
            rows = tables.process_rows(node.hello, mine, old=old)
            processes.show_columns(tables.PROCESS_TABLE_COLUMNS, rows)
        self.query_one(ViewBar).show_hint(self._trends.span_label if plots.display else "")

    def _arrange(self) -> None:
        """Show the widgets of the view; the overview has metrics and processes where they fit."""
        view, room = self.view, self.query_one("#body").size
        wide = room.width >= WIDE
        metrics, processes = self.query_one("#metrics"), self.query_one("#processes", TableView)
        metrics.display = view == METRICS or (view == ALL and wide)
        metrics.styles.width = "1fr" if view == METRICS else NARROW + 2
        self.query_one("#plots").display = view in (ALL, PLOTS)
        self.query_one("#upper").display = view != PROCESSES
        number = sum(p.gpu == self.gpu for p in self.state.processes)
        lines = processes.heading_height + max(1, min(number, PROCESSES_MOST))
        processes.display = view == PROCESSES or (
            view == ALL and room.height >= len(self._overview()) + 1 + lines
        )
        processes.styles.height = "1fr" if view == PROCESSES else lines

    def _overview(self) -> list[Metric]:
        names = set(self._names).difference(_LEFT_OUT)
        return [metric for metric in tables.listed_metrics(self.state) if metric.name in names]

    @property
    def _names(self) -> tuple[str, ...]:
        """The metrics that this GPU or instance has."""
        instance = any(f.parent_index is not None for f in self.state.facts[self.gpu : self.gpu + 1])
        return INSTANCE_COLUMNS if instance else tuple(GPU_BY_NAME)

    def _plot_lines(self, node: NodeState, cells: int, height: int, now: float) -> list[Spans]:
        if self.gpu >= len(node.facts) or height < PANEL_HEIGHT:
            return []
        lacking = node.unmeasured.keys() & INSTANCE_COLUMNS
        plotted = [name for name in PLOTTED if name in self._names and name not in lacking]
        columns = max(1, min(4, (cells + GAP) // (PANEL_WIDTH + GAP)))
        rows = max(1, min(-(-len(plotted) // columns), height // PANEL_HEIGHT))
        width = (cells - GAP * (columns - 1)) // columns
        bins = curve_width(width)
        marks = marks_in(self.fleet.event_log, window(now, self._trends.span_s, bins))
        lines: list[Spans] = []
        for row in range(rows):
            tall = height // rows + (row < height % rows)
            axis = self._trends.span_s if row == rows - 1 else None
            metrics = (GPU_BY_NAME[name] for name in plotted[row * columns : (row + 1) * columns])
            plots = (self._trends.gpu(node, self.gpu, metric, bins, now) for metric in metrics)
            lines += beside(
                [panel(each, width, tall, axis, self._trends.last, marks=marks) for each in plots]
            )
        return lines

    def on_view_bar_picked(self) -> None:
        """Focus the table of processes in its view, before it is shown."""
        self.set_focus(self.query_one("#processes") if self.view == PROCESSES else None)

    def action_move(self, where: str) -> None:
        """Show the next or previous GPU, also of other nodes; up and down scroll."""
        if where in ("left", "right"):
            self._step(-1 if where == "left" else 1)
        elif self.view == METRICS:
            self.query_one("#metrics", Canvas).move(where)
        else:
            self.query_one("#processes", TableView).move(where)

    def _step(self, by: int) -> None:
        nodes = [node for node in self.fleet.nodes.values() if node.facts or node.name == self.node]
        names = [node.name for node in nodes]
        wanted = self.gpu + by
        if not 0 <= wanted < len(self.state.facts):
            node = nodes[(names.index(self.node) + by) % len(nodes)]
            self.node, wanted = node.name, 0 if by > 0 else max(0, len(node.facts) - 1)
        self.gpu = wanted
        self.update_view()

    def action_step_span(self) -> None:
        """Change the plotted time range."""
        self._trends.lengthen()
        self.update_view()
