"""A frame's numbers as arrays in this catalogue's order, whatever version of the agent sent them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.history import Floats

ENERGY = GPU_COLUMNS.index("energy_mj")
_MOST = 1e15
"""Nothing measures more; what says so is no answer, and can't overflow a sum or a colour either."""


def gpu_values(hello: Hello, frame: Frame) -> Floats:
    """Shape (GPUs, GPU metrics), NaN where a GPU or a metric had no answer."""
    unanswered = (None,) * len(hello.gpu_columns)
    rows = [unanswered if row is None else row for row in frame.gpus]
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(unanswered))
    values[np.abs(values) > _MOST] = np.nan
    return values if hello.gpu_columns == GPU_COLUMNS else _renamed(values, hello.gpu_columns, GPU_COLUMNS)


def host_values(hello: Hello, frame: Frame) -> Floats:
    """Shape (host metrics,), NaN where a metric had no answer."""
    row = frame.host
    if row is None:
        return np.full(len(HOST_COLUMNS), np.nan)
    values = np.array(row, dtype=np.float64)
    values[np.abs(values) > _MOST] = np.nan
    if hello.host_columns == HOST_COLUMNS:
        return values
    renamed: Floats = _renamed(values[np.newaxis, :], hello.host_columns, HOST_COLUMNS)[0]
    return renamed


def energy_used(before: Floats, after: Floats) -> float:
    """Joules between two readings of the energy counters; a counter that fell counts as nothing."""
    if before.shape != after.shape:
        return 0.0
    grown = after[:, ENERGY] - before[:, ENERGY]
    return float(grown[grown > 0].sum()) / 1000


def _renamed(values: Floats, have: Sequence[str], want: Sequence[str]) -> Floats:
    """Columns of another version's agent, put where this catalogue has them."""
    out = np.full((len(values), len(want)), np.nan)
    for position, name in enumerate(want):
        if name in have:
            out[:, position] = values[:, have.index(name)]
    return out
