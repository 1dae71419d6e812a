"""Lower limit for the recorder: CPU time of DuckDB alone for the same samples from NumPy arrays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from gswarm_tui.store.sql.schema import GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, STORAGE_VERSION, literal

_TABLES = tuple(table.name for table in (GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES))
_SECOND_US = 1_000_000

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Alone:
    """CPU seconds of DuckDB alone, and the number of GPU samples."""

    cpu_s: float
    samples: int


def alone(recording: Path, into: Path, seconds: int) -> Alone:
    """Insert a recording's samples into a new file, some seconds of them per transaction.

    No key is looked up, no row is sorted, nothing is told: only inserting, committing and the checkpoints
    that DuckDB makes by itself count. The arrays are made beforehand; whole numbers with gaps come as floats,
    as from pandas.
    """
    cpu_s, samples = 0.0, 0
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"ATTACH {literal(str(recording))} AS rec (READ_ONLY)")
        connection.execute(
            f"ATTACH {literal(str(into))} AS bare (STORAGE_VERSION {literal(STORAGE_VERSION)})"
        )
        for table in _TABLES:
            connection.execute(f"CREATE TABLE bare.{table} AS FROM rec.{table} LIMIT 0")
        for parts in _stretches(connection, seconds):
            began = time.process_time()
            connection.execute("BEGIN")
            for table, arrays in parts.items():
                connection.register("arrays", arrays)
                connection.execute(f"INSERT INTO bare.{table} SELECT * FROM arrays")
            connection.execute("COMMIT")
            cpu_s += time.process_time() - began
            samples += len(parts[GPU_SAMPLES.name]["ts"])
        for table in _TABLES:
            ((alike,),) = connection.execute(
                f"SELECT (SELECT count(*) FROM bare.{table}) = (SELECT count(*) FROM rec.{table})"
            ).fetchall()
            if not alike:
                raise RuntimeError(f"{table} has other rows than the recording")
    return Alone(cpu_s, samples)


def _stretches(connection: duckdb.DuckDBPyConnection, seconds: int) -> Iterator[dict[str, Arrays]]:
    """Yield the rows of each table, one transaction's rows at a time, in their order."""
    spans = " UNION ALL ".join(f"SELECT ts FROM rec.{table}" for table in _TABLES)
    ((first, last),) = connection.execute(
        f"SELECT epoch_us(min(ts)), epoch_us(max(ts)) FROM ({spans})"
    ).fetchall()
    for begin in range(first, last + 1, seconds * _SECOND_US):
        within = f"ts >= make_timestamp({begin}) AND ts < make_timestamp({begin + seconds * _SECOND_US})"
        found = {
            table: connection.execute(f"FROM rec.{table} WHERE {within} ORDER BY ts").fetchnumpy()
            for table in _TABLES
        }
        yield {
            table: {name: _without_mask(column) for name, column in columns.items()}
            for table, columns in found.items()
        }


def _without_mask(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array without its mask: DuckDB reads None and NaN as NULL, but no masks."""
    if not np.ma.is_masked(column):
        return np.ma.getdata(column)
    if column.dtype == object:
        return np.ma.filled(column, None)
    return np.ma.filled(column.astype(np.float64), np.nan)
