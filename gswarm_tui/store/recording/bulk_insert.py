"""Inserts of rows from arrays."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.frame_values import as_recorded
from gswarm_tui.store.recording.batch import Columns
from gswarm_tui.store.sql.schema import ColumnSchema, TableSchema


def insert(connection: duckdb.DuckDBPyConnection, table: TableSchema, columns: Columns) -> None:
    """Insert rows, or replace those with the same key; missing columns become NULL. Raises duckdb.Error."""
    names = ", ".join(columns)
    casts = {
        name: f"incoming.{name}"
        if (kind := table[name].type) == "FLOAT"
        else f"TRY_CAST(incoming.{name} AS {kind})"
        for name in columns
    }
    insertion = f"INTO {table.name} ({names}) SELECT {', '.join(casts.values())} FROM incoming"  # noqa: S608
    connection.register("incoming", {name: _fitting(table[name], values) for name, values in columns.items()})
    if not table.key:
        connection.execute(f"INSERT {insertion}")
    else:
        # Each commit writes every link's row again: an update takes half as long as an insert that replaces.
        changes = ", ".join(f"{name} = {value}" for name, value in casts.items() if name not in table.key)
        keys = " AND ".join(f"{table.name}.{name} = {casts[name]}" for name in table.key)
        update = f"UPDATE {table.name} SET {changes} FROM incoming WHERE {keys}"  # noqa: S608
        ((updated,),) = connection.execute(update).fetchall()
        if updated < len(next(iter(columns.values()))):
            connection.execute(f"INSERT OR REPLACE {insertion}")
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
