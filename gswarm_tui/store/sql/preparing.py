"""The schema of a recording file just opened: made in a new one, brought up to date in an older one."""

from __future__ import annotations

from pathlib import Path

import duckdb

from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.sql.schema import (
    RECORDINGS,
    SCHEMA_VERSION,
    TABLES,
    create_statements,
    upgrade_statements,
)
from gswarm_tui.store.sql.views import view_statements

COLUMNS = (
    "SELECT schema_name, table_name, column_name FROM duckdb_columns() "
    "WHERE database_name = 'rec' AND NOT internal "
    "AND table_oid IN (SELECT table_oid FROM duckdb_tables() WHERE database_name = 'rec')"
)
"""Every column of every table of the file."""


def prepare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Sees that the attached database ``rec`` has all tables, columns and views. Raises StoreError."""
    existing: dict[str, set[str]] = {}
    for _schema, table, column in connection.execute(COLUMNS).fetchall():
        existing.setdefault(table, set()).add(column)
    connection.execute("BEGIN")
    if not existing:
        statements = create_statements()
    elif {table.name for table in TABLES} <= existing.keys() and _is_ours(existing):
        newest = connection.execute("SELECT max(schema_version) FROM recordings").fetchall()[0][0]
        if newest is not None and newest > SCHEMA_VERSION:
            raise StoreError(f"{path} was made by a newer gswarm-tui; update, or name another file with --db")
        statements = upgrade_statements(existing)
    else:
        tables = ", ".join(sorted(existing)[:3])
        raise StoreError(
            f"{path} is another program's database (with tables {tables}); name another file with --db"
        )
    for statement in statements:
        connection.execute(statement)
    for statement in view_statements():
        connection.execute(statement)
    connection.execute("COMMIT")


def _is_ours(existing: dict[str, set[str]]) -> bool:
    return all(key.name in existing[t.name] for t in TABLES for key in t.columns[:2]) and (
        RECORDINGS["schema_version"].name in existing[RECORDINGS.name]
    )
