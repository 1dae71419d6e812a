"""Read-only access to a recording file that no process writes."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from gswarm_tui.store.duckdb_internals import Settings, SpillFolder
from gswarm_tui.store.errors import StoreError, explain
from gswarm_tui.store.querying.opening import open_for_reading
from gswarm_tui.store.querying.running_query import LocalSource, RunningQuery

MEMORY = "2GB"
THREADS = 4
"""Login nodes are shared, and so are these limits; larger results spill to a temporary folder."""
RELEASE_S = 10.0
"""Longest time that ``released`` waits for running queries."""


class FileSource(LocalSource):
    """A QuerySource on a finished file.

    Queries reach this file and no other; sorting more than fits into memory spills to the temporary folder.
    """

    def __init__(self, path: Path, *, for_people: bool = True, tables: Collection[str] = ()) -> None:
        """Open the file for queries that people write, with their views, or for the program's own, which
        aren't checked, and may need a few ``tables`` only. Raises StoreError."""
        super().__init__(path, self._start_query)
        self._for_people, self.tables = for_people, tables
        self._spill_folder = SpillFolder()
        self._turn = threading.Condition()
        self._open: set[RunningQuery] = set()
        self._away = False
        try:
            self._connection = self._connect()
        except BaseException:
            self._spill_folder.remove()
            raise

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return open_for_reading(self.path, self.limits, for_people=self._for_people, tables=self.tables)

    @property
    def limits(self) -> Settings:
        """Settings of the connection that keep a query within its share of the machine."""
        return {"memory_limit": MEMORY, "threads": THREADS, **self._spill_folder.settings()}

    def _start_query(self) -> RunningQuery:
        with self._turn:
            self._turn.wait_for(lambda: not self._away)
            try:
                query = RunningQuery(
                    self._connection.cursor(), self.path, self._ended, for_people=self._for_people
                )
            except duckdb.Error as error:
                raise StoreError(explain(error, self.path)) from error
            self._open.add(query)
            return query

    def _ended(self, query: RunningQuery) -> None:
        with self._turn:
            self._open.discard(query)
            self._turn.notify_all()

    def second_source(self) -> LocalSource:
        """Return a source on the same open file that is interrupted and closed on its own."""
        return LocalSource(self.path, self._start_query)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Close the file for a moment, so that it can be opened for writing; new queries wait.

        DuckDB opens a file either for readers or for one writer. Raises StoreError while a query runs.
        """
        with self._turn:
            self._away = True
            if not self._turn.wait_for(lambda: not self._open, RELEASE_S):
                self._away = False
                self._turn.notify_all()
                raise StoreError(f"a query on {self.path} is still running; try again when it has ended")
            self._connection.close()
        try:
            yield
        finally:
            with self._turn:
                self._away = False
                self._turn.notify_all()
                self._connection = self._connect()

    def close(self) -> None:
        """Close the file."""
        super().close()
        self._connection.close()
        self._spill_folder.remove()
