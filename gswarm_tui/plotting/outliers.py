"""Outliers of a grid: GPUs or nodes that differ from the others over the whole period."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import COUNTER
from gswarm_tui.plotting.grid import MetricGrid

SHARE = 0.1
SPREADS = 4.0
"""An outlier is this share of the scale, and this many times the usual spread, away from the median."""


@dataclass(frozen=True)
class Outlier:
    """A GPU that differs from the others, or with ``gpu`` None a whole node.

    ``row`` is its place in the grid from the top, ``value`` its mean in the unit shown (a counter's growth),
    None without any data, ``distance`` its distance from the median as a share of the scale.
    """

    row: float
    node: str
    gpu: int | None
    value: float | None
    distance: float


def find_outliers(grid: MetricGrid, ends: tuple[float, float]) -> list[Outlier]:
    """Return the outliers from top to bottom; nodes of which all GPUs are outliers count as one."""
    if grid.metric.unit == "bits":
        return []
    values = _row_values(grid)
    known = np.isfinite(values)
    span = max(ends[1] - ends[0], 1e-9)
    away = np.abs(values - np.median(values[known])) if known.any() else values
    usual = 1.4826 * np.median(away[known]) if known.any() else 0.0
    odd = ~known | (away >= max(SHARE * span, SPREADS * usual))
    found = [
        Outlier(row + 0.5, device.node, device.gpu, float(values[row]), float(away[row]) / span)
        if known[row]
        else Outlier(row + 0.5, device.node, device.gpu, None, 1.0)
        for row, device in enumerate(grid.devices)
        if odd[row]
    ]
    sizes = {node: len(list(rows)) for node, rows in groupby(device.node for device in grid.devices)}
    return [
        one for node, rows in groupby(found, lambda each: each.node) for one in _folded([*rows], sizes[node])
    ]


def strongest(outliers: Sequence[Outlier], most: int) -> tuple[list[Outlier], int]:
    """Return at most ``most`` outliers, the most distant ones, and how many are left out."""
    if len(outliers) <= most:
        return list(outliers), 0
    kept = sorted(outliers, key=lambda one: -one.distance)[:most]
    return sorted(kept, key=lambda one: one.row), len(outliers) - most


def spaced(places: Sequence[float], apart: float, end: float) -> list[float]:
    """Return ascending places moved as little as needed to be ``apart`` and inside 0 to ``end``."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + apart if moved else apart / 2))
    highest = end - apart / 2
    for at in reversed(range(len(moved))):
        moved[at] = min(moved[at], highest)
        highest = moved[at] - apart
    return moved


def _row_values(grid: MetricGrid) -> npt.NDArray[np.float64]:
    """Return each row's mean, or a counter's last value; NaN without data."""
    known = np.isfinite(grid.values)
    if grid.metric.kind == COUNTER:
        last = known.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
        final: npt.NDArray[np.float64] = grid.values[np.arange(len(last)), last].astype(np.float64)
        return final
    counts = known.sum(axis=1)
    sums = np.where(known, grid.values, 0).sum(axis=1, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _folded(rows: Sequence[Outlier], size: int) -> Iterator[Outlier]:
    """Yield a node's outliers, one for the node if all of its GPUs have data or none has."""
    values = [one.value for one in rows if one.value is not None]
    if len(rows) < max(2, size) or 0 < len(values) < size:
        yield from rows
        return
    yield replace(
        rows[0],
        row=(rows[0].row + rows[-1].row) / 2,
        gpu=None,
        value=sum(values) / size if values else None,
        distance=max(one.distance for one in rows),
    )
