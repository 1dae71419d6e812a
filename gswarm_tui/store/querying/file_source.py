"""Read-only access to a recording file that nobody writes."""

from __future__ import annotations

from pathlib import Path

import duckdb

from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.opening import open_for_reading
from gswarm_tui.store.querying.running_query import ArraySource, RunningQuery, SpillFolder

MEMORY = "2GB"
THREADS = 4
"""Login nodes are shared, and so are these limits; larger results spill to a temporary folder."""


class FileSource(ArraySource):
    """A QuerySource on a finished file.

    Queries reach this file and no other; sorting more than fits into memory spills to the temporary folder.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StoreError."""
        super().__init__(path, self._start_query)
        self._spill_folder = SpillFolder()
        limits = {"memory_limit": MEMORY, "threads": THREADS, **self._spill_folder.settings()}
        self._connection = open_for_reading(path, limits)

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
