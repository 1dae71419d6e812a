"""Ring buffers with each node's latest samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import CURVE_METRICS, HOST_COLUMNS, MAX_INTERVAL_MS

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_MOMENT_S = 1e-6

VALUE_BYTES = 4


class History:
    """The newest ``capacity`` frames of one node, of ``rows`` x ``columns`` numbers; NaN is "not measured".

    Times are Unix seconds; readers get late frames in the order of time. Intervals are the seconds since the
    frame before in the same agent run, NaN for the first. The system allocates pages as they fill.
    """

    __slots__ = ("_count", "_in_order", "_intervals", "_newest", "_times", "_values", "capacity")

    def __init__(self, capacity: int, rows: int, columns: int) -> None:
        self.capacity = capacity
        self._times: Floats = np.empty(capacity, dtype=np.float64)
        self._intervals: Singles = np.empty(capacity, dtype=np.float32)
        self._values: Singles = np.empty((capacity, rows, columns), dtype=np.float32)
        self._count = 0
        self._newest = -np.inf
        self._in_order = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns of a frame."""
        return self._values.shape[1:]

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    @property
    def oldest(self) -> float | None:
        """Time of the frame kept for longest, None without one."""
        if not self._count:
            return None
        return float(self._times[0 if self._count <= self.capacity else self._count % self.capacity])

    def append(self, ts: float, interval_s: float | None, values: Floats) -> None:
        """Add one frame; columns after those that are kept are left out."""
        self._in_order = self._in_order and ts >= self._newest
        self._newest = max(self._newest, ts)
        row = self._count % self.capacity
        self._count += 1
        self._times[row] = ts
        self._intervals[row] = np.nan if interval_s is None else interval_s
        self._values[row] = values[:, : self._values.shape[2]]

    def extend(self, times: Floats, intervals: Singles, values: Singles) -> None:
        """Add more frames, later than all others and oldest first."""
        rows = np.arange(self._count, self._count + len(times)) % self.capacity
        self._newest = float(times[-1]) if len(times) else self._newest
        self._count += len(times)
        self._times[rows], self._intervals[rows], self._values[rows] = times, intervals, values

    def reaches(self, ts: float) -> bool:
        """Return whether no frame since a time was dropped to make room for newer ones."""
        return self._count <= self.capacity or float(self._times.min()) <= ts

    def _order(self, since: float) -> npt.NDArray[np.intp]:
        count = len(self)
        order = (np.arange(self._count - count, self._count) % self.capacity).astype(np.intp)
        if not self._in_order:
            order = order[np.argsort(self._times[order], kind="stable")]
        return order[self._times[order] >= since]

    def series(self, column: int, row: int | None = None, since: float = 0.0) -> tuple[Floats, Singles]:
        """Return times and values of one column since a time, oldest first.

        With ``row`` the values have shape (n,), without it (n, rows). A column that isn't kept has NaN.
        """
        order = self._order(since)
        if column < self._values.shape[2]:
            values = self._values[order, :, column]
        else:
            values = np.full((len(order), self._values.shape[1]), np.nan, dtype=np.float32)
        return self._times[order], values if row is None else values[:, row]

    def intervals(self, since: float = 0.0) -> Singles:
        """Return the frames' intervals since a time, oldest first."""
        intervals: Singles = self._intervals[self._order(since)]
        return intervals

    def longest_interval(self, since: float, current: float) -> float:
        """Return the longest interval in seconds of the frames since a time, at least the ``current`` one.

        A frame of a file that lies may cover more; it counts as the longest interval that may be set.
        """
        longest = float(np.nan_to_num(self.intervals(since)).max(initial=0.0))
        return max(current, min(longest, MAX_INTERVAL_MS / 1000))

    def tables(self, since: float = 0.0) -> tuple[Floats, Singles]:
        """Return times (n,) and values (n, rows, columns) since a time, oldest first."""
        order = self._order(since)
        return self._times[order], self._values[order]


Series = tuple[Floats, Singles, Singles]
"""Times of frames, values of shape (frames,) or (frames, rows), and intervals."""


def binned(series: Series, start: float, end: float, bins: int) -> npt.NDArray[np.float64]:
    """Return a series' means in equal bins of time, NaN where nothing was measured.

    Samples count by their intervals; one without an interval, after a start or a gap, as a moment.
    """
    times, values, intervals = series
    out = np.full(bins, np.nan)
    if bins < 1 or end <= start or not len(times):
        return out
    if values.ndim == 1:
        flat = values
    else:
        # Masked arrays take twice as long, which is felt with hundreds of nodes.
        known = np.isfinite(values)
        counts = known.sum(axis=1)
        flat = np.where(counts, np.where(known, values, 0).sum(axis=1) / np.maximum(counts, 1), np.nan)
    where = np.floor((times - start) / (end - start) * bins).astype(np.int64)
    good = (where >= 0) & (where < bins) & np.isfinite(flat)
    weights = np.fmax(intervals.astype(np.float64), _MOMENT_S)[good]
    sums = np.bincount(where[good], weights=flat[good] * weights, minlength=bins)
    seconds = np.bincount(where[good], weights=weights, minlength=bins)
    filled = seconds > 0
    out[filled] = sums[filled] / seconds[filled]
    return out


HISTORY_BYTES = 53 * 1024 * 1024
HISTORY_LONGEST = 3600
HISTORY_SHORTEST = 120


def empty_history(nodes: int, gpus: int) -> tuple[History, History]:
    """Return empty histories of the ``gpus`` GPUs and the host of a node in a fleet of ``nodes`` nodes.

    That of GPUs has the columns of CURVE_METRICS, which come first in the catalogue.
    """
    columns = len(CURVE_METRICS)
    a_tick = nodes * max(gpus, 1) * columns * VALUE_BYTES
    length = min(HISTORY_LONGEST, max(HISTORY_SHORTEST, HISTORY_BYTES // max(1, a_tick)))
    return History(length, gpus, columns), History(length, 1, len(HOST_COLUMNS))
