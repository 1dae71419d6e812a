"""Inserts of rows from arrays."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.frame_values import as_recorded
from gswarm_tui.store.recording.batch import ROWS_AT_ONCE, Columns
from gswarm_tui.store.sql.schema import ColumnSchema, TableSchema


def insert(connection: duckdb.DuckDBPyConnection, table: TableSchema, columns: Columns) -> None:
    """Insert rows, or replace those with the same key; missing columns become NULL. Raises duckdb.Error."""
    names = ", ".join(columns)
    values = ", ".join(f"TRY_CAST({name} AS {table[name].type})" for name in columns)
    replacing = "OR REPLACE " if table.key else ""
    for begin in range(0, len(next(iter(columns.values()))), ROWS_AT_ONCE):
        part = {
            name: _fitting(table[name], values[begin : begin + ROWS_AT_ONCE])
            for name, values in columns.items()
        }
        connection.register("incoming", part)
        connection.execute(
            f"INSERT {replacing}INTO {table.name} ({names}) SELECT {values} FROM incoming"  # noqa: S608
        )
        connection.unregister("incoming")


def _fitting(column: ColumnSchema, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if column.type != "FLOAT":
        return values
    kept = as_recorded(values)
    if kept.dtype != np.float32:  # too large for the column: not measured
        with np.errstate(over="ignore"):
            kept = kept.astype(np.float32)
        kept[np.isinf(kept)] = np.nan
    return kept
