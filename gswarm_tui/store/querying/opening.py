"""Opening a recording file that somebody else may have made: only its data is used.

A DuckDB file can hold more than tables: views, macros and types that run when a query names them, or that
change what a query means. Such a file is refused by name. The file is attached read-only to a database in
memory, which can reach no other file; queries see the tables through views of that database.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import duckdb

from gswarm_tui.common.errors import quote
from gswarm_tui.common.paths import recordings_beside
from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, Settings, connect_in_memory
from gswarm_tui.store.errors import MissingFileError, NotARecordingError, StoreError, open_error
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import REFERENCES, SCHEMA_VERSION, TableSchema, literal
from gswarm_tui.store.sql.views import VIEW_NAMES, view_statements

_NOT_OURS = "isn't a recording of gswarm-tui; name one with --db"
_CONTROL = "[\\p{C}\\p{Zl}\\p{Zp}\\x{FFFE}\\x{FFFF}]"
"""Control characters, overrides of the text's direction, and characters that XML forbids."""
_CLAUSES = "\\b(CHECK|COLLATE|DEFAULT|FOREIGN|GENERATED|REFERENCES|UNIQUE)\\b"
"""Clauses of CREATE TABLE that change which values a table takes or how they compare."""
_MACROS = "SELECT 'macro', function_name FROM duckdb_functions() WHERE NOT internal AND database_name = 'rec'"
_FOREIGN = f"""
SELECT 'type', type_name FROM duckdb_types() WHERE NOT internal AND database_name = 'rec'
UNION ALL SELECT 'trigger', trigger_name FROM duckdb_triggers() WHERE database_name = 'rec'
UNION ALL SELECT 'view', view_name FROM duckdb_views()
  WHERE NOT internal AND database_name = 'rec' AND (schema_name <> 'main' OR view_name NOT IN $views)
UNION ALL SELECT regexp_extract(sql, '{_CLAUSES}') || ' clause of the table', table_name FROM duckdb_tables()
  WHERE database_name = 'rec' AND schema_name = 'main' AND table_name IN $tables
    AND regexp_matches(sql, '{_CLAUSES}')
LIMIT 1
"""  # noqa: S608 (own names)
_NOT_EMPTY = """
SELECT 1 FROM duckdb_tables() WHERE database_name = 'rec'
UNION ALL SELECT 1 FROM duckdb_views() WHERE NOT internal AND database_name = 'rec'
LIMIT 1
"""
_COLUMNS = """
SELECT c.table_name, c.column_name, c.data_type
FROM duckdb_columns() c JOIN duckdb_tables() t USING (table_oid, database_name)
WHERE database_name = 'rec' AND c.schema_name = 'main'
"""


def open_for_reading(
    path: Path,
    settings: Settings = NO_EXTENSIONS,
    folder: Path | None = None,
    *,
    for_people: bool = True,
    tables: Collection[str] = (),
) -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database in memory that shows the recording's tables as views.

    Statements can reach this file only, and those in ``folder``; the configuration is locked. The views that
    people use in SQL take time to make, and the program's own queries don't need them, nor all ``tables``.
    Raises NotARecordingError, StoreError.
    """
    check_regular_file(path)
    check_regular_file(target := without_links(path))
    connection = connect_in_memory({**NO_EXTENSIONS, **settings})
    try:
        if folder is not None:
            connection.execute("SET allowed_directories = ?", [[str(folder)]])
        attach(connection, target, "(READ_ONLY)")
        show_tables(connection, path, tables)
        for statement in view_statements() if for_people else ():
            connection.execute(statement)
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        connection.close()
        raise open_error(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def with_logs(path: Path) -> list[Path]:
    """Return a recording's file and the logs that DuckDB makes beside it."""
    return [path.with_name(path.name + end) for end in ("", ".wal", ".wal.checkpoint", ".wal.recovery")]


def remove_with_logs(path: Path) -> None:
    """Remove a recording's file and its logs, as far as possible."""
    for each in with_logs(path):
        with suppress(OSError):
            each.unlink(missing_ok=True)


def without_links(path: Path) -> Path:
    """Return the file that a symbolic link names: DuckDB looks for the logs beside that file."""
    try:
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    except OSError:  # who opens the file says why it can't be reached
        return path


def check_regular_file(path: Path, *, may_be_missing: bool = False) -> None:
    """Raise StoreError unless it and its logs are regular files: opening a pipe would wait for ever."""
    for each in with_logs(path):
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            if each == path and not may_be_missing:
                raise MissingFileError(f"there is no file {path}{recordings_beside(path)}") from None
            continue
        except OSError:
            continue  # DuckDB reports it
        if stat.S_ISDIR(mode):
            raise StoreError(f"{each} is a folder; name a file with --db")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{each} is a pipe or a device, not a file; name another one with --db")


