"""Read-only queries on a file while the recorder writes it, on cursors of the recorder's connection.

Recording comes first: queries end when the recorder needs their memory, or has to shorten its log or reopen
its file.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import duckdb

from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.querying.running_query import LocalSource, RunningQuery, explain_query

STOPPED_WITHIN_S = 5.0


class CursorPool:
    """Cursors of the recorder's connection for queries; usable from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._running: set[RunningQuery] = set()

    def open(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Serve queries from this connection, which the pool owns from now on."""
        with self._lock:
            self._connection = connection

    def close(self, reason: str) -> None:
        """End all queries and close the connection."""
        with self._lock:
            connection, self._connection = self._connection, None
        self.stop(reason)
        if connection is not None:
            with suppress(duckdb.Error):  # a query that DuckDB can't cancel uses it
                connection.close()

    def stop(self, reason: str) -> None:
        """End all queries within ``STOPPED_WITHIN_S``, if DuckDB can."""
        with self._lock:
            running = list(self._running)
        deadline = time.monotonic() + STOPPED_WITHIN_S
        for query in running:
            query.stop(reason, deadline - time.monotonic())

    @property
    def busy(self) -> bool:
        """Whether a query runs."""
        with self._lock:
            return bool(self._running)

    def source(self) -> LocalSource:
        """Return a QuerySource on the file while it is recorded; each user of the file has its own."""
        return LocalSource(self.path, self.start_query, running=True)

    def start_query(self) -> RunningQuery:
        """Return a cursor for one query. Raises QueryError if the file can't be queried now."""
        try:
            with self._lock:
                if self._connection is None:
                    raise QueryError(f"{self.path} isn't open now; try again in a moment")
                cursor = self._connection.cursor()
                cursor.execute("USE rec")
                query = RunningQuery(cursor, self.path, self._ended)
                self._running.add(query)
        except duckdb.Error as error:
            raise QueryError(f"{self.path} can't be queried now: {explain_query(error)}") from error
        return query

    def _ended(self, query: RunningQuery) -> None:
        with self._lock:
            self._running.discard(query)
