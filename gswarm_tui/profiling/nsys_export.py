"""Access to a SQLite export of Nsight Systems: whether it is whole and known, its tables and columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gswarm_tui.common.errors import printable
from gswarm_tui.profiling.report_text import ReportError, clean_text

SCHEMAS = ("2", "3")
_LONGEST_VALUE = 16 << 20
_STEPS = 1_000_000
"""Instructions of SQLite's machine between two looks for signals: some milliseconds."""
_METADATA = ("META_DATA_EXPORT", "EXPORT_META_DATA")
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""Errors of a damaged file; SQLite's message may have its bytes, which sqlite3 then can't decode."""


class NsysExport:
    """A SQLite export of Nsight Systems, open for reading; ``close`` it afterwards.

    Its methods raise ``UNREADABLE`` where the file is damaged; ``unreadable`` makes a sentence of it.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Open an export; ``name`` is its report's in messages. Raises ReportError."""
        self._name = name
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.text_factory = lambda data: data.decode(errors="replace")
            # Signals, such as that of the limit of time, arrive while Python runs, so also in a long query.
            self._connection.set_progress_handler(lambda: 0, _STEPS)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            tables = self.rows("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
            self.columns: dict[str, set[str]] = {}
            for table, sql in tables:
                columns = self.rows(f"PRAGMA table_xinfo({_quoted(table)})")
                # A column's last field is 0 unless it is computed. Virtual tables are computed as a whole.
                if any(column[-1] for column in columns) or not str(sql).upper().startswith("CREATE TABLE"):
                    raise self.invalid(clean_text(table), "has computed columns")
                self.columns[table] = {column[1] for column in columns}
            self.metadata = self._read_metadata()
        except UNREADABLE as error:
            raise self.unreadable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _read_metadata(self) -> dict[str, str]:
        """Return what the export says of itself. Raises ReportError for another schema or database."""
        table = next((name for name in _METADATA if name in self.columns), None)
        if table is None or "StringIds" not in self.columns:
            raise ReportError(f"{self._name} has no tables of an export of Nsight Systems.")
        rows = self.rows(f"SELECT name, value FROM {table}")  # noqa: S608 (own names)
        found = {str(name): str(value) for name, value in rows}
        schema = found.get("EXPORT_SCHEMA_VERSION", "")
        if schema.partition(".")[0] not in SCHEMAS:
            raise ReportError(
                f"{self._name} has the export schema {clean_text(schema) or 'of an unknown version'}; this "
                f"gswarm-tui reads schemas {' and '.join(SCHEMAS)}. Update gswarm-tui."
            )
        return found

    def execute(self, sql: str) -> sqlite3.Cursor:
        """Run a query, whose rows can be fetched in batches."""
        return self._connection.execute(sql)

    def rows(self, sql: str) -> list[Any]:
        """Return all rows of a query."""
        return self._connection.execute(sql).fetchall()

    def has(self, table: str, *columns: str) -> bool:
        """Return whether there is a table with these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def require(self, table: str, columns: Sequence[str]) -> None:
        """Raise ReportError if a table lacks a column."""
        if missing := [name for name in columns if name not in self.columns[table]]:
            raise self.invalid(table, f"lacks the column {missing[0]}")

    def first(self, table: str, column: str) -> Any:
        """Return a column's value in the first row, None without one."""
        found = self.rows(f"SELECT {column} FROM {table} LIMIT 1") if self.has(table, column) else []  # noqa: S608
        return found[0][0] if found else None

    def most(self, table: str, column: str) -> int:
        """Return the largest value of a column of row numbers, 0 without any. Raises ReportError."""
        most = self.rows(f"SELECT max({column}) FROM {table}")[0][0]  # noqa: S608 (own names)
        if most is not None and not (isinstance(most, int) and 0 <= most < 10**9):
            raise self.invalid(table, "has row numbers beyond a thousand million")
        return most or 0

    def has_rows(self, table: str) -> bool:
        """Return whether a table has rows."""
        return bool(self.rows(f"SELECT 1 FROM {_quoted(table)} LIMIT 1"))  # noqa: S608 (quoted)

    def labels(self, table: str) -> dict[Any, str]:
        """Return the labels of a table of constants by their numbers, none if it is absent."""
        if not self.has(table, "id", "label"):
            return {}
        rows = self.rows(f"SELECT id, label FROM {table}")  # noqa: S608 (own names)
        return {key: clean_text(str(label)) for key, label in rows}

    def invalid(self, table: str, problem: str) -> ReportError:
        """Return the error for a table that no Nsight Systems writes."""
        return ReportError(
            f"{self._name} isn't a valid report: its table {table} {problem}. Export it again."
        )

    def unreadable(self, error: Exception) -> ReportError:
        """Return the error for a damaged file."""
        return ReportError(
            f"{self._name} is damaged or cut short ({printable(str(error))}). Copy or export it again."
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
