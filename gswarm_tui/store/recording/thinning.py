"""Thinning of a finished recording: a copy without samples that has the same figures replaces the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_IWUSR
from tempfile import TemporaryDirectory

import duckdb

from gswarm_tui.store.duckdb_internals import NO_EXTENSIONS, Settings, SpillFolder, connect_in_memory
from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.figures.definitions import LONGEST_INTERVAL_S
from gswarm_tui.store.querying.opening import attach, check_regular_file, show_tables
from gswarm_tui.store.recording.database import ALL_COLUMNS
from gswarm_tui.store.recording.files import file_bytes, has_log, require_own, wal_path
from gswarm_tui.store.recording.minutes import add_all_sums
from gswarm_tui.store.recording.profiles import remove_unfinished
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import SCHEMA_VERSION, STORAGE_VERSION, TableSchema, literal
from gswarm_tui.store.sql.views import described, view_statements

_LIMITS: Settings = {"memory_limit": "1GB", "threads": 2}
_BLOCK = 256 * 1024
_SAMPLES = (schema.GPU_SAMPLES, schema.HOST_SAMPLES, schema.PROCESS_SAMPLES, *schema.LISTING_TABLES.values())
_FRAMES = ("ts", "node_id", "seq", "interval_ms", "late_ms", "missed", "cpu_pct", "memory_used_mib")
"""Columns of host samples that stay: what frames cover, and what summaries have of hosts."""
_NO_NUMBERS = {"ts", "gpu_id", *schema.PROCESS_KEYS}

# Summaries read samples in the first and last minutes of a span, and in minutes that have no sums: a span
# cuts minutes, and a reading of an energy counter that began before it.
_SPANS = """
CREATE TEMP TABLE spans AS
SELECT recording_id, started_at, ended_at AS until FROM recordings
UNION ALL
SELECT recording_id, s.started_at, coalesce(s.ended_at, r.ended_at)
FROM sessions s JOIN recordings r USING (recording_id);
CREATE TEMP TABLE edges AS
SELECT DISTINCT date_trunc('minute', moment) + to_minutes(unnest(range(-2, 4))) AS minute
FROM (SELECT unnest([started_at, until]) AS moment FROM spans)
"""
_ENDS = """
CREATE TEMP TABLE ends AS
SELECT DISTINCT gpu_id, pid, unnest([min(ts), max(ts)]) AS ts
FROM process_samples JOIN gpus USING (gpu_id) JOIN nodes USING (node_id) JOIN spans USING (recording_id)
WHERE ts > spans.started_at AND ts <= spans.until
GROUP BY gpu_id, pid, spans.started_at, spans.until
"""


def removable_bytes(path: Path) -> int:
    """Return about how much thinning would free. Raises StoreError if the file can't be thinned."""
    with _opened(path) as connection:
        return _removable_bytes(connection)


def _removable_bytes(connection: duckdb.DuckDBPyConnection) -> int:
    """Return the bytes of blocks without what stays; of those of GPU samples, the share without edges."""
    connection.execute(_SPANS)
    gone = "avg((date_trunc('minute', ts) NOT IN (FROM edges))::INTEGER)"
    ((share,),) = connection.execute(f"SELECT coalesce({gone}, 1) FROM gpu_samples").fetchall()  # noqa: S608
    kept, of_gpus, others = set[int](), set[int](), set[int]()
    for table in schema.TABLES:
        sql = f"SELECT block_id, column_name FROM pragma_storage_info('rec.{table.name}') WHERE persistent"  # noqa: S608
        with suppress(duckdb.CatalogException):  # files of older versions lack tables
            for block, column in connection.execute(sql).fetchall():
                stays = table not in _SAMPLES or (table is schema.HOST_SAMPLES and column in _FRAMES)
                (kept if stays else of_gpus if table is schema.GPU_SAMPLES else others).add(block)
    return int(_BLOCK * (share * len(of_gpus - kept) + len(others - of_gpus - kept)))


def thin(path: Path, now: float) -> int:
    """Replace a recording by a copy without samples; return the bytes that this frees. Raises StoreError.

    The copy keeps the file's time and permissions. If it fails or is interrupted, the file is as before.
    """
    try:
        # Two commands at once have a copy each, in hidden folders, which lists of runs leave out.
        with TemporaryDirectory(".thin", f".{path.name}.", path.parent, ignore_cleanup_errors=True) as folder:
            return _thin(path, Path(folder) / path.name, now)
    except duckdb.Error as error:
        raise StoreError(explain(error, path)) from error
    except OSError as error:
        raise StoreError(f"{path} can't be thinned: {error.strerror or error}") from error


