"""Inserts from arrays with statements that are planned once.

Planning a statement costs two milliseconds, more than inserting a thousand rows. So the arrays that a
statement reads stay in place and are refilled.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.frame_values import as_recorded
from gswarm_tui.store.duckdb_internals import register_arrays
from gswarm_tui.store.recording.batch import Columns
from gswarm_tui.store.sql.schema import ColumnSchema, TableSchema

_SIZES = (64, 1_024, 4_096, 16_384)
"""Rows per statement. A statement reads its whole arrays, which stay in memory, so few rows get small arrays.

More rows than the largest size become several statements: larger arrays don't fit into a processor's cache.
"""


class BulkInsert:
    """Inserts rows, or replaces rows with the same key, on one connection.

    A rollback drops the statements that were planned in the transaction: create another BulkInsert then.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._planned: dict[tuple[str, int], _Planned] = {}

    def insert(self, table: TableSchema, columns: Columns) -> None:
        """Insert rows; missing columns become NULL. Raises duckdb.Error."""
        rows = len(next(iter(columns.values())))
        for begin in range(0, rows, _SIZES[-1]):
            part = {name: values[begin : begin + _SIZES[-1]] for name, values in columns.items()}
            self._insert(table, part, min(_SIZES[-1], rows - begin))

    def _insert(self, table: TableSchema, columns: Columns, rows: int) -> None:
        size = next(size for size in _SIZES if rows <= size)
        planned = self._planned.get((table.name, size))
        if planned is None:
            planned = self._planned[table.name, size] = _Planned(self._connection, table, size)
        planned.insert(columns, rows)


class _Planned:
    """A statement with the arrays that it reads: a first row that is never inserted, then ``size`` rows."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: TableSchema, size: int) -> None:
        self._connection = connection
        self._name = f"incoming_{table.name}_{size}"
        self._arrays = {column.name: _array(column, size + 1) for column in table.columns}
        self._counts = np.zeros(size + 1, dtype=np.bool_)
        register_arrays(connection, self._name, self._arrays | {"counts": self._counts})
        connection.execute(f"PREPARE {self._name} AS {_insert(table, self._name)}")

    def insert(self, columns: Columns, rows: int) -> None:
        """Run the statement with these rows."""
        self._counts[1 : rows + 1] = True
        try:
            for name, array in self._arrays.items():
                array[1 : rows + 1] = _fitting(columns[name], array) if name in columns else _null(array)
            self._connection.execute(f"EXECUTE {self._name}")
        finally:
            self._counts[:] = False
            for array in self._arrays.values():
                if array.dtype == object:
                    array[1:] = None  # don't keep texts in memory


def _insert(table: TableSchema, source: str) -> str:
    names = ", ".join(column.name for column in table.columns)
    values = ", ".join(f"TRY_CAST({column.name} AS {column.type})" for column in table.columns)
    replacing = "OR REPLACE " if table.key else ""
    return f"INSERT {replacing}INTO {table.name} ({names}) SELECT {values} FROM {source} WHERE counts"  # noqa: S608


def _array(column: ColumnSchema, size: int) -> npt.NDArray[Any]:
    """Return the array for a column; the first value of an object array tells DuckDB that it holds texts."""
    match column.type:
        case "TIMESTAMP":
            return np.zeros(size, dtype="datetime64[us]")
        case "VARCHAR" | "BOOLEAN":
            texts = np.full(size, None, dtype=object)
            texts[0] = ""
            return texts
        case "FLOAT":
            return np.zeros(size, dtype=np.float32)
        case _:
            return np.zeros(size, dtype=np.float64)


def _fitting(values: npt.NDArray[Any], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype != np.float32:
        return values
    kept = as_recorded(values)
    if kept.dtype != np.float32:  # too large for the column: not measured
        with np.errstate(over="ignore"):
            kept = kept.astype(np.float32)
        kept[np.isinf(kept)] = np.nan
    return kept


def _null(array: npt.NDArray[Any]) -> Any:
    if array.dtype == object:
        return None
    return np.datetime64("NaT") if array.dtype.kind == "M" else np.nan
