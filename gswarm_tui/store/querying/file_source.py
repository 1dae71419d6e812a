"""Read-only access to a recording file that nobody writes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb

from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS
from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.querying.running_query import ArraySource, RunningQuery, SpillFolder

MEMORY = "2GB"
THREADS = 4
"""Login nodes are shared, and so are these limits; larger results spill to a temporary folder."""


def open_for_reading(path: Path) -> duckdb.DuckDBPyConnection:
    """Return a read-only connection to the file that never downloads extensions. Raises StoreError."""
    with suppress(PermissionError):  # DuckDB reports it
        if not path.exists():
            raise StoreError(f"the file {path} doesn't exist")
    try:
        return duckdb.connect(str(path), read_only=True, config=NO_EXTENSIONS)
    except duckdb.Error as error:
        raise open_error(error, path) from error


class FileSource(ArraySource):
    """A QuerySource on a finished file.

    Queries reach this file and no other; sorting more than fits into memory spills to the temporary folder.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StoreError."""
        super().__init__(path, self._start_query)
        self._connection = open_for_reading(path)
        self._spill_folder = SpillFolder()
        limits = {"memory_limit": MEMORY, "threads": THREADS, **self._spill_folder.settings()}
        for name, value in (limits | {"enable_external_access": False, "lock_configuration": True}).items():
            self._connection.execute(f"SET {name} = ?", [value])

    def _start_query(self) -> RunningQuery:
        try:
            return RunningQuery(self._connection.cursor(), self.path)
        except duckdb.Error as error:
            raise StoreError(explain(error, self.path)) from error

    def second_source(self) -> ArraySource:
        """Return a source on the same open file that is interrupted and closed on its own."""
        return ArraySource(self.path, self._start_query)

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._connection.close()
        self._spill_folder.remove()
