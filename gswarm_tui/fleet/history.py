"""The last minutes of each node's numbers, as rings in memory: those of many nodes side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import COUNTER, GPU_COLUMNS, GPU_METRICS, HOST_COLUMNS, HOST_METRICS, Metric

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Indices = list[int] | npt.NDArray[np.intp]


GRID_BYTES = 4 * 1024 * 1024
UNIT = 64.0
"""Coarse numbers are held as halves of so much: to 0.05 % up to 4 million, integers up to 2048 exactly."""
MOST = float(np.finfo(np.float16).max)
Slot = tuple[int, int]
"""A row and a seat of a grid."""


def reading_bytes(rows: int, columns: int, exact: int) -> int:
    """What the numbers of a reading take, of which so many columns are exact."""
    return rows * (2 * columns + 2 * exact)


def stack_tables(tables: Sequence[Floats]) -> Floats:
    """What ``numpy.stack`` makes of many small arrays of one shape, in a third of its time."""
    return np.concatenate(tables).reshape(len(tables), *tables[0].shape)


class HistoryBlock:
    """Room for the histories of ``seats`` nodes whose readings come together, and so lie together in memory.

    Each has the newest ``capacity`` readings of ``rows`` x ``columns`` numbers, those of ``exact`` columns in
    single precision, all others in half. ``intervals`` are the seconds from the reading before each in
    its agent's run, NaN where it follows none. Memory is taken as it fills.
    """

    def __init__(self, seats: int, capacity: int, rows: int, columns: int, exact: tuple[int, ...]) -> None:
        self.table = rows, columns
        self.exact = exact
        self.coarse = tuple(column for column in range(columns) if column not in exact)
        self.times: Floats = np.empty((capacity, seats), dtype=np.float64)
        self.intervals: Singles = np.empty((capacity, seats), dtype=np.float32)
        self.halves: Halves = np.empty((capacity, seats, rows, len(self.coarse)), dtype=np.float16)
        self.singles: Singles = np.empty((capacity, seats, rows, len(exact)), dtype=np.float32)
        self.free = seats

    def put(self, places: Iterable[Slot], values: Floats, intervals: Sequence[float | None]) -> None:
        """Fill places, each with its own of these readings and of these intervals; see ``HistoryBlock``."""
        rows, seats = zip(*places, strict=True)
        self.fill(list(rows), list(seats), values, np.array(intervals, dtype=np.float32))

    def fill(self, rows: Indices, seats: Indices, values: Floats | Singles, intervals: Singles) -> None:
        """Fill these rows of these seats."""
        self.intervals[rows, seats] = intervals
        coarse = values[..., self.coarse] / UNIT
        self.halves[rows, seats] = np.clip(coarse, -MOST, MOST, out=coarse)
        self.singles[rows, seats] = values[..., self.exact]


class HistoryAllocator:
    """Where a fleet of so many nodes has its histories: as many as fit into ``GRID_BYTES`` in one grid."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._grids: dict[tuple[int, ...], HistoryBlock] = {}

    def history(self, capacity: int, rows: int, columns: int, exact: tuple[int, ...] = ()) -> History:
        """An empty one; see ``HistoryBlock``."""
        kind = capacity, rows, columns, *exact
        grid = self._grids.get(kind)
        if grid is None or not grid.free:
            fit = GRID_BYTES // max(1, capacity * reading_bytes(rows, columns, len(exact)))
            grid = HistoryBlock(max(1, min(self._nodes, fit)), capacity, rows, columns, exact)
            self._grids[kind] = grid
        return History(grid)


class RowValues(NamedTuple):
    """A number of each row and when it was told, NaN where there is none."""

    values: Floats
    at: Floats


