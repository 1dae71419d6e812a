"""What a finding's page plots: a signal of the culprit, and the median of its peers. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, GPU_COLUMNS, HOST_BY_NAME, HOST_COLUMNS, Metric
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.history import Floats, History
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, Signal
from gswarm_tui.tui.drawing.curve import window
from gswarm_tui.tui.drawing.finding_lines import kind_name, strip_line
from gswarm_tui.tui.drawing.numbers import cell, quantity
from gswarm_tui.tui.drawing.plot import PlotSeries, curve_width, panel
from gswarm_tui.tui.drawing.ramp import ramp_of, top_of
from gswarm_tui.tui.drawing.spans import Spans
from gswarm_tui.tui.drawing.trends import Trends

SPANS_S = (300.0, 420.0, 600.0, 900.0, 1800.0, 3600.0)
"""Time ranges, of which the first is plotted that holds the finding and the time around it."""
BEFORE_S, AFTER_S = 120.0, 60.0
"""Time that is plotted before a finding's start, and after its end."""
PEERS_MOST = 128
"""Peers whose median is plotted: in a large fleet as many, evenly chosen, give the same curve."""
LATEST_S = 60.0
"""Time over which a cell of the strip is a mean."""
ROLE_NODES = 4
"""Number of nodes from which the peers of a GPU are those in its slot, as the rules have it."""
_PLOTTED = {signal.name: signal for signal in (*GPU_SIGNALS, *HOST_SIGNALS) if not signal.bits}

Place = tuple[NodeState, int]
"""A node and the row of one of its GPUs; the row 0 of hosts."""


@dataclass(frozen=True)
class FindingPlot:
    """The plotted signal: all ``places`` of the role, and which of them the finding names."""

    signal: Signal
    places: list[Place]
    culprits: set[int]

    @property
    def of_host(self) -> bool:
        """Whether it is a signal of nodes."""
        return self.signal in HOST_SIGNALS

    @property
    def metric(self) -> Metric:
        """The first metric of the signal, for its unit and scale."""
        return (HOST_BY_NAME if self.of_host else GPU_BY_NAME)[self.signal.columns[0]]

    def lines(self, finding: Finding, now: float, last: str, cells: int, room: int) -> list[Spans]:
        """Return the culprit's curve, that of its peers on the same scale, and the peers as a strip.

        The curves take ``room`` lines with a time axis that ends at ``now``, named ``last``.
        """
        end = now if finding.until is None else min(now, finding.until + AFTER_S)
        trends, bins = Trends(), curve_width(cells)
        trends.span_s = next((s for s in SPANS_S if s >= end - finding.since + BEFORE_S), SPANS_S[-1])
        peers = [place for at, place in enumerate(self.places) if at not in self.culprits]
        own = self._values(trends, [self.places[at] for at in sorted(self.culprits)], bins, end)
        sides = [(finding.subject, own)]
        if peers:
            name = f"median of {len(peers)} peers" if len(peers) > 1 else "its peer"
            sides.append((name, self._values(trends, peers[:: -(-len(peers) // PEERS_MOST)], bins, end)))
        top = self._top(np.concatenate([values for _, values in sides]))
        frame = window(end, trends.span_s, bins)
        mark = (finding.since - frame.start) / trends.span_s
        lines: list[Spans] = []
        for at, (name, values) in enumerate(sides):
            known = values[np.isfinite(values)]
            text = quantity(float(known[-1]) if len(known) else np.nan, self.metric)
            plot = PlotSeries(
                f"{name} · {kind_name(self.signal.name)}",
                np.clip(values / top, 0.0, 1.0),
                cell(top, self.metric),
                text,
                ramp=ramp_of(self.metric),
            )
            axis = trends.span_s if at == len(sides) - 1 else None
            height = (room + at) // len(sides)
            marks = [mark] if 0 <= mark < 1 else []
            lines += panel(plot, cells, height, axis, last if end == now else "after it", marks=marks)
        if peers:
            lines.append(strip_line(self._newest(end), top, self.culprits, cells, ramp_of(self.metric)))
        return lines

    def _top(self, values: Floats) -> float:
        node, row = self.places[0]
        facts = node.hello.host if self.of_host and node.hello is not None else node.facts[row]
        fixed = top_of(self.metric, facts) if self.metric.unit not in ("MB/s", "errors") else None
        largest = float(np.nanmax(values)) if np.isfinite(values).any() else 0.0
        return fixed or nice_ceiling(largest)

    def _values(self, trends: Trends, places: list[Place], bins: int, end: float) -> Floats:
        """Return the median of the signal over some places, in bins."""
        table = np.array(
            [
                sum(
                    trends.values(node, self._history(node), (column, row), bins, end)
                    for column in self._columns
                )
                for node, row in places
            ]
        )
        out = np.full(bins, np.nan)
        known = np.isfinite(table).any(axis=0)
        out[known] = np.nanmedian(table[:, known], axis=0)
        return out

    def _newest(self, end: float) -> Floats:
        """Return the signal's mean over the last minute at each place."""
        found = []
        for node, row in self.places:
            total = np.nan
            if (history := self._history(node)) is not None:
                parts = [history.series(column, row, end - LATEST_S) for column in self._columns]
                values = sum(part[1][part[0] <= end] for part in parts)
                total = float(np.nanmean(values)) if np.isfinite(values).any() else np.nan
            found.append(total)
        return np.array(found)

    def _history(self, node: NodeState) -> History | None:
        return node.host_history if self.of_host else node.gpu_history

    @property
    def _columns(self) -> list[int]:
        columns = HOST_COLUMNS if self.of_host else GPU_COLUMNS
        return [columns.index(name) for name in self.signal.columns]


def plot_of(finding: Finding, fleet: Fleet) -> FindingPlot | None:
    """Return what the page of a finding plots: the first of its evidence of which the fleet keeps a history.

    None if it has none, or names no node that the fleet has.
    """
    signal = next((_PLOTTED[one.metric] for one in finding.evidence if one.metric in _PLOTTED), None)
    if signal is None:
        return None
    named = set(finding.nodes) if finding.node is None else {finding.node}
    places, slots = [], []
    for node in fleet.nodes.values():
        rows = [0] if signal in HOST_SIGNALS else [row for row, mine in enumerate(node.mine) if mine]
        places += [(node, row) for row in rows if node.hello is not None]
        slots += list(range(len(rows))) if node.hello is not None else []
    culprits = {at for at, place in enumerate(places) if _is_named(finding, signal, named, place)}
    if finding.gpu is not None and len(fleet.nodes) >= ROLE_NODES and signal in GPU_SIGNALS:
        wanted = {slots[at] for at in culprits}
        kept = [at for at, slot in enumerate(slots) if slot in wanted]
        culprits = {kept.index(at) for at in culprits}
        places = [places[at] for at in kept]
    return FindingPlot(signal, places, culprits) if culprits else None


def _is_named(finding: Finding, signal: Signal, named: set[str], place: Place) -> bool:
    node, row = place
    if node.name not in named:
        return False
    return signal in HOST_SIGNALS or finding.gpu is None or node.facts[row].index == finding.gpu
