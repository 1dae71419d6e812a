"""The minutes of a recording whose samples aren't summed up yet, and when to sum them up.

A minute has sums only if they equal those of its samples: the transaction that adds samples to a minute
deletes its sums. Readers use the samples of minutes without sums, so a crash needs no repair.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import duckdb
import numpy.typing as npt

from gswarm_tui.store.sql.schema import GPU_MINUTES
from gswarm_tui.store.sql.summaries import MINUTE_US, roll_up

_GRACE_US = 5_000_000
"""A minute is summed up when it has been over, and got no more samples, for this long."""
_SAMPLES_AT_ONCE = 1_000_000
"""About this many samples are summed up by one statement, to limit its memory."""


class UnsummedMinutes:
    """Minutes whose samples have no sums, by the start of each in Unix microseconds."""

    def __init__(self) -> None:
        self._due_at: dict[int, int] = {}
        self._newest = 0

    def outdated_by(self, times: npt.NDArray[Any]) -> list[int]:
        """Return the minutes of samples to be added that may have sums."""
        return sorted(_minutes_of(times) - self._due_at.keys())

    def added(self, times: npt.NDArray[Any]) -> None:
        """Note that samples of these times were added, and sums of their minutes deleted."""
        self._newest = max(self._newest, int(times.max().astype("int64")))
        for minute in _minutes_of(times):
            self._due_at[minute] = max(minute + MINUTE_US, self._newest) + _GRACE_US

    def take_due(self, *, at_close: bool) -> int | None:
        """Return the oldest minute to be summed up and forget it; at the close it need not be over."""
        due = (minute for minute, at in self._due_at.items() if at_close or at <= self._newest)
        oldest = min(due, default=None)
        if oldest is not None:
            del self._due_at[oldest]
        return oldest


def _minutes_of(times: npt.NDArray[Any]) -> set[int]:
    # np.unique would import numpy.ma, which takes 2 MB
    return set((times.astype("datetime64[us]").astype("int64") // MINUTE_US * MINUTE_US).tolist())


def delete_minutes(minutes: Iterable[int]) -> str:
    """Return the statement that deletes the sums of minutes."""
    listed = ", ".join(f"make_timestamp({minute})" for minute in minutes)
    return f"DELETE FROM {GPU_MINUTES.name} WHERE minute IN ({listed})"  # noqa: S608 (own names and numbers)


def add_sums(
    connection: duckdb.DuckDBPyConnection,
    low: int,
    high: int,
    of_gpus: str = "true",
    into: str = GPU_MINUTES.name,
) -> None:
    """Sum up samples by minute, as ``roll_up`` does. Raises duckdb.Error."""
    connection.execute(f"INSERT INTO {into} BY NAME {roll_up(low, high, of_gpus)}")


def add_all_sums(
    connection: duckdb.DuckDBPyConnection, of_gpus: str = "true", into: str = GPU_MINUTES.name
) -> None:
    """Sum up all samples of GPUs that have no sums yet, many minutes at a time. Raises duckdb.Error."""
    query = f"SELECT epoch_us(min(ts)), epoch_us(max(ts)), count(*) FROM gpu_samples WHERE {of_gpus}"  # noqa: S608
    ((first, last, count),) = connection.execute(query).fetchall()
    if not count:
        return
    low, end = first // MINUTE_US * MINUTE_US, last // MINUTE_US * MINUTE_US + MINUTE_US
    parts = -(-count // _SAMPLES_AT_ONCE)
    step = -(-(end - low) // (parts * MINUTE_US)) * MINUTE_US
    for since in range(low, end, step):
        add_sums(connection, since, min(since + step, end), of_gpus, into)
