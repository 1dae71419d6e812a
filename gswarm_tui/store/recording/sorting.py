"""Sorting the samples of a running recording by GPU, so that they compress.

Rows arrive tick by tick, so neighbouring rows belong to different GPUs. DuckDB compresses 2,048 values at a
time, so rows are sorted once each GPU has that many; sorting fewer saves next to nothing. Figures are in
docs/decisions/005-recording-file-rewrite.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy.typing as npt

from gswarm_tui.store.recording.database import Database
from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, TableSchema

PACK = 2_048
"""Rows that DuckDB compresses together; 60 packs are one of its row groups."""
KEYS = ((GPU_SAMPLES, "gpu_id"), (HOST_SAMPLES, "node_id"), (PROCESS_SAMPLES, "gpu_id"))
"""The column by which each table is sorted."""

_KEYS_PER_STEP = 120
_MAX_KEYS = 1_024
_MAX_STEPS_AT_CLOSE = 6
_SETTLED_US = 30_000_000


@dataclass
class _Unsorted:
    """Unsorted rows of a table since a time (Unix microseconds); at ``enough`` rows sorting may pay off."""

    table: TableSchema
    key: str
    since: int | None = None
    rows: float = 0
    enough: float = PACK


class Sorter:
    """Sorts a recording's rows in small steps while it is written.

    Rows that arrive more than half a minute late stay unsorted, and so do those of more than 1,024 GPUs:
    sorting 2,048 rows of each would take too much memory and time for a recorder.
    """

    def __init__(self, file: Database) -> None:
        self._file = file
        self._unsorted = {table.name: _Unsorted(table, key) for table, key in KEYS}
        self._steps: deque[tuple[TableSchema, str, str]] = deque()

    def added(self, tables: Iterable[tuple[TableSchema, Mapping[str, npt.NDArray[Any]]]]) -> None:
        """Count rows that were committed."""
        for table, columns in tables:
            unsorted = self._unsorted.get(table.name)
            if unsorted is not None:
                unsorted.rows += len(columns["ts"])
                if unsorted.since is None:
                    unsorted.since = int(columns["ts"].min().astype("int64"))

    def work(self) -> None:
        """Sort at most 245,760 rows, if enough are unsorted. Raises StoreError."""
        if not self._steps:
            for unsorted in self._unsorted.values():
                if unsorted.rows >= unsorted.enough:
                    self._look(unsorted)
        if self._steps:
            self._file.reorder(*self._steps.popleft())
            if not self._steps:
                self._file.checkpoint()

    def finish(self) -> None:
        """Sort the remaining rows before the file closes, at most 1.5 million. Raises StoreError."""
        for unsorted in self._unsorted.values():
            found = self._counts(unsorted, math.inf)
            if len(found) <= _MAX_KEYS:
                self._plan(unsorted, list(found), f"ts >= make_timestamp({unsorted.since})")
        for step in islice(self._steps, _MAX_STEPS_AT_CLOSE):
            self._file.reorder(*step)
        self._steps.clear()
        self._file.checkpoint()

    def _plan(self, unsorted: _Unsorted, keys: Sequence[int], within: str) -> None:
        for first in range(0, len(keys), _KEYS_PER_STEP):
            chosen = f"{unsorted.key} IN ({_listed(keys[first : first + _KEYS_PER_STEP])}) AND {within}"
            self._steps.append((unsorted.table, chosen, f"{unsorted.key}, ts, rowid"))

    def _look(self, unsorted: _Unsorted) -> None:
        table = unsorted.table.name
        found = self._counts(unsorted, math.inf)
        if len(found) > _MAX_KEYS:
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
        # GPUs with fewer rows come last: after them, packs would mix rows of several GPUs.
        self._plan(unsorted, [one for one, count in ready.items() if count == PACK], within)
        self._plan(unsorted, [one for one, count in ready.items() if count != PACK], within)
        unsorted.since = until
        unsorted.rows -= sum(ready.values())
        unsorted.enough = PACK * len(found)

    def _edge(self, unsorted: _Unsorted, key: int) -> tuple[int, int | None]:
        """Return when a key's pack ends and the next row follows; many rows may have the same time."""
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
