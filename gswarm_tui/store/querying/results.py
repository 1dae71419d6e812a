"""What answers are, and where they come from: a finished file, or the recorder that is writing one.

Quick to import: who only hands answers on doesn't wait for the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gswarm_tui.store.errors import StoreError


class QueryError(StoreError):
    """The query is wrong, or asks for what isn't allowed; the message says why in DuckDB's words."""


@dataclass(frozen=True)
class Result:
    """A query's columns, DuckDB's names of their types, and its rows, which come in batches, once.

    Values are what DuckDB's Python client gives: times are ``datetime`` without a zone, in UTC. Who doesn't
    take all rows calls ``close``.
    """

    names: Sequence[str]
    types: Sequence[str]
    batches: Iterator[list[tuple[Any, ...]]]
    close: Callable[[], None] = lambda: None

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows. Raises StoreError."""
        return [row for batch in self.batches for row in batch]

    def dicts(self) -> list[dict[str, Any]]:
        """All rows by column. Raises StoreError."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows()]


class QuerySource(Protocol):
    """A recording file that only answers questions; ``running`` says whether it is being written."""

    path: Path
    running: bool

    def ask(self, sql: str, *values: object) -> Result:
        """The answer to one statement that reads, with ``?`` for values. Raises QueryError, StoreError."""

    def interrupt(self) -> None:
        """Ends what isn't answered yet, from any thread: QueryError is raised where it is awaited."""

    def close(self) -> None:
        """Let go of it."""
