"""Worst GPUs: the job's GPUs ranked by their mean of one metric over the last minute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from textual.app import ComposeResult

from gswarm_agent.metrics import GPU_BY_NAME, GPU_COLUMNS, GPU_METRICS, HOST_BY_NAME, Metric
from gswarm_tui.common.quantities import DASH, plural
from gswarm_tui.common.units import shown_unit
from gswarm_tui.fleet.findings import Finding, current
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.problems import named_rows
from gswarm_tui.fleet.program import program
from gswarm_tui.fleet.ranking import GpuRanking, RankedGpu
from gswarm_tui.fleet.throttling import reason_names
from gswarm_tui.tui.actions import WORST
from gswarm_tui.tui.drawing.finding_lines import kind_name
from gswarm_tui.tui.drawing.legend import label
from gswarm_tui.tui.drawing.node_status import NAMED
from gswarm_tui.tui.drawing.numbers import cell, digits
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import pick_metric
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.node_tables import no_processes
from gswarm_tui.tui.screens.titles import joined
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

LISTED_MOST = 500
"""GPUs in the table: the worst ones."""
RANK_EVERY_S = 2.0
BESIDE = tuple(GPU_BY_NAME[name] for name in ("util_pct", "power_w", "temp_c", "mem_used_mib"))
"""Metrics whose newest values are shown, too."""


def worst_columns(metric: Metric) -> tuple[TableColumn, ...]:
    """Return the columns: place, GPU, rank, the metric's mean and newest value, other metrics, notes."""
    unit = "%" if metric.unit == "bits" else shown_unit(metric).name
    others = (TableColumn(m.short, 5, shown_unit(m).name) for m in BESIDE if m is not metric)
    return (
        TableColumn("", 4, frozen=True),
        TableColumn("GPU", 16, left=True, frozen=True),
        TableColumn("rank", 5),
        TableColumn("1 min", 6, unit),
        TableColumn("latest", 6, shown_unit(metric).name),
        *others,
        TableColumn("notes", 16, left=True, grows=True),
    )


def worst_row(
    place: int, gpu: RankedGpu, node: NodeState, metric: Metric, now: float, *, found: Iterable[Finding] = ()
) -> Row:
    """Return a GPU's row with the findings that name it; the values of a node that isn't live are faint."""
    standing = node.standing(now)
    role = "text" if standing is Standing.LIVE else "dim"
    values = dict(zip(GPU_COLUMNS, node.gpus[gpu.row].tolist(), strict=True))
    latest = float(node.gpus[:, GPU_COLUMNS.index(metric.name)][gpu.row])
    process = next((p for p in node.processes if p.gpu == gpu.row), None)
    others = (cell(values[m.name], m) for m in BESIDE if m is not metric)
    command = no_processes(node, "no process") if process is None else clean(program(process.command or ""))
    notes, notes_role = _notes(values, command, standing)
    if kinds := ", ".join(kind_name(one.kind) for one in found if gpu.row in named_rows(one, node)):
        notes = joined((f"{NAMED} {kinds}", notes))
    return (
        Span(f"{place}", "dim"),
        Span(f"{clean(node.name)}:{node.facts[gpu.row].label}", "title" if role == "text" else "dim"),
        Span(DASH if process is None or process.rank is None else f"{process.rank}", "dim"),
        Span(_mean(gpu.mean, metric), role),
        Span(cell(latest, metric), role),
        *(Span(text, role) for text in others),
        Span(notes, notes_role),
    )


def _mean(value: float, metric: Metric) -> str:
    return cell(value, metric) if metric.unit not in ("bits", "P") or np.isnan(value) else digits(value)


