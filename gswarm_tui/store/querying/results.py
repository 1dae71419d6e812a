"""Query results, and what can be queried: a finished file, or the recorder that writes one.

Imports quickly: modules that only pass results on don't load the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gswarm_tui.store.errors import StoreError


class QueryError(StoreError):
    """The query is wrong or not allowed; the message gives the reason in DuckDB's words."""


@dataclass(frozen=True)
class Result:
    """A query's column names, DuckDB's names of their types, and its rows in batches, which can be read once.

    Values are those of DuckDB's Python client; times are ``datetime`` in UTC without a time zone. Call
    ``close`` unless all rows are read.
    """

    names: Sequence[str]
    types: Sequence[str]
    batches: Iterator[list[tuple[Any, ...]]]
    close: Callable[[], None] = lambda: None

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows. Raises StoreError."""
        return [row for batch in self.batches for row in batch]

    def dicts(self) -> list[dict[str, Any]]:
        """Return all rows by column. Raises StoreError."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows()]


class QuerySource(Protocol):
    """A recording file that takes read-only queries; ``running`` is true while it is being written."""

    path: Path
    running: bool

    def query(self, sql: str, *values: object) -> Result:
        """Return the result of one statement, with ``?`` for values. Raises QueryError, StoreError."""

    def interrupt(self) -> None:
        """Cancel running queries, from any thread: they raise QueryError."""

    def close(self) -> None:
        """Close it."""
