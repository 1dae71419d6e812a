"""Which rows of a running recording are put together by GPU, so that they compress.

Rows come tick by tick, and neighbours are of different GPUs. DuckDB packs 2,048 values at a time, so rows
are put in order once each GPU has that many: then energy grows by little, clocks and throttling hardly
change, and times lie one interval apart. With fewer rows of each, sorting saves next to nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy.typing as npt

from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, TableSchema

PACK = 2_048
"""Rows that DuckDB packs together; 60 such are one of its row groups."""
KEYS = ((GPU_SAMPLES, "gpu_id"), (HOST_SAMPLES, "node_id"), (PROCESS_SAMPLES, "gpu_id"))
"""What the rows of each table belong to."""

_AT_ONCE = 120
_MOST = 1_024
_LAST_STEPS = 6
_SETTLED_US = 30_000_000


class File(Protocol):
    """What is needed of an open file here."""

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """The rows of a query by column. Raises StoreError."""

    def rearrange(self, table: TableSchema, where: str, order: str) -> None:
        """Puts the rows of a condition back in another order, in one transaction. Raises StoreError."""

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file. Raises StoreError."""


@dataclass
class _Unsorted:
    """Rows of one table from a time (Unix microseconds) on; ``enough`` of them are worth a look."""

    table: TableSchema
    key: str
    since: int | None = None
    rows: float = 0
    enough: float = PACK


class Sorter:
    """Puts a recording's rows in order while it goes on, some at a time.

    Rows that come later than half a minute stay where they are, as do those of more than 1,024 GPUs: sorting
    2,048 of each would take more memory and time than a recorder should.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._unsorted = {table.name: _Unsorted(table, key) for table, key in KEYS}
        self._steps: deque[tuple[TableSchema, str, str]] = deque()

    def added(self, tables: Iterable[tuple[TableSchema, Mapping[str, npt.NDArray[Any]]]]) -> None:
        """These rows were committed."""
        for table, columns in tables:
            unsorted = self._unsorted.get(table.name)
            if unsorted is not None:
                unsorted.rows += len(columns["ts"])
                if unsorted.since is None:
                    unsorted.since = int(columns["ts"].min().astype("int64"))

    def work(self) -> None:
        """Puts at most 245,760 rows in order, where so many are due. Raises StoreError."""
        if not self._steps:
            for unsorted in self._unsorted.values():
                if unsorted.rows >= unsorted.enough:
                    self._look(unsorted)
        if self._steps:
            self._file.rearrange(*self._steps.popleft())
            if not self._steps:
                self._file.checkpoint()

    def finish(self) -> None:
        """Puts in order what is left at the end, at most 1.5 million rows of it. Raises StoreError."""
        for unsorted in self._unsorted.values():
            found = self._counts(unsorted, math.inf)
            if len(found) <= _MOST:
                self._plan(unsorted, list(found), f"ts >= make_timestamp({unsorted.since})")
        for step in islice(self._steps, _LAST_STEPS):
            self._file.rearrange(*step)
        self._steps.clear()
        self._file.checkpoint()

    def _plan(self, unsorted: _Unsorted, keys: Sequence[int], within: str) -> None:
        for first in range(0, len(keys), _AT_ONCE):
            chosen = f"{unsorted.key} IN ({_listed(keys[first : first + _AT_ONCE])}) AND {within}"
            self._steps.append((unsorted.table, chosen, f"{unsorted.key}, ts, rowid"))

    def _look(self, unsorted: _Unsorted) -> None:
        table = unsorted.table.name
        found = self._counts(unsorted, math.inf)
        if len(found) > _MOST:
            unsorted.enough = math.inf
            return
        unsorted.rows = sum(found.values())
        fullest = max(found, key=found.__getitem__)
        until = 0
        if found[fullest] > PACK:
            last, following = self._edge(unsorted, fullest)
            until = 0 if following is None else (last + following + 1) // 2
        newest = self._file.rows(f"SELECT epoch_us(max(ts)) AS at FROM {table}")[0]["at"]  # noqa: S608
        if not until or newest - until < _SETTLED_US:
            missing = max(PACK - found[fullest], PACK // 64)
            unsorted.enough = unsorted.rows + missing * len(found)
            return
        ready = self._counts(unsorted, until)
        within = f"ts >= make_timestamp({unsorted.since}) AND ts < make_timestamp({until})"
        # Who lacks rows comes last: behind those the others would no longer lie as they are packed.
        self._plan(unsorted, [one for one, count in ready.items() if count == PACK], within)
        self._plan(unsorted, [one for one, count in ready.items() if count != PACK], within)
        unsorted.since = until
        unsorted.rows -= sum(ready.values())
        unsorted.enough = PACK * len(found)

    def _edge(self, unsorted: _Unsorted, key: int) -> tuple[int, int | None]:
        """When a key's pack ends and its next row follows; a node may say one time for more than a pack."""
        its_rows = f"FROM {unsorted.table.name} WHERE {unsorted.key} = $1 AND ts"
        (edge,) = self._file.rows(
            f"SELECT epoch_us(last) AS last, epoch_us((SELECT min(ts) {its_rows} > last)) AS following "  # noqa: S608
            f"FROM (SELECT ts AS last {its_rows} >= make_timestamp($2) ORDER BY ts LIMIT 1 OFFSET $3)",
            key,
            unsorted.since,
            PACK - 1,
        )
        return edge["last"], edge["following"]

    def _counts(self, unsorted: _Unsorted, until: float) -> dict[int, int]:
        before = "" if math.isinf(until) else f"AND ts < make_timestamp({until})"
        rows = self._file.rows(
            f"SELECT {unsorted.key} AS key, count(*) AS n FROM {unsorted.table.name} "  # noqa: S608 (own names)
            f"WHERE ts >= make_timestamp(?) {before} GROUP BY key ORDER BY key",
            unsorted.since,
        )
        return {row["key"]: row["n"] for row in rows}


def _listed(keys: Sequence[int]) -> str:
    return ", ".join(str(key) for key in keys)
