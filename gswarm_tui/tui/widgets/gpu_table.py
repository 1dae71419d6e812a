"""The GPUs of a node as rows of a table: every metric of the catalogue is a column."""

from __future__ import annotations

from gswarm_agent.metrics import GPU_METRICS, Metric
from gswarm_tui.common.units import shown_unit
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.format import DASH, cell
from gswarm_tui.tui.ramp import UNMEASURED, buckets, fractions, tops
from gswarm_tui.tui.widgets.bar import Span
from gswarm_tui.tui.widgets.lines import heat
from gswarm_tui.tui.widgets.table import Column, Row

FROZEN = 1
"""Columns before the metrics: the GPU's index."""


def gpu_columns() -> tuple[Column, ...]:
    """The GPU's index, then one column a metric, in the catalogue's order."""
    metrics = (Column(m.short, max(len(m.short), 5), shown_unit(m).name) for m in GPU_METRICS)
    return (Column("GPU", 4, frozen=True), *metrics)


def metric_at(column: int) -> Metric:
    """The metric in a column of the table."""
    return GPU_METRICS[max(0, column - FROZEN)]


def column_of(metric: Metric) -> int:
    """The column of a metric."""
    return GPU_METRICS.index(metric) + FROZEN


def gpu_rows(node: NodeState, picked: Metric, now: float) -> list[Row]:
    """One row a GPU; the picked metric has its heat, data that isn't fresh and GPUs of others are dim."""
    old = node.standing(now) is not Standing.LIVE
    values = node.gpus
    column = GPU_METRICS.index(picked)
    levels = fractions(picked, values[:, column], tops(picked, node.facts))
    steps = buckets(levels).tolist()
    rows = []
    for at, facts in enumerate(node.facts):
        dim = "dim" if old or not node.mine[at] else ""
        spans = [Span(f"{facts.index}", "dim")]
        for place, (metric, value) in enumerate(zip(GPU_METRICS, values[at].tolist(), strict=True)):
            text = cell(value, metric)
            role = dim or ("dim" if text == DASH else "text")
            if place == column and steps[at] != UNMEASURED and not old:
                role = heat(steps[at])
            spans.append(Span(text, role))
        rows.append(tuple(spans))
    return rows
