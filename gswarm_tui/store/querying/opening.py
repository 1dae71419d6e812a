"""Opening a recording file that somebody else may have made: only its data is used, and only if valid.

A DuckDB file can hold more than tables: views, macros and types that run when a query names them, or that
change what a query means. Such a file is refused by name. The file is attached read-only to a database in
memory, which can reach no other file; queries see the tables through views of that database.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from gswarm_agent.wire_payload import MAX_GPU_INDEX
from gswarm_tui.common.errors import quote
from gswarm_tui.common.paths import recordings_beside
from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, Settings, connect_in_memory
from gswarm_tui.store.errors import MissingFileError, NotARecordingError, StoreError, open_error
from gswarm_tui.store.querying.template import copy_views, template_file
from gswarm_tui.store.sql.older_files import ENERGY, ENERGY_TIME, is_older, lacks_energy, with_energy
from gswarm_tui.store.sql.schema import (
    EVENTS,
    GPU_LINKS,
    GPU_SAMPLES,
    GPUS,
    HOST_SAMPLES,
    LINKS,
    NODES,
    PROCESS_SAMPLES,
    PROFILE_EVENTS,
    PROFILE_NAMES,
    PROFILES,
    RECORDINGS,
    SCHEMA_VERSION,
    SESSIONS,
    TABLES,
    ColumnSchema,
    TableSchema,
    literal,
)
from gswarm_tui.store.sql.views import VIEW_NAMES, view_statements

OLDEST, NEWEST = datetime(1970, 1, 1), datetime(2200, 1, 1)  # noqa: DTZ001 (times of a recording have no zone)
LARGEST_NUMBER = 1e15
LONGEST_TEXT = 64 * 1024
"""Bytes of a text. Agents send at most a quarter, and the head takes session names up to this."""
LONGEST_HISTOGRAM = 1_000
"""Numbers of a histogram of util_pct; a recorder writes at most one for each percent."""
LONGEST_LISTS = {"command": 8 * 2**20, "options": 8 * 2**20, "capabilities": 16 * 2**20}
"""Bytes of the columns that grow with the number of nodes or metrics."""
MOST_BRACKETS = {"detail": 500, "messages": 500, "options": 100_000, "capabilities": 10_000}
"""Opening brackets outside of strings: JSON that nests too deep crashes parsers, and counting needs none."""
MOST_ROWS = {
    RECORDINGS: 100_000,
    NODES: 100_000,
    GPUS: 1_000_000,
    SESSIONS: 100_000,
    LINKS: 1_000_000,
    GPU_LINKS: 20_000_000,
    PROFILES: 100_000,
    PROFILE_NAMES: 10_000_000,
}
"""A hundred recordings of 1,024 nodes with 8,192 GPUs in one file, or a session each minute for ten weeks."""
_IDS = ("recording_id", "node_id", "gpu_id", "session_id", "profile_id")
_TIMES_US = ("util_us", "power_us", "idle_before_us", "idle_after_us", "bubble_us", "bubble_longest_us")
LARGEST = {
    **dict.fromkeys(_IDS, 10**6),
    "gpu_index": MAX_GPU_INDEX,
    "energy_used_ms": 10**13,
    **dict.fromkeys(("name_id", "short_name_id"), 10**7),
    **dict.fromkeys(("start_ns", "duration_ns"), 10**17),
    **dict.fromkeys(("samples", "bubbles"), 10**9),
    **dict.fromkeys(_TIMES_US, 10**15),
}
"""Largest values of columns. Ids count from 1 in each file; a step of energy covers the time since 1970 if a
node's clock was set, and the times of a minute are many in all, since a node may invent samples."""
_JSON_STRING = r'(?s)"(?:[^"\\]|\\.)*"'
_LARGE = (GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, *PROFILE_EVENTS)
"""Tables with millions of rows, which aren't read to check them."""
_REQUIRED = {
    (RECORDINGS.name, "started_at"),
    (NODES.name, "recording_id"),
    (NODES.name, "node"),
    (GPUS.name, "node_id"),
    (GPUS.name, "gpu_index"),
    (SESSIONS.name, "recording_id"),
    (SESSIONS.name, "name"),
    (SESSIONS.name, "started_at"),
    (EVENTS.name, "kind"),
    (EVENTS.name, "message"),
}
_CONTROL = "[\\p{C}\\p{Zl}\\p{Zp}\\x{FFFE}\\x{FFFF}]"
"""Control characters, overrides of the text's direction, and characters that XML forbids."""
SUFFIXES = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""Ends of the names of a recording's file and of the logs that DuckDB makes beside it."""
_CLAUSES = "\\b(CHECK|COLLATE|DEFAULT|FOREIGN|GENERATED|REFERENCES|UNIQUE)\\b"
"""Clauses of CREATE TABLE that change which values a table takes or how they compare."""
_FOREIGN = f"""
SELECT 'macro', function_name FROM duckdb_functions() WHERE NOT internal AND database_name = 'rec'
UNION ALL SELECT 'type', type_name FROM duckdb_types() WHERE NOT internal AND database_name = 'rec'
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
    path: Path, settings: Settings = NO_EXTENSIONS, folder: Path | None = None, *, for_people: bool = True
) -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database in memory that shows the recording's tables as views.

    Statements can reach this file only, and those in ``folder``; the configuration is locked. The views that
    people use in SQL take time to make, and the program's own queries don't need them.
    Raises NotARecordingError, StoreError.
    """
    check_regular_file(path)
    check_regular_file(target := without_links(path))
    connection = connect_in_memory({**NO_EXTENSIONS, **settings})
    try:
        if folder is not None:
            connection.execute("SET allowed_directories = ?", [[str(folder)]])
        template = template_file() if for_people else None
        attach(connection, target, "(READ_ONLY)", *([template] if template else ()))
        views = _views(connection, path)
        copied = copy_views(connection, template)
        connection.execute("; ".join(views))
        for statement in view_statements(with_columns=False) if for_people and not copied else ():
            connection.execute(statement)
        connection.execute("SET lock_configuration = true")
    except duckdb.Error as error:
        connection.close()
        raise open_error(error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def without_links(path: Path) -> Path:
    """Return the file that a symbolic link names: DuckDB looks for the logs beside that file."""
    try:
        return Path(os.path.realpath(path)) if path.is_symlink() else path
    except OSError:  # who opens the file says why it can't be reached
        return path


def check_regular_file(path: Path, *, may_be_missing: bool = False) -> None:
    """Raise StoreError unless it and its logs are regular files: opening a pipe would wait for ever."""
    for suffix in SUFFIXES:
        each = path.with_name(path.name + suffix)
        try:
            mode = each.stat().st_mode
        except FileNotFoundError:
            if not (suffix or may_be_missing):
                raise MissingFileError(f"there is no file {path}{recordings_beside(path)}") from None
            continue
        except OSError:
            continue  # DuckDB reports it
        if stat.S_ISDIR(mode):
            raise StoreError(f"{each} is a folder; name a file with --db")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{each} is a pipe or a device, not a file; name another one with --db")


def attach(connection: duckdb.DuckDBPyConnection, path: Path, options: str, *others: Path) -> None:
    """Attach the file as ``rec`` after denying access to all but it and ``others``. Raises duckdb.Error."""
    files = [f"{file}{suffix}" for file in (path, *others) for suffix in SUFFIXES]
    connection.execute("SET allowed_paths = ?", [files])
    connection.execute("SET enable_external_access = false")
    connection.execute(f"ATTACH {literal(str(path))} AS rec {options}")


def checked_columns(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, dict[str, str]]:
    """Return the columns with their types by table of the attached file ``rec``, none if it is empty.

    Raises:
        NotARecordingError: it is another program's database.
        StoreError: something in it could change a query, or a newer version wrote it.
    """
    existing: dict[str, dict[str, str]] = {}
    for name, column, kind in connection.execute(_COLUMNS).fetchall():
        existing.setdefault(name, {})[column] = kind
    if not existing:
        if connection.execute(_NOT_EMPTY).fetchall():  # views, or tables of other schemas
            raise NotARecordingError(path)
        return {}
    for table in TABLES:
        existing.setdefault(table.name, {})
    needed = [(one.name, key.name) for one in TABLES for key in one.columns[:2] if not one.optional]
    needed += [(RECORDINGS.name, "schema_version"), (LINKS.name, "last_ts")]
    if any(column not in existing[name] for name, column in needed):
        raise NotARecordingError(path)
    for known in TABLES:
        for column in known.columns:
            found = existing[known.name].get(column.name, column.type)
            if found != column.type and not is_older(found, column.type):
                raise StoreError(_invalid(path, known, column, f"has the type {found}, not {column.type}"))
    names = {"views": list(VIEW_NAMES), "tables": [table.name for table in TABLES]}
    for kind, name in connection.execute(_FOREIGN, names).fetchall():
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


def _views(connection: duckdb.DuckDBPyConnection, path: Path) -> list[str]:
    """Check all values; return the statements that show the tables. Raises StoreError, duckdb.Error."""
    existing = checked_columns(connection, path)
    if not existing:
        log = f"{path.name}.wal"
        raise NotARecordingError(
            path, f"has no tables; if it is a copy of a recording, copy {log}, too, or name another with --db"
        )
    # Plans rely on a file's statistics, which a crafted file can falsify, unless the optimizer is off.
    connection.execute("PRAGMA disable_optimizer")
    counts = _rows(connection, existing)
    for table, count in counts.items():
        if count > MOST_ROWS.get(table, count):
            most = f"over {MOST_ROWS[table]:,}"
            raise StoreError(f"{path} isn't a valid recording: it has {count:,} {table.name}, {most}")
    small = [table for table in counts if table not in _LARGE]
    wild = {table: _check_values(connection, path, table, existing[table.name]) for table in small}
    connection.execute("PRAGMA enable_optimizer")
    large = [table for table in counts if table in _LARGE]
    wild |= {table: _check_values(connection, path, table, existing[table.name]) for table in large}
    views = []
    for table in TABLES:
        there = existing[table.name]
        source = f"rec.main.{table.name}"
        if table is GPU_SAMPLES and lacks_energy(there):
            source = f"({with_energy('rec.main.')})"
            there = there | dict.fromkeys((ENERGY, ENERGY_TIME), "BIGINT")
        columns = ", ".join(
            _shown(column, there.get(column.name), column.name in wild.get(table, ()))
            for column in table.columns
        )
        rows = f"FROM {source}" if there else "WHERE false"
        views.append(f"CREATE VIEW {table.name} AS SELECT {columns} {rows}")
    return views


def _rows(
    connection: duckdb.DuckDBPyConnection, existing: Mapping[str, Mapping[str, str]]
) -> dict[TableSchema, int]:
    """Return the tables that have rows, with their numbers where they are limited; most have no profiles."""
    numbers = (number for number, table in enumerate(TABLES) if existing[table.name])
    counts = (
        f"(SELECT {number}, {'count(*)' if TABLES[number] in MOST_ROWS else '1'} "  # noqa: S608 (own names)
        f"FROM rec.main.{TABLES[number].name} LIMIT 1)"
        for number in numbers
    )
    found = connection.execute(" UNION ALL ".join(counts)).fetchall()
    return {TABLES[number]: count for number, count in sorted(found) if count}


def _shown(column: ColumnSchema, kind: str | None, wild: bool) -> str:
    """Return a column as a view shows it: cleaned, as the head cleans the values of a live run.

    ``kind`` is its type in the file.
    """
    name = column.name
    if kind is None:  # in an older version
        return f"NULL::{column.type} AS {name}"
    if wild:
        return f"CASE WHEN abs({name}) <= {LARGEST_NUMBER:g} THEN {name} END AS {name}"
    if column.type == "VARCHAR":
        return f"regexp_replace({name}, '{_CONTROL}', ' ', 'g') AS {name}"
    return name if kind == column.type else f"TRY_CAST({name} AS {column.type}) AS {name}"


def _check_values(
    connection: duckdb.DuckDBPyConnection, path: Path, table: TableSchema, existing: Mapping[str, str]
) -> set[str]:
    """Return the columns with numbers that no metric reaches.

    Of samples, DuckDB's statistics give the range of a whole column at once, so that days of them take no
    time; they may be wider than the values after rows were deleted, so a query checks what they report. A
    crafted file may have wrong statistics: so other tables are read, by plans that don't rely on them.
    Raises StoreError for values that no recorder writes.
    """
    stored = f"rec.main.{table.name}"
    columns = [column for column in table.columns if column.name in existing]
    wild: set[str] = set()
    ranges: Sequence[Any] = [None] * len(columns)
    if table in _LARGE:
        listed = ", ".join(f"stats({column.name})" for column in columns)
        found = connection.execute(f"SELECT {listed} FROM {stored} LIMIT 1").fetchall()  # noqa: S608 (own names)
        if not found:
            return wild
        ranges = found[0]
    checks = []
    for column, stats in zip(columns, ranges, strict=True):
        checks += [(column, *suspicion) for suspicion in _suspicions(table, column, stats)]
        if column.type in {"FLOAT", "DOUBLE"} and not _is_within(stats, -LARGEST_NUMBER, LARGEST_NUMBER):
            wild.add(column.name)
    if checks:
        listed = ", ".join(f"bool_or({condition})" for _, _, condition in checks)
        (row,) = connection.execute(f"SELECT {listed} FROM {stored}").fetchall()  # noqa: S608 (own names)
        for (column, problem, _), true in zip(checks, row, strict=True):
            if true:
                raise StoreError(_invalid(path, table, column, problem))
    if table.key:
        keys = ", ".join(table.key)
        repeated = f"SELECT count(*) > count(DISTINCT ({keys})) FROM {stored}"  # noqa: S608 (own names)
        if connection.execute(repeated).fetchall()[0][0]:
            raise StoreError(f"{path} isn't a valid recording: {table.name} has two rows of one {keys}")
    return wild


def _suspicions(table: TableSchema, column: ColumnSchema, stats: Any) -> Iterator[tuple[str, str]]:
    """Yield the problems that a column's statistics (None: unknown) allow, each with its SQL condition."""
    name = column.name
    required = name in table.key or column.sql.endswith("NOT NULL") or (table.name, name) in _REQUIRED
    if required and (stats is None or stats["has_null"]):
        yield "is NULL in some rows", f"{name} IS NULL"
    if (largest := LARGEST.get(name)) is not None and not _is_within(stats, 0, largest):
        ends = (f"list_min({name})", f"list_max({name})") if column.type.endswith("[]") else (name,)
        outside = " OR ".join(f"{end} NOT BETWEEN 0 AND {largest}" for end in ends)
        yield f"has numbers outside 0 to {largest:,}", outside
    if column.type == "TIMESTAMP" and not _is_within(stats, OLDEST, NEWEST):
        outside = f"{name} NOT BETWEEN TIMESTAMP '{OLDEST}' AND TIMESTAMP '{NEWEST}'"
        yield f"has times outside {OLDEST:%Y} to {NEWEST:%Y}", outside
    if column.type.endswith("[]"):
        yield f"has lists of more than {LONGEST_HISTOGRAM:,} numbers", f"len({name}) > {LONGEST_HISTOGRAM}"
    if column.type == "VARCHAR":
        longest, brackets = LONGEST_LISTS.get(name, LONGEST_TEXT), MOST_BRACKETS.get(name)
        length = math.inf if stats is None else stats.get("max_string_length") or 0
        if length > longest:
            yield f"has text of more than {longest:,} bytes", f"strlen({name}) > {longest}"
        if brackets is not None and length > brackets:
            opening = (
                f"regexp_replace(regexp_replace({name}, '{_JSON_STRING}', '', 'g'), '[^{{\\[]', '', 'g')"
            )
            yield "has JSON with too many brackets", f"strlen({opening}) > {brackets}"


def _is_within(stats: Any, least: Any, most: Any) -> bool:
    """Return whether the statistics prove that all values lie in a range."""
    if stats is None:
        return False
    if not stats["has_no_null"]:
        return True
    try:
        return bool(least <= stats["min"] and stats["max"] <= most)
    except (KeyError, TypeError):  # no statistics, or a time beyond Python's years
        return False


def _invalid(path: Path, table: TableSchema, column: ColumnSchema, problem: str) -> str:
    return f"{path} isn't a valid recording: {table.name}.{column.name} {problem}; use another copy"
