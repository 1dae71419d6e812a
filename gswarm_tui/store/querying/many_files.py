"""Read-only access to many recording files as one, whose tables say of which run each row is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, connect_in_memory
from gswarm_tui.store.errors import StoreError, open_error
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.opening import (
    check_regular_file,
    checked_columns,
    reading_paths,
    shown_columns,
    without_links,
)
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import ID_TABLES, literal
from gswarm_tui.store.sql.views import view_statements

MOST_FILES = 250
"""Each takes 20 ms of CPU time to open, and then 3 MB."""
_LARGEST_ID = 2**31 // MOST_FILES
_COPIED = frozenset({"recordings", "nodes", "gpus", "sessions", "findings", "links"})
"""Small tables, which all queries join: they are copied into memory."""


class ManyFiles(FileSource):
    """A QuerySource on finished recordings by the name of each run.

    Tables and views have a column ``run``. Ids are made distinct by adding those of the files before.
    """

    def __init__(
        self,
        runs: Mapping[str, Path],
        skip: Callable[[Path, StoreError], None],
        report: Callable[[float], None],
    ) -> None:
        """Open the files; ``skip`` gets the errors of those that can't be read, or raises them.

        ``report`` gets the share done, from 0 to 1. Raises StoreError.
        """
        self._runs, self._skip, self._report = runs, skip, report
        super().__init__(Path(f"{len(runs)} recordings"))

    def _connect(self) -> duckdb.DuckDBPyConnection:
        connection = connect_in_memory({**NO_EXTENSIONS, **self.limits})
        try:
            files = [without_links(path) for path in self._runs.values()]
            connection.execute("SET allowed_paths = ?", [reading_paths(*files)])
            connection.execute("SET enable_external_access = false")
            found: list[_CheckedFile | None] = []
            for number, path in enumerate(self._runs.values()):
                self._report(number / len(self._runs))
                try:
                    found.append(_checked_file(connection, path))
                except (duckdb.Error, StoreError) as error:
                    self._skip(path, error if isinstance(error, StoreError) else open_error(error, path))
                    found.append(None)
            rows: dict[str, list[str]] = {}
            before = dict.fromkeys(ID_TABLES, 0)
            for number, (run, file) in enumerate(zip(self._runs, found, strict=True)):
                for name, select in file.attached(connection, f"r{number}", run, before) if file else ():
                    rows.setdefault(name, []).append(select)
            for table in schema.TABLES:
                kind = "TABLE" if table.name in _COPIED else "VIEW"
                nothing = f"SELECT NULL::VARCHAR AS run, {shown_columns(table, {})} WHERE false"
                selects = " UNION ALL ".join(rows.get(table.name, [nothing]))
                connection.execute(f"CREATE {kind} {table.name} AS {selects}")
            for statement in view_statements(by_run=True):
                connection.execute(statement)
            connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            connection.close()
            raise open_error(error, self.path) from error
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass(frozen=True)
class _CheckedFile:
    """A recording file with its columns by table, the tables that have rows, and the highest of its ids."""

    path: Path
    columns: Mapping[str, Mapping[str, str]]
    filled: frozenset[str]
    highest: Mapping[str, int]

    def attached(
        self, connection: duckdb.DuckDBPyConnection, name: str, run: str, before: dict[str, int]
    ) -> Iterator[tuple[str, str]]:
        """Attach the file; yield its tables with the query for their rows, then add its ids to ``before``."""
        connection.execute(f"ATTACH {literal(str(without_links(self.path)))} AS {name} (READ_ONLY)")
        for table in schema.TABLES:
            if table.name in self.filled:
                shown = shown_columns(table, self.columns[table.name], before)
                yield table.name, f"SELECT {literal(run)} AS run, {shown} FROM {name}.main.{table.name}"  # noqa: S608
        before.update({column: before[column] + highest for column, highest in self.highest.items()})


def _checked_file(connection: duckdb.DuckDBPyConnection, path: Path) -> _CheckedFile:
    """Check a file while no other is attached, as DuckDB lists the columns of all. Raises StoreError."""
    check_regular_file(path)
    connection.execute(f"ATTACH {literal(str(without_links(path)))} AS rec (READ_ONLY)")
    try:
        columns = checked_columns(connection, path)
        sizes = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'rec' AND estimated_size > 0"
        filled = frozenset(name for (name,) in connection.execute(sizes).fetchall())
        ids = {column: table for column, table in ID_TABLES.items() if table in filled}
        query = ", ".join(f"(SELECT max({column}) FROM rec.main.{table})" for column, table in ids.items())  # noqa: S608
        highest = dict(zip(ids, connection.execute(f"SELECT {query}").fetchall()[0], strict=True))
    finally:
        connection.execute("DETACH rec")
    if any(one is None or not 0 <= one <= _LARGEST_ID for one in highest.values()):
        raise StoreError(f"{path} has ids that are too large to read it with others; name it alone")
    return _CheckedFile(path, columns, filled, highest)