def _thin(path: Path, copy: Path, now: float) -> int:
    before = path.stat()
    with _opened(path, copy) as connection:
        lacks = before.st_size - _removable_bytes(connection) - shutil.disk_usage(path.parent).free
        if lacks > 0:
            raise StoreError(f"the disk of {path} has no room for the copy; free {lacks / 1e6:,.1f} MB")
        _write(connection, copy, now)
        os.chown(copy, -1, before.st_gid)
        shutil.copystat(path, copy)
        is_same = (path.stat().st_ino, path.stat().st_dev) == (before.st_ino, before.st_dev)
        if file_bytes(wal_path(copy)) or not is_same:
            raise StoreError(f"{path} was replaced while it was read; repeat the command")
        freed = before.st_size - copy.stat().st_size
        # The file is still open, so that no recorder can have begun to write to it.
        copy.rename(path)
    return freed


@contextmanager
def _opened(path: Path, *others: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a file for reading that is the user's own, closed, and has nothing that a copy would lose."""
    require_own(path)
    check_regular_file(path)
    if path.is_symlink() or path.stat().st_nlink != 1:
        raise StoreError(f"{path} has several names or is a link")
    if not path.stat().st_mode & S_IWUSR:
        raise StoreError(f"{path} is read-only; chmod u+w lets it be thinned")
    if has_log(path):
        raise StoreError(f"{path} wasn't closed; gswarm-tui recover resumes or closes it")
    spill = SpillFolder()
    try:
        with closing(connect_in_memory({**NO_EXTENSIONS, **_LIMITS, **spill.settings()})) as connection:
            try:
                attach(connection, path, "(READ_ONLY)", *others)
                show_tables(connection, path, ())
                found = set(connection.execute(ALL_COLUMNS).fetchall())
                thinnable = "SELECT bool_and(ended_at IS NOT NULL), bool_and(thinned_at IS NOT NULL)"
                ((ended, thinned),) = connection.execute(f"{thinnable} FROM recordings").fetchall()
            except duckdb.Error as error:
                raise open_error(error, path) from error
            if found - {
                ("main", table.name, column.name) for table in schema.TABLES for column in table.columns
            }:
                raise StoreError(f"{path} has tables or columns that gswarm-tui doesn't know")
            if not ended:
                raise StoreError(f"{path} has a recording without an end; gswarm-tui recover closes it")
            if thinned:
                raise StoreError(f"{path} is thinned already")
            yield connection
    finally:
        spill.remove()


def _write(connection: duckdb.DuckDBPyConnection, copy: Path, now: float) -> None:
    execute = connection.execute
    execute(f"ATTACH {literal(str(copy))} AS copy (STORAGE_VERSION {literal(STORAGE_VERSION)})")
    execute(_ENDS)
    execute("USE copy")
    for table in schema.TABLES:
        execute(table.create)
    execute("USE memory")
    unsummed = "date_trunc('minute', ts) NOT IN (SELECT minute FROM gpu_minutes)"
    execute("INSERT INTO copy.gpu_minutes BY NAME FROM gpu_minutes")
    add_all_sums(connection, unsummed, "copy.gpu_minutes")
    for table in schema.TABLES:
        if table is not schema.GPU_MINUTES and table not in schema.LISTING_TABLES.values():
            execute(f"INSERT INTO copy.{table.name} BY NAME {_kept(table)}")
    execute("USE copy")
    at = literal(datetime.fromtimestamp(now, UTC).replace(tzinfo=None).isoformat(" "))
    update = f"UPDATE recordings SET schema_version = {SCHEMA_VERSION}"  # noqa: S608 (a number)
    execute(f"{update}, thinned_at = coalesce(thinned_at, {at})")
    execute("; ".join(("BEGIN", *remove_unfinished(), *view_statements(), *described(), "COMMIT")))
    execute("USE memory")
    execute("CHECKPOINT copy")
    execute("DETACH copy")


def _kept(table: TableSchema) -> str:
    """Return the query for the rows of a table that stay."""
    if table is schema.GPU_SAMPLES:
        minute = "date_trunc('minute', ts)"
        unsummed = f"{minute} NOT IN (SELECT minute FROM copy.gpu_minutes)"  # noqa: S608 (own names)
        long = f"energy_used_ms > {1000 * LONGEST_INTERVAL_S}"
        return f"FROM gpu_samples WHERE {minute} IN (FROM edges) OR {long} OR {unsummed}"
    if table is schema.HOST_SAMPLES:
        return f"SELECT {', '.join(_FRAMES)} FROM host_samples"  # noqa: S608 (own names)
    if table is schema.PROCESS_SAMPLES:
        names = ", ".join(column.name for column in table.columns if column.name in _NO_NUMBERS)
        return f"SELECT {names} FROM process_samples SEMI JOIN ends USING (gpu_id, pid, ts)"  # noqa: S608
    return f"FROM {table.name}"
