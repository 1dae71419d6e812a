"""Data of a heatmap: arrays with one metric of every GPU of the shown nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import GpuFacts, HostFacts
from gswarm_agent.metrics import GPU_BY_NAME, GPU_COLUMNS, HOST_BY_NAME, HOST_COLUMNS, Metric
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.findings import NOTE, Finding
from gswarm_tui.fleet.frame_values import REASONS
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.problems import named_rows
from gswarm_tui.fleet.throttling import HARMFUL
from gswarm_tui.tui.drawing.plot import in_bins, window
from gswarm_tui.tui.drawing.ramp import buckets, fractions, top_of, tops

FRESH = (Standing.LIVE, Standing.STALE)


class HeatmapData:
    """One metric of some nodes; call ``update`` after the fleet changed.

    ``values`` has shape (nodes, cells): GPUs, or one cell for a host metric; NaN where nothing was measured
    or the node has fewer GPUs. ``steps`` are the buckets, ``present`` marks the cells that exist, ``dim``
    those to draw faintly, ``throttled`` the job's throttled GPUs, ``named`` those that findings name.
    ``means`` are over the job's own GPUs. With ``by_rank``, blocks are named by the ranks on their nodes.
    """

    by_rank = False

    def __init__(self, metric: str) -> None:
        self.of_host = metric in HOST_BY_NAME
        self.metric: Metric = {**GPU_BY_NAME, **HOST_BY_NAME}[metric]
        self._column = (HOST_COLUMNS if self.of_host else GPU_COLUMNS).index(metric)
        self.update((), 0.0)

    @property
    def switched_off(self) -> bool:
        """Whether no node measures the metric because its group is switched off."""
        return bool(self.nodes) and not any(self.metric.group in node.metrics for node in self.nodes)

    @property
    def cells(self) -> int:
        """Cells of the widest node."""
        return int(self.present.shape[1])

    def update(
        self,
        nodes: Sequence[NodeState],
        now: float,
        hidden: Sequence[npt.NDArray[np.bool_]] | None = None,
        found: Sequence[Finding] = (),
    ) -> None:
        """Read the nodes; ``hidden`` marks each node's GPUs that a filter leaves out."""
        self.standings = [node.standing(now) for node in nodes]
        self.nodes = nodes
        self._measure(nodes)
        self.dim = self._not_mine.copy()
        for row, cells in enumerate(() if hidden is None or self.of_host else hidden):
            self.dim[row, : len(cells)] |= cells
        self.named: npt.NDArray[np.bool_] = np.zeros(self.present.shape, dtype=bool)
        rows = {node.name: row for row, node in enumerate(nodes)} if found else {}
        for finding in found:
            # Notes about several nodes, such as that they start, and what is about all nodes need no signs.
            several = () if finding.severity == NOTE or len(finding.nodes) == len(nodes) else finding.nodes
            for name in several if finding.node is None else (finding.node,):
                if name in rows:
                    named = named_rows(finding, nodes[rows[name]])
                    self.named[rows[name], [0] if self.of_host else named] = True
        self._read()
        self._scale()

    def _measure(self, nodes: Sequence[NodeState]) -> None:
        """Compute cells, the job's own GPUs and scales."""
        counts = [1 if self.of_host else len(node.facts) for node in nodes]
        cells = max(1, *counts) if counts else 1
        self.present: npt.NDArray[np.bool_] = np.arange(cells) < np.array(counts, dtype=int)[:, np.newaxis]
        facts: list[GpuFacts | HostFacts | None] = []
        self._not_mine: npt.NDArray[np.bool_] = np.zeros(self.present.shape, dtype=bool)
        for row, node in enumerate(nodes):
            if self.of_host:
                facts.append(node.hello.host if node.hello else None)
                continue
            facts += node.facts
            if not all(node.mine):
                self._not_mine[row, : counts[row]] = np.logical_not(node.mine)
        self._tops: Floats = np.full(self.present.shape, np.nan)
        self._tops[self.present] = tops(self.metric, facts)

    def _read(self) -> None:
        self.values: Floats = np.full(self.present.shape, np.nan)
        if self.nodes:
            tables = [node.host[np.newaxis] if self.of_host else node.gpus for node in self.nodes]
            self.values[self.present] = np.concatenate(tables)[:, self._column]
        gone = [row for row, standing in enumerate(self.standings) if standing not in FRESH]
        self.values[gone] = np.nan
        self.throttled: npt.NDArray[np.bool_] = np.zeros(self.present.shape, dtype=bool)
        if self.nodes and not self.of_host:
            reasons = np.nan_to_num(np.concatenate([node.gpus[:, REASONS] for node in self.nodes]))
            self.throttled[self.present] = reasons.astype(np.int64) & HARMFUL != 0
            self.throttled[gone] = False
            self.throttled &= ~self._not_mine
        counted = np.isfinite(self.values) & ~self._not_mine
        counts = counted.sum(axis=1)
        self.means: Floats = np.full(len(self.nodes), np.nan)
        sums = np.where(counted, self.values, 0.0).sum(axis=1)
        np.divide(sums, counts, out=self.means, where=counts > 0)

    def _scale(self) -> None:
        highest = float(np.nanmax(self.values)) if np.isfinite(self.values).any() else 0.0
        fixed = self._tops[np.isfinite(self._tops)]
        self.top = float(fixed.max()) if len(fixed) else top_of(self.metric, None) or nice_ceiling(highest)
        self.same_top = not len(fixed) or bool((fixed == self.top).all())
        top = np.where(np.isfinite(self._tops), self._tops, self.top)
        self.steps = buckets(fractions(self.metric, self.values, top))

    def spark(self, row: int, now: float, bins: int, span_s: float) -> Floats:
        """Return a node's mean as fractions over the last ``span_s``, in bins that start at round times."""
        node = self.nodes[row]
        history = node.host_history if self.of_host else node.gpu_history
        if history is None:
            return np.full(bins, np.nan)
        frame = window(now, span_s, bins)
        times, values = history.series(self._column, since=frame.start)
        values = values[:, ~self._not_mine[row, : values.shape[1]]]
        top = np.nanmax(self._tops[row]) if np.isfinite(self._tops[row]).any() else self.top
        scaled = fractions(self.metric, values.astype(np.float64), top).astype(np.float32)
        interval_s = history.longest_interval(frame.start, node.interval_s)
        return in_bins((times, scaled, history.intervals(frame.start)), frame, interval_s)
