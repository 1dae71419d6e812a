"""Series for history plots: values in time bins, their scale and labels; plot.py and bands.py draw them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gswarm_agent.frame import GpuFacts, HostFacts
from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, Metric
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.history import Floats, History
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.tui.drawing.numbers import cell, label, quantity
from gswarm_tui.tui.drawing.plot import PlotSeries, in_bins, window
from gswarm_tui.tui.drawing.ramp import fractions, is_logarithmic, ramp_of, top_of

SPANS_S = (60.0, 300.0, 900.0, 3600.0)
"""Time ranges of a plot that the user chooses among."""
OPENING_S = (60.0, 120.0, 180.0, 300.0)
"""Time ranges with which plots open: the shortest that holds the history there is, else the longest."""


def opening_span(history_s: float) -> float:
    """Return the time range with which plots of a history open."""
    return next((span for span in OPENING_S if history_s <= span), OPENING_S[-1])


class Trends:
    """Makes plots of a fleet's history. Scales without a fixed top only grow.

    ``last`` names the right end of time axes: "now", or the time shown.
    """

    def __init__(self) -> None:
        self.span_s = SPANS_S[0]
        self.last = "now"
        self._picked = False
        self._grown: dict[Metric, float] = {}

    def lengthen(self) -> None:
        """Choose the next longer time range, the shortest after the longest."""
        self._picked = True
        self.span_s = next((span for span in SPANS_S if span > self.span_s), SPANS_S[0])

    @property
    def span_label(self) -> str:
        """Words for the time range: "last 5 min"."""
        return f"last {self.span_s / 60:g} min"

    def settle(self, nodes: Iterable[NodeState], now: float, last: str = "now") -> None:
        """Choose the range that fits the history of nodes, until the user does; ``last`` names its end."""
        self.last = last
        if not self._picked:
            oldest = (node.gpu_history.oldest or now for node in nodes if node.gpu_history is not None)
            self.span_s = opening_span(now - min(oldest, default=now))

    def top(self, metric: Metric, facts: GpuFacts | HostFacts | None, values: Floats) -> float:
        """Return the upper end of a metric's scale: the device's, or a round number above all values."""
        fixed = top_of(metric, facts)
        if fixed is None and metric.name == "load_1m" and isinstance(facts, HostFacts):
            fixed = facts.cpus
        if fixed is not None:
            return float(fixed)
        largest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
        self._grown[metric] = max(self._grown.get(metric, 1.0), nice_ceiling(largest))
        return self._grown[metric]

    def gpu(self, node: NodeState, row: int, metric: Metric, bins: int, now: float) -> PlotSeries:
        """Return the plot of a GPU's metric."""
        column = GPU_METRICS.index(metric)
        values = self.values(node, node.gpu_history, (column, row), bins, now)
        return self._plot(metric, node.facts[row], values, float(node.gpus[row, column]), node.standing(now))

    def host(self, node: NodeState, metric: Metric, bins: int, now: float) -> PlotSeries:
        """Return the plot of a host metric."""
        column = HOST_METRICS.index(metric)
        facts = node.hello.host if node.hello is not None else None
        values = self.values(node, node.host_history, (column, 0), bins, now)
        return self._plot(metric, facts, values, float(node.host[column]), node.standing(now))

    def values(
        self, node: NodeState, history: History | None, cell: tuple[int, int], bins: int, now: float
    ) -> Floats:
        """Return the plotted bins of a history's column and row."""
        if history is None:
            return np.full(bins, np.nan)
        frame = window(now, self.span_s, bins)
        # Frames between two readings of the energy have none.
        of_energy = history is node.gpu_history and cell[0] == ENERGY
        every_s = max(node.interval_s, GPU_METRICS[ENERGY].period_s if of_energy else 0.0)
        interval_s = history.longest_interval(frame.start, every_s)
        times, values = history.series(*cell, frame.start)
        return in_bins((times, values, history.intervals(frame.start)), frame, interval_s)

    def _plot(
        self,
        metric: Metric,
        facts: GpuFacts | HostFacts | None,
        values: Floats,
        latest: float,
        standing: Standing,
    ) -> PlotSeries:
        top = self.top(metric, facts, np.append(values, latest))
        return PlotSeries(
            label(metric),
            np.asarray(fractions(metric, values, top)),
            cell(top, metric),
            quantity(latest, metric),
            _note(metric, values),
            is_logarithmic(metric),
            "text" if standing is Standing.LIVE else "dim",
            ramp_of(metric),
        )


def _note(metric: Metric, values: Floats) -> str:
    """Return mean, minimum and maximum of the plotted values."""
    measured = values[np.isfinite(values)]
    if not len(measured) or metric.unit == "bits":
        return ""
    mean, least, most = (cell(float(v), metric) for v in (measured.mean(), measured.min(), measured.max()))
    return f"mean {mean}  min {least}  max {most}"
