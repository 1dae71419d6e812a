"""Where answers come from: a finished file, or the recorder that is writing one. Both only read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb

from gswarm_tui.store.database import StoreError, explain
from gswarm_tui.store.reader import open_for_reading

ROWS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Answer:
    """A query's columns, DuckDB's names of their types, and its rows, which come in batches, once.

    Values are what DuckDB's Python client gives: times are ``datetime`` without a zone, in UTC.
    """

    names: Sequence[str]
    types: Sequence[str]
    batches: Iterator[list[tuple[Any, ...]]]

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows. Raises StoreError."""
        return [row for batch in self.batches for row in batch]

    def dicts(self) -> list[dict[str, Any]]:
        """All rows by column. Raises StoreError."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows()]


class QueryError(StoreError):
    """The query is wrong, or asks for what isn't allowed; the message is DuckDB's."""


class Source(Protocol):
    """A recording file that answers questions; ``running`` says whether it is being written."""

    path: Path
    running: bool

    def ask(self, sql: str, *values: object) -> Answer:
        """The answer to one statement that reads, with ``?`` for values. Raises QueryError, StoreError."""

    def close(self) -> None:
        """Let go of it."""


class FileSource:
    """A file that nobody writes."""

    running = False

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises StoreError."""
        self.path = path
        self._connection = open_for_reading(path)
        # Whatever a query says, it reads this file and no other, and can't undo that.
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def ask(self, sql: str, *values: object) -> Answer:
        """The answer to one statement that reads. Raises QueryError, StoreError."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql, list(values))
        except duckdb.Error as error:
            raise _sorted_out(error, self.path) from error
        described = cursor.description or []
        return Answer([c[0] for c in described], [str(c[1]) for c in described], self._fetch(cursor))

    def _fetch(self, cursor: duckdb.DuckDBPyConnection) -> Iterator[list[tuple[Any, ...]]]:
        try:
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows
        except duckdb.Error as error:
            raise _sorted_out(error, self.path) from error

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def _sorted_out(error: duckdb.Error, path: Path) -> StoreError:
    if isinstance(error, (duckdb.IOException, duckdb.FatalException, duckdb.InternalException)):
        return StoreError(explain(error, path))
    return QueryError(str(error).strip())
