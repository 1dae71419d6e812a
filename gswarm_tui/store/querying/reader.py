"""Opening a finished recording to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from gswarm_tui.store.errors import StoreError, explain, not_opened


def open_for_reading(path: Path) -> duckdb.DuckDBPyConnection:
    """A read-only connection to the file; it never fetches extensions. Raises StoreError."""
    if not path.exists():
        raise StoreError(f"there is no file {path}")
    try:
        return duckdb.connect(
            str(path),
            read_only=True,
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"},
        )
    except duckdb.Error as error:
        raise not_opened(error, path) from error


class ReadOnly:
    """A recording file open for reading as a context; ``rows`` answers queries."""

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises StoreError."""
        self._path = path
        self._connection = open_for_reading(path)

    def __enter__(self) -> ReadOnly:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """The rows of a query by column. Raises StoreError."""
        try:
            found = self._connection.execute(sql, list(values))
            names = [column[0] for column in found.description or ()]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        except duckdb.Error as error:
            raise StoreError(explain(error, self._path)) from error
