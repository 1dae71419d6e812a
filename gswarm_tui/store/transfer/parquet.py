"""An answer as a Parquet file, with the types that it has in DuckDB."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np

from gswarm_tui.store.querying.answers import Answer, QueryError
from gswarm_tui.store.querying.statement import sentence
from gswarm_tui.store.sql.schema import literal


def write_parquet(answer: Answer, path: Path) -> None:
    """Writes all rows into the file. Raises StoreError."""
    names = [f"c{index}" for index in range(len(answer.names))]
    made = ", ".join(f"{name} {kind}" for name, kind in zip(names, answer.types, strict=True))
    with tempfile.TemporaryDirectory(prefix="gswarm-tui-") as scratch:
        connection = duckdb.connect(config={"memory_limit": "512MB", "threads": 2, "temp_directory": scratch})
        try:
            connection.execute(f"CREATE TABLE answer ({made})")
            for rows in answer.batches:
                # The None at the end keeps NumPy from making arrays of lists two-dimensional.
                columns = (np.array([*column, None], dtype=object)[:-1] for column in zip(*rows, strict=True))
                connection.register("incoming", dict(zip(names, columns, strict=True)))
                connection.execute("INSERT INTO answer FROM incoming")
            for name, wanted in zip(names, _unique(answer.names), strict=True):
                connection.execute(f"ALTER TABLE answer RENAME {name} TO {_quoted(wanted)}")
            connection.execute(f"COPY answer TO {literal(str(path))} (FORMAT parquet, COMPRESSION zstd)")
        except duckdb.Error as error:
            raise QueryError(f"the answer can't be written as Parquet: {sentence(error)}") from error
        finally:
            connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unique(names: Sequence[str]) -> list[str]:
    """The names, those that come again with a number, as a Parquet file needs them."""
    taken: set[str] = set()
    unique = []
    for name in names:
        number, free = 1, name
        while free.lower() in taken:
            number += 1
            free = f"{name}_{number}"
        taken.add(free.lower())
        unique.append(free)
    return unique
