"""Ranking of a fleet's GPUs by one metric, worst first, damped so that rows don't shuffle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gswarm_agent.metrics import COUNTER, GPU_METRICS, Metric
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.throttling import HARMFUL

MEAN_S = 60.0
"""GPUs are ranked by their mean over this time."""
DAMPING = 0.02
"""A GPU keeps its rank until its mean has changed by this share of the largest value."""
HIGH_IS_BAD = {
    "mem_used_mib",
    "temp_c",
    "mem_temp_c",
    "clock_reasons",
    "throttle_power_pct",
    "throttle_thermal_pct",
    "throttle_brake_pct",
    "ecc_corrected",
    "ecc_uncorrected",
    "pstate",
}
"""GPU metrics whose high values are the worst, such as temperatures and errors."""


@dataclass(frozen=True)
class RankedGpu:
    """One of the job's GPUs: its node, its row there, and its mean over the last minute (NaN: unmeasured)."""

    node: str
    row: int
    mean: float


class GpuRanking:
    """Order of the job's GPUs by a metric; ``update`` reads the fleet again."""

    def __init__(self, metric: Metric, *, highest_first: bool | None = None) -> None:
        self.metric = metric
        self.highest_first = metric.name in HIGH_IS_BAD if highest_first is None else highest_first
        self._held: dict[tuple[str, int], float] = {}

    def update(self, nodes: Iterable[NodeState], now: float) -> list[RankedGpu]:
        """Return the GPUs, worst first; unmeasured ones come last."""
        gpus = [
            RankedGpu(node.name, row, float(mean))
            for node in nodes
            for row, (mean, mine) in enumerate(
                zip(recent_means(node, self.metric, now), node.mine, strict=True)
            )
            if mine
        ]
        means = np.array([gpu.mean for gpu in gpus])
        damped = self.metric.unit != "errors" and np.isfinite(means).any()  # a first error must count
        step = DAMPING * float(np.nanmax(np.abs(means))) if damped else 0.0
        held: dict[tuple[str, int], float] = {}
        for gpu in gpus:
            # A GPU keeps its ranking value unless its mean has moved by more than a step.
            before = self._held.get((gpu.node, gpu.row), np.nan)
            held[gpu.node, gpu.row] = before if abs(gpu.mean - before) <= step else gpu.mean
        self._held = held
        sign = -1.0 if self.highest_first else 1.0
        keys = [np.inf if np.isnan(value) else sign * value for value in held.values()]
        return [gpus[place] for place in np.argsort(keys, kind="stable").tolist()]


def recent_means(node: NodeState, metric: Metric, now: float) -> Floats:
    """Return each GPU's mean of a metric over the last minute, NaN where it wasn't measured.

    Of counters and of what has no history it is the latest value, of clock reasons the share of samples with
    throttling in %.
    """
    column = GPU_METRICS.index(metric)
    history = node.gpu_history
    if metric.kind == COUNTER or history is None or column >= history.shape[1]:
        return node.gpus[:, column]
    _, series = history.series(column, since=now - MEAN_S)
    values = np.ma.masked_invalid(series.astype(np.float64))
    if metric.unit == "bits":
        held = (values.filled(0).astype(np.int64) & HARMFUL) != 0
        values = np.ma.array(100.0 * held, mask=values.mask)
    means: Floats = values.mean(axis=0).filled(np.nan)
    return means