class History:
    """Readings of one node, the newest ``capacity`` of them; NaN is "no answer".

    Times are Unix seconds; a late reading takes its place among the others.
    """

    # Each node has its own, far from the others in memory: a place less to look at.
    __slots__ = ("_count", "_in_order", "_newest", "_times", "capacity", "grid", "seat")

    def __init__(self, grid: HistoryBlock) -> None:
        grid.free -= 1
        self.grid = grid
        self.capacity = len(grid.times)
        self.seat = grid.free
        self._times: Floats = grid.times[:, self.seat]
        self._count = 0
        self._newest = -np.inf
        self._in_order = True

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def place(self, ts: float) -> Slot:
        """The place of one more reading of any time in its grid, to be filled before anything is read."""
        self._in_order = self._in_order and ts >= self._newest
        self._newest = max(self._newest, ts)
        row = self._count % self.capacity
        self._count += 1
        self._times[row] = ts
        return row, self.seat

    def extend(self, times: Floats) -> npt.NDArray[np.intp]:
        """The rows in its grid of more readings, after all others and oldest first, to be filled then."""
        rows = np.arange(self._count, self._count + len(times)) % self.capacity
        self._newest = float(times[-1]) if len(times) else self._newest
        self._count += len(times)
        self._times[rows] = times
        return rows

    def _order(self, since: float) -> npt.NDArray[np.intp]:
        count = len(self)
        order = (np.arange(self._count - count, self._count) % self.capacity).astype(np.intp)
        if not self._in_order:
            order = order[np.argsort(self._times[order], kind="stable")]
        return order[self._times[order] >= since]

    def series(self, column: int, row: int | None = None, since: float = 0.0) -> tuple[Floats, Singles]:
        """Times and values of one column since a time, oldest first.

        With ``row`` the values have shape (n,), without it (n, rows).
        """
        order, grid = self._order(since), self.grid
        if column in grid.exact:
            values = grid.singles[order, self.seat, :, grid.exact.index(column)]
        else:
            values = _whole(grid.halves[order, self.seat, :, grid.coarse.index(column)])
        return self._times[order], values if row is None else values[:, row]

    def intervals(self, since: float = 0.0) -> Singles:
        """Those of the readings since a time, oldest first; see ``HistoryBlock``."""
        intervals: Singles = self.grid.intervals[self._order(since), self.seat]
        return intervals

    def around(self, ts: float, column: int) -> tuple[RowValues, RowValues]:
        """Each row's last answer before a time, and its first from then on."""
        times, values = self.series(column)
        at = int(np.searchsorted(times, ts))
        return _first(times[:at][::-1], values[:at][::-1]), _first(times[at:], values[at:])

    def readings(self, since: float = 0.0) -> tuple[Floats, Singles]:
        """Times (n,) and values (n, rows, columns) since a time, oldest first."""
        order = self._order(since)
        return self._times[order], self._tables(order)

    def _tables(self, order: npt.NDArray[np.intp]) -> Singles:
        grid = self.grid
        tables: Singles = np.empty((len(order), *grid.table), dtype=np.float32)
        tables[..., grid.coarse] = _whole(grid.halves[order, self.seat])
        tables[..., grid.exact] = grid.singles[order, self.seat]
        return tables


def _first(times: Floats, values: Singles) -> RowValues:
    answered = np.isfinite(values)
    if not answered.any():
        return RowValues(*np.full((2, values.shape[1]), np.nan))
    first, rows = answered.argmax(axis=0), np.arange(values.shape[1])
    never = ~answered[first, rows]
    return RowValues(*(np.where(never, np.nan, one) for one in (values[first, rows], times[first])))


def _whole(halves: Halves) -> Singles:
    return halves.astype(np.float32) * np.float32(UNIT)


def binned(times: Floats, values: Singles, start: float, end: float, bins: int) -> npt.NDArray[np.float64]:
    """Means of a series in equal bins of time, NaN where nothing was measured; for plots and sparklines."""
    out = np.full(bins, np.nan)
    if bins < 1 or end <= start or not len(times):
        return out
    flat = values if values.ndim == 1 else _nanmean_rows(values)
    where = np.floor((times - start) / (end - start) * bins).astype(np.int64)
    good = (where >= 0) & (where < bins) & np.isfinite(flat)
    sums = np.bincount(where[good], weights=flat[good], minlength=bins)
    counts = np.bincount(where[good], minlength=bins)
    filled = counts > 0
    out[filled] = sums[filled] / counts[filled]
    return out


def _nanmean_rows(values: Singles) -> Singles:
    measured = np.isfinite(values)
    counts = measured.sum(axis=1)
    sums = np.where(measured, values, 0.0).sum(axis=1)
    out = np.full(len(values), np.nan, dtype=np.float32)
    np.divide(sums, counts, out=out, where=counts > 0, casting="unsafe")
    return out


@dataclass(frozen=True)
class NodeHistory:
    """A node's history; ``energy_base`` is where its energy counts from (mJ)."""

    gpus: History
    host: History
    energy_base: Floats | None


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


def empty_history(shelf: HistoryAllocator, nodes: int, gpus: int) -> NodeHistory:
    """The history of a node with so many GPUs, one of so many nodes."""
    length = history_length(nodes, gpus)
    of_gpus = shelf.history(length, gpus, len(GPU_COLUMNS), _EXACT_OF_GPU)
    of_host = shelf.history(length, 1, len(HOST_COLUMNS), _EXACT_OF_HOST)
    return NodeHistory(of_gpus, of_host, energy_base=None)