def reading_paths(*files: Path) -> list[str]:
    """Return the paths of files and their logs, for ``allowed_paths``."""
    return [str(each) for file in files for each in with_logs(file)]


def attach(connection: duckdb.DuckDBPyConnection, path: Path, options: str, *others: Path) -> None:
    """Attach the file as ``rec`` after denying access to all but it and ``others``. Raises duckdb.Error."""
    connection.execute("SET allowed_paths = ?", [reading_paths(path, *others)])
    connection.execute("SET enable_external_access = false")
    connection.execute(f"ATTACH {literal(str(path))} AS rec {options}")


def checked_columns(
    connection: duckdb.DuckDBPyConnection, path: Path, *, macros: bool = True
) -> dict[str, dict[str, str]]:
    """Return the columns with their types by table of the attached file ``rec``, none if it is empty.

    The search for ``macros`` takes as long as all else here; only a query that names ``rec`` can reach one.

    Raises:
        NotARecordingError: it is another program's database.
        StoreError: something in it could change a query, or a newer version wrote it.
    """
    existing: dict[str, dict[str, str]] = {}
    for name, column, kind in connection.execute(_COLUMNS).fetchall():
        existing.setdefault(name, {})[column] = kind
    if not existing:
        if connection.execute(_NOT_EMPTY).fetchall():  # views, or tables of other schemas
            raise NotARecordingError(f"{path} {_NOT_OURS}")
        return {}
    for table in schema.TABLES:
        existing.setdefault(table.name, {})
    # Tables that recordings of all versions have.
    old = {"recordings", "nodes", "gpus", "gpu_samples", "host_samples", "sessions", "events", "links"}
    tables = [table for table in schema.TABLES if table.name in old]
    keys = [(table.name, column.name) for table in tables for column in table.columns[:2]]
    if any(column not in existing[name] for name, column in [*keys, ("recordings", "schema_version")]):
        raise NotARecordingError(f"{path} {_NOT_OURS}")
    for known in schema.TABLES:
        for column in known.columns:
            if (found := existing[known.name].get(column.name, column.type)) != column.type:
                raise StoreError(
                    f"{path} isn't a valid recording: {known.name}.{column.name} has the type {found}, "
                    f"not {column.type}; use another copy"
                )
    names = {"views": list(VIEW_NAMES), "tables": [table.name for table in schema.TABLES]}
    foreign = connection.execute(_FOREIGN, names).fetchall()
    for kind, name in foreign + (connection.execute(_MACROS).fetchall() if macros else []):
        raise StoreError(
            f"{path} has the {kind} {quote(name)}, which no recording has and which could change results; "
            "drop it with DuckDB if you trust the file, or name another file with --db"
        )
    newest = connection.execute("SELECT max(schema_version) FROM rec.main.recordings").fetchall()[0][0]
    if newest is not None and newest > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was made by a newer gswarm-tui; update gswarm-tui, or name another file with --db"
        )
    return existing


def show_tables(connection: duckdb.DuckDBPyConnection, path: Path, tables: Collection[str]) -> None:
    """Create a view of each table, or of these only, in which missing columns are NULL.

    Raises StoreError, duckdb.Error.
    """
    existing = checked_columns(connection, path, macros=not tables)
    if not existing:
        raise NotARecordingError(
            f"{path} has no tables; if it is a copy of a recording, copy {path.name}.wal, too, "
            "or name another with --db"
        )
    for table in schema.TABLES:
        if tables and table.name not in tables:
            continue
        there = existing[table.name]
        rows = f"FROM rec.main.{table.name}" if there else "WHERE false"
        connection.execute(f"CREATE VIEW {table.name} AS SELECT {shown_columns(table, there)} {rows}")


def shown_columns(table: TableSchema, there: Mapping[str, str], before: Mapping[str, int] = {}) -> str:
    """Return the columns of a table as SQL: missing ones are NULL, and ids are raised by ``before``."""
    shown = []
    for column in table.columns:
        if column.name not in there:
            shown.append(f"NULL::{column.type} AS {column.name}")
        elif column.type == "VARCHAR":  # a terminal obeys control characters
            shown.append(f"regexp_replace({column.name}, '{_CONTROL}', ' ', 'g') AS {column.name}")
        elif added := before.get(REFERENCES.get(column.name, "")):
            shown.append(f"{column.name} + {added} AS {column.name}")
        else:
            shown.append(column.name)
    return ", ".join(shown)
