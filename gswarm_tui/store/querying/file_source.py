"""Opening a finished recording to read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.store.querying.running_query import RunningQuery, SpillFolder

if TYPE_CHECKING:
    import numpy.typing as npt


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
        raise open_error(error, path) from error


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


MEMORY = "2GB"
THREADS = 4
"""Login nodes are shared, and so are the 2 GB; what doesn't fit there goes to a temporary folder."""


class FileSource:
    """A file that nobody writes.

    Whatever a query says, it reads this file and no other; sorting more than fits into memory uses up to half
    of what is free where temporary files go.
    """

    running = False

    def __init__(self, path: Path) -> None:
        """Opens the file. Raises StoreError."""
        self.path = path
        self._connection = open_for_reading(path)
        self._asked: set[RunningQuery] = set()
        self._scratch = SpillFolder()
        limits = {"memory_limit": MEMORY, "threads": THREADS, **self._scratch.settings()}
        for name, value in (limits | {"enable_external_access": False, "lock_configuration": True}).items():
            self._connection.execute(f"SET {name} = ?", [value])

    def ask(self, sql: str, *values: object) -> Result:
        """The answer to one statement that reads. Raises QueryError, StoreError."""
        return self._new().answer(sql, values)

    def arrays(self, sql: str, *values: object) -> dict[str, npt.NDArray[Any]]:
        """The whole answer by column, NumPy masked where NULL. Raises QueryError, StoreError."""
        return self._new().arrays(sql, values)

    def _new(self) -> RunningQuery:
        try:
            asked = RunningQuery(self._connection.cursor(), self.path, self._asked.discard)
        except duckdb.Error as error:
            raise StoreError(explain(error, self.path)) from error
        self._asked.add(asked)
        return asked

    def interrupt(self) -> None:
        """Ends what isn't answered yet."""
        for asked in list(self._asked):
            asked.stop("the query was cancelled")

    def aside(self) -> QuerySource:
        """The same for another place that asks: interrupting or closing it leaves this one alone."""
        return _Aside(self)

    def close(self) -> None:
        """Let go of the file."""
        self.interrupt()
        self._connection.close()
        self._scratch.remove()


class _Aside(FileSource):
    """A connection of its own to what another one opened."""

    def __init__(self, opened: FileSource) -> None:
        self.path = opened.path
        self._connection = opened._connection.cursor()
        self._asked = set()

    def close(self) -> None:
        """Let go of the connection; the file stays open."""
        self.interrupt()
        self._connection.close()
