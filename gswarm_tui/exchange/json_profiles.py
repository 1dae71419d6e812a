"""Profiles in the JSON export: the member ``profiles``, written and read in pieces.

A piece has some thousand rows of one table: its name, and an array for each column. Ids of profiles and names
are those of the exported file; a node is the profile's ``node``, and a GPU is named as in frames.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any, TextIO

from gswarm_tui.analysis.periods import Period
from gswarm_tui.exchange.gswarm_profiler_values import WrongValueError, moment
from gswarm_tui.exchange.time_windows import iso, profile_span
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.schema import PROFILES, ColumnSchema, TableSchema
from gswarm_tui.store.transfer.importing import Importing
from gswarm_tui.store.transfer.parquet import OF_PROFILES, of_profiles

ROWS_IN_PIECE = 5000

_PROFILED = """
SELECT profile_id FROM profiles
WHERE recording_id = ? AND ended_at > make_timestamp(?::BIGINT) AND started_at < make_timestamp(?::BIGINT)
ORDER BY profile_id
"""
_TABLES = {table.name: table for table in OF_PROFILES}
_LARGEST = 2**53
"""Whole numbers below it are exact in JSON for all readers."""
_LONGEST_TEXT = 2**20


def write_profiles(source: QuerySource, period: Period, gpus: Mapping[int, str], out: TextIO) -> int:
    """Write the member after another one if the period has profiles; return their number.

    ``gpus`` has the names of GPUs by ``gpu_id``. Raises StoreError, OSError.
    """
    since, until = profile_span(period)
    own = [row[0] for row in source.query(_PROFILED, period.recording_id, since, until).rows()]
    if not own:
        return 0
    out.write(',\n "profiles": [')
    between = "\n  "
    for table in OF_PROFILES:
        columns = [column.name for column in _exported(table)]
        query = f"SELECT {', '.join(columns)} FROM {table.name} WHERE {of_profiles(table, own)}"  # noqa: S608
        rows = chain.from_iterable(source.query(query).batches)
        while piece := list(islice(rows, ROWS_IN_PIECE)):
            values = dict(zip(columns, map(list, zip(*piece, strict=True)), strict=True))
            if "gpu_id" in values:
                values["gpu_id"] = [gpus.get(gpu_id) for gpu_id in values["gpu_id"]]
            if "number" in values:  # JSON has no infinity
                values["number"] = [x if x is None or math.isfinite(x) else None for x in values["number"]]
            made = {"table": table.name, "columns": values}
            out.write(between + json.dumps(made, ensure_ascii=False, separators=(",", ":"), default=iso))
            between = ",\n  "
    out.write("\n ]")
    return len(own)


class ProfilesImport:
    """Importer of the pieces of ``profiles`` into the recording ``recording_id``."""

    def __init__(
        self, target: Importing, recording_id: int, nodes: Mapping[str, int], gpus: Mapping[str, int]
    ) -> None:
        """``nodes`` and ``gpus`` have the ids of imported nodes and GPUs by name."""
        self._target = target
        self._recording_id = recording_id
        self._nodes = nodes
        self._gpus = gpus
        self._shifts = {name: target.next_free(name) - 1 for name in ("profile_id", "name_id")}
        self._seen: set[int] = set()

    def add(self, piece: Any) -> None:
        """Add the rows of a piece. Raises WrongValueError, StoreError."""
        table = _TABLES.get(str(piece.get("table"))) if isinstance(piece, dict) else None
        columns = piece.get("columns") if isinstance(piece, dict) else None
        if table is None or not isinstance(columns, dict):
            raise WrongValueError("an element of profiles should have the name of a table, and columns")
        rows = {len(values) if isinstance(values, list) else -1 for values in columns.values()}
        key = table.columns[0].name
        if key not in columns or len(rows) != 1 or -1 in rows:
            raise WrongValueError(f"columns of {table.name} should be arrays of one length, with {key}")
        added = {
            column.name: [self._value(column, value) for value in columns[column.name]]
            for column in _exported(table)
            if column.name in columns
        }
        self._check_profiles(table, added)
        if table is PROFILES:
            (count,) = rows
            added["recording_id"] = [self._recording_id] * count
            added["node_id"] = [self._nodes.get(node) for node in added.get("node", [None] * count)]
        self._target.add(table, added)

    def _check_profiles(self, table: TableSchema, columns: Mapping[str, Sequence[Any]]) -> None:
        """Raise WrongValueError unless each profile comes once, and before its rows."""
        ids = columns.get("profile_id", ())
        if table is not PROFILES:
            if not self._seen.issuperset(ids):
                raise WrongValueError(f"{table.name} has a profile_id that isn't in profiles")
        elif None in ids or len({*ids}) < len(ids) or not self._seen.isdisjoint(ids):
            raise WrongValueError("profiles has a profile_id that is empty or occurs twice")
        else:
            self._seen.update(ids)

    def _value(self, column: ColumnSchema, value: Any) -> Any:
        if value is None:
            return None
        if column.name == "gpu_id":
            return self._gpus.get(str(value))
        if column.type == "VARCHAR":
            if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
                return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
            raise WrongValueError(f"{column.name} should be text of at most {_LONGEST_TEXT} characters")
        if column.type == "TIMESTAMP":
            return moment(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise WrongValueError(f"{column.name} should be a number")
        if column.type == "DOUBLE":
            return value
        if not isinstance(value, int) or abs(value) >= _LARGEST:
            raise WrongValueError(f"{column.name} should be a whole number below {_LARGEST}")
        return value + self._shifts.get(column.name.removeprefix("short_"), 0)


def _exported(table: TableSchema) -> list[ColumnSchema]:
    """Return the columns that JSON has: a file has one recording, and ``profiles`` has each node's name."""
    return [column for column in table.columns if column.name not in {"recording_id", "node_id"}]
