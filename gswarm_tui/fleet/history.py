"""The last minutes of one table of numbers, as a ring in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


class History:
    """Readings of ``rows`` x ``columns`` numbers, the newest ``capacity`` of them; NaN is "no answer".

    Memory is taken as it fills. Times are Unix seconds; a late reading takes its place among the others.
    """

    # Each node has its own, far from the others in memory: a place less to look at.
    __slots__ = ("_count", "_in_order", "_newest", "_times", "_values", "capacity")

    def __init__(self, capacity: int, rows: int, columns: int) -> None:
        self.capacity = max(1, capacity)
        self._times: Floats = np.empty(self.capacity, dtype=np.float64)
        self._values: Singles = np.empty((self.capacity, rows, columns), dtype=np.float32)
        self._count = 0
        self._newest = -np.inf
        self._in_order = True

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def room(self, ts: float) -> Singles:
        """The place of one more reading of any time, of shape (rows, columns), to be filled in at once."""
        self._in_order = self._in_order and ts >= self._newest
        self._newest = max(self._newest, ts)
        at = self._count % self.capacity
        self._count += 1
        self._times[at] = ts
        room: Singles = self._values[at]
        return room

    def append(self, times: Floats, values: Singles) -> None:
        """Add readings after all others, oldest first, of shapes (n,) and (n, rows, columns)."""
        self._newest = float(times[-1]) if len(times) else self._newest
        kept = min(len(times), self.capacity)
        self._count += len(times)
        places = np.arange(self._count - kept, self._count) % self.capacity
        self._times[places] = times[len(times) - kept :]
        self._values[places] = values[len(times) - kept :]

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
        order = self._order(since)
        if row is None:
            return self._times[order], self._values[order, :, column]
        return self._times[order], self._values[order, row, column]

    def around(self, ts: float) -> tuple[Floats, Floats, float]:
        """The readings before and after a time, and the time of the one after; NaN where there is none."""
        order = self._order(-np.inf)
        times = self._times[order]
        at = int(np.searchsorted(times, ts))
        nothing = np.full(self._values.shape[1:], np.nan)
        before = self._values[order[at - 1]].astype(np.float64) if at else nothing
        if at == len(order):
            return before, nothing, np.nan
        return before, self._values[order[at]].astype(np.float64), float(times[at])

    def readings(self, since: float = 0.0) -> tuple[Floats, Singles]:
        """Times (n,) and values (n, rows, columns) since a time, oldest first."""
        order = self._order(since)
        return self._times[order], self._values[order]


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
