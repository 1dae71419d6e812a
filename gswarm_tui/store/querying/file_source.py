"""Read-only access to a recording file that nobody writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.store.querying.running_query import RunningQuery, SpillFolder

if TYPE_CHECKING:
    import numpy.typing as npt

MEMORY = "2GB"
THREADS = 4
"""Login nodes are shared, and so are these limits; larger results spill to a temporary folder."""


def open_for_reading(path: Path) -> duckdb.DuckDBPyConnection:
    """Return a read-only connection to the file that never downloads extensions. Raises StoreError."""
    if not path.exists():
        raise StoreError(f"the file {path} doesn't exist")
    try:
        return duckdb.connect(
            str(path),
            read_only=True,
            config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"},
        )
    except duckdb.Error as error:
        raise open_error(error, path) from error


class FileSource:
    """A QuerySource on a finished file.

    Queries reach this file and no other; sorting more than fits into memory spills to the temporary folder.
    """

    running = False

    def __init__(self, path: Path) -> None:
        """Open the file. Raises StoreError."""
        self.path = path
        self._connection = open_for_reading(path)
        self._queries: set[RunningQuery] = set()
        self._spill_folder = SpillFolder()
        limits = {"memory_limit": MEMORY, "threads": THREADS, **self._spill_folder.settings()}
        for name, value in (limits | {"enable_external_access": False, "lock_configuration": True}).items():
            self._connection.execute(f"SET {name} = ?", [value])

    def query(self, sql: str, *values: object) -> Result:
        """Return the result of one statement that reads. Raises QueryError, StoreError."""
        return self._start().run(sql, values)

    def arrays(self, sql: str, *values: object) -> dict[str, npt.NDArray[Any]]:
        """Return the whole result by column, masked where NULL. Raises QueryError, StoreError."""
        return self._start().arrays(sql, values)

    def _start(self) -> RunningQuery:
        try:
            query = RunningQuery(self._connection.cursor(), self.path, self._queries.discard)
        except duckdb.Error as error:
            raise StoreError(explain(error, self.path)) from error
        self._queries.add(query)
        return query

    def interrupt(self) -> None:
        """Cancel running queries."""
        for query in list(self._queries):
            query.stop("the query was cancelled")

    def second_source(self) -> QuerySource:
        """Return a source on the same open file that is interrupted and closed on its own."""
        return _SecondSource(self)

    def close(self) -> None:
        """Close the file."""
        self.interrupt()
        self._connection.close()
        self._spill_folder.remove()


class _SecondSource(FileSource):
    """Another connection to a file that a FileSource has opened."""

    def __init__(self, opened: FileSource) -> None:
        self.path = opened.path
        self._connection = opened._connection.cursor()
        self._queries = set()

    def close(self) -> None:
        """Close the connection; the file stays open."""
        self.interrupt()
        self._connection.close()
