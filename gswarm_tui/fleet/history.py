"""The last minutes of one table of numbers, as a ring in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]


class History:
    """Readings of ``rows`` x ``columns`` numbers, the newest ``capacity`` of them; NaN is "no answer".

    Memory is taken as it fills. Times are Unix seconds, in the order of arrival.
    """

    def __init__(self, capacity: int, rows: int, columns: int) -> None:
        self.capacity = max(1, capacity)
        self._times: Floats = np.empty(self.capacity, dtype=np.float64)
        self._values: Singles = np.empty((self.capacity, rows, columns), dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def append(self, ts: float, values: Floats) -> None:
        """Add one reading of shape (rows, columns)."""
        at = self._count % self.capacity
        self._times[at] = ts
        self._values[at] = values
        self._count += 1

    def _order(self, since: float) -> npt.NDArray[np.intp]:
        count = len(self)
        order = (np.arange(self._count - count, self._count) % self.capacity).astype(np.intp)
        return order[self._times[order] >= since]

    def series(self, column: int, row: int | None = None, since: float = 0.0) -> tuple[Floats, Singles]:
        """Times and values of one column since a time, oldest first.

        With ``row`` the values have shape (n,), without it (n, rows).
        """
        order = self._order(since)
        if row is None:
            return self._times[order], self._values[order, :, column]
        return self._times[order], self._values[order, row, column]

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