def _notes(values: dict[str, float], command: str, standing: Standing) -> tuple[str, str]:
    """Return what explains a GPU's values, and its role: its node's status, throttling, its command."""
    reasons = values["clock_reasons"]
    throttled = "" if np.isnan(reasons) else reason_names(int(reasons))
    if standing is not Standing.LIVE:
        return standing.value, "warning"
    if not np.isfinite(list(values.values())).any():
        return "GPU does not respond", "error"
    return joined((f"▲ {throttled}" if throttled else "", command)), "warning" if throttled else "dim"


class WorstGpusScreen(ViewerScreen):
    """Your job's GPUs, ranked by their mean of one metric over the last minute, the worst first.

    A GPU keeps its place until its mean has clearly changed.
    """

    SCREEN = WORST

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._ranking = GpuRanking(metric)
        self._ranked: Sequence[RankedGpu] = ()
        self._ranked_at = 0.0

    def compose_body(self) -> ComposeResult:
        """The table."""
        yield TableView(worst_columns(self._ranking.metric), empty="no GPU has been measured yet")

    def reset(self) -> None:
        """Rank the GPUs of another fleet."""
        self._ranked, self._ranked_at = (), 0.0

    def draw(self) -> None:
        """Draw the table; the ranking is read again every two seconds."""
        now, table = self.viewer.now(), self.query_one(TableView)
        under = self._listed[table.cursor] if table.cursor < len(self._listed) else None
        gone = any(gpu.row >= len(self.fleet.nodes[gpu.node].facts) for gpu in self._ranked)
        if gone or abs(now - self._ranked_at) >= RANK_EVERY_S:
            self._ranked_at = now
            self._ranked = self._ranking.update(self.fleet.nodes.values(), now)
        metric, nodes = self._ranking.metric, self.fleet.nodes
        found = current(self.fleet.findings.values())
        rows = [
            worst_row(place, gpu, nodes[gpu.node], metric, now, found=found)
            for place, gpu in enumerate(self._listed, 1)
        ]
        table.show_columns(worst_columns(metric), rows)
        if under is not None and table.cursor:
            places = {(gpu.node, gpu.row): place for place, gpu in enumerate(self._listed)}
            table.move_to(places.get((under.node, under.row), 0))
        order = "highest" if self._ranking.highest_first else "lowest"
        listed, known = len(self._listed), len(self._ranked)
        gpus = plural(known, "GPU") if listed == known else f"first {listed:,} of {plural(known, 'GPU')}"
        self.show_title(
            [
                Span(f" {gpus}", "title"),
                Span(f"  {order} {label(metric)} first", "accent"),
                Span("  mean of the last minute", "dim"),
            ]
        )

    @property
    def _listed(self) -> Sequence[RankedGpu]:
        return self._ranked[:LISTED_MOST]

    # Actions

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Open the GPU."""
        if event.row < len(self._listed):
            gpu = self._listed[event.row]
            self.viewer.show(GpuScreen(gpu.node, gpu.row))

    def action_metric(self, name: str) -> None:
        """Rank by another metric."""
        if name in HOST_BY_NAME:
            self.viewer.show_notice(f"{HOST_BY_NAME[name].label} is measured for nodes, not for GPUs")
        else:
            self._rank(GpuRanking(GPU_BY_NAME[name]))

    def action_step_metric(self, step: int) -> None:
        """Rank by the next or previous metric."""
        at = GPU_METRICS.index(self._ranking.metric)
        self._rank(GpuRanking(GPU_METRICS[(at + step) % len(GPU_METRICS)]))

    def action_pick_metric(self) -> None:
        """Choose the metric from a list."""
        pick_metric(self.app, "rank by which metric?", self._ranking.metric, self.action_metric)

    def action_reverse(self) -> None:
        """Rank the other way round."""
        self._rank(GpuRanking(self._ranking.metric, highest_first=not self._ranking.highest_first))

    def _rank(self, ranking: GpuRanking) -> None:
        """Use another ranking, with the cursor on the worst GPU."""
        self._ranking, self._ranked_at = ranking, 0.0
        self.query_one(TableView).move_to(0)
        self.update_view()
