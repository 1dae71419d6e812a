"""How much of its history a fleet keeps in memory, and which numbers of it exactly."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_agent.metrics import COUNTER, GPU_COLUMNS, GPU_METRICS, HOST_COLUMNS, HOST_METRICS, Metric
from gswarm_tui.fleet.history import Shelf, reading_bytes
from gswarm_tui.fleet.node import Rings

HISTORY_BYTES = 53 * 1024 * 1024
HISTORY_LONGEST = 3600
HISTORY_SHORTEST = 120


def _exact(metrics: Sequence[Metric]) -> tuple[int, ...]:
    """The columns of which a plot could show that they are rounded: counted or set, and beyond 2048."""
    units = ("MiB", "MHz", "tasks")
    return tuple(at for at, metric in enumerate(metrics) if metric.kind == COUNTER or metric.unit in units)


_EXACT_OF_GPU, _EXACT_OF_HOST = _exact(GPU_METRICS), _exact(HOST_METRICS)


def history_length(nodes: int, gpus: int) -> int:
    """How many readings of each of so many nodes with so many GPUs each are kept for plots."""
    a_tick = nodes * reading_bytes(max(gpus, 1), len(GPU_COLUMNS), len(_EXACT_OF_GPU))
    return min(HISTORY_LONGEST, max(HISTORY_SHORTEST, HISTORY_BYTES // max(1, a_tick)))


def empty_rings(shelf: Shelf, nodes: int, gpus: int) -> Rings:
    """The history of a node with so many GPUs, one of so many nodes."""
    length = history_length(nodes, gpus)
    of_gpus = shelf.history(length, gpus, len(GPU_COLUMNS), _EXACT_OF_GPU)
    of_host = shelf.history(length, 1, len(HOST_COLUMNS), _EXACT_OF_HOST)
    return Rings(of_gpus, of_host, energy_base=None)
