"""Opening a finished recording to read it."""

from __future__ import annotations

from pathlib import Path

import duckdb

from gswarm_tui.store.database import StoreError, explain


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
        raise StoreError(explain(error, path)) from error
