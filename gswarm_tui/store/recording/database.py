"""The DuckDB file of a recording: its schema, transactions, and the rewrite that sorts it at the end.

Measured with DuckDB 2.0: a failed commit leaves nothing behind; a failed checkpoint makes the attached file
unusable until it is attached again. Why files are rewritten: docs/decisions/005-recording-file-rewrite.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb

from gswarm_tui.store.duckdb_internals import (
    NO_EXTENSIONS,
    FileProblem,
    SpillFolder,
    connect_in_memory,
    file_problem,
    release_memory,
)
from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.querying.cursor_pool import CursorPool
from gswarm_tui.store.querying.opening import (
    attach,
    check_regular_file,
    checked_columns,
    remove_with_logs,
    without_links,
)
from gswarm_tui.store.recording.batch import Columns, array
from gswarm_tui.store.recording.bulk_insert import insert
from gswarm_tui.store.recording.files import file_bytes, require_own, wal_path
from gswarm_tui.store.recording.minutes import UnsummedMinutes, add_sums, delete_minutes
from gswarm_tui.store.recording.profiles import ProfileFacts, StoredProfile, remove_unfinished
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import SCHEMA_VERSION, STORAGE_VERSION, TableSchema, literal, micros
from gswarm_tui.store.sql.summaries import MINUTE_US
from gswarm_tui.store.sql.views import described, view_statements

_LOG = logging.getLogger(__name__)

MEMORY = 256_000_000
"""DuckDB caches what it has written up to this limit; users of a login node share its memory."""
QUERY_MEMORY = 512 * 1024**2
"""Memory of all queries together, beside ``MEMORY``; ``--query-memory`` raises it."""
_MAX_WAL_BYTES = 256 * 1024 * 1024
"""A larger write-ahead log stops queries that keep it from being checkpointed."""

_MAX_REWRITE_BYTES = 256 * 1024 * 1024
"""A file of this size is sorted in about four seconds."""
_FREE_SPACE_FACTOR = 4
"""A rewrite needs this many times the file's size free on its disk, and uses at most half of that."""
_MIN_REWRITE_BYTES = 16 * 256 * 1024
"""A smaller file has a few blocks to lose: one without samples has ten."""

_SORTED_BY = {
    schema.GPU_SAMPLES: "gpu_id",
    schema.HOST_SAMPLES: "node_id",
    schema.PROCESS_SAMPLES: "gpu_id",
    **dict.fromkeys(schema.LISTING_TABLES.values(), "node_id"),
}
_SORTED_ROWS = 4 * 122_880
"""The rewrite sorts this many rows at once: four of DuckDB's row groups, which fit into memory."""
ALL_COLUMNS = (
    "SELECT schema_name, table_name, column_name FROM duckdb_columns() "
    "WHERE database_name = 'rec' AND NOT internal "
    "AND table_oid IN (SELECT table_oid FROM duckdb_tables() WHERE database_name = 'rec')"
)


class _BusyError(StoreError):
    """A running query blocks a checkpoint."""


class DataRefusedError(Exception):
    """DuckDB refuses these values; the database itself is fine."""


@dataclass(frozen=True)
class RecordingInfo:
    """The facts about a recording at its start; ``started_at`` is Unix time in seconds.

    ``uid`` identifies the recording to the agents, ``options`` is a JSON object with the way to its nodes.
    """

    started_at: float
    host: str
    user_name: str
    command: str
    interval_ms: int
    tool_version: str
    slurm_job_id: str | None = None
    slurm_cluster: str | None = None
    uid: str | None = None
    options: str | None = None


class Database:
    """A recording file open for writing, used by one thread at a time; ``pool`` lets queries read it."""

    def __init__(self, path: Path, pool: CursorPool | None = None, query_memory: int | None = None) -> None:
        """Open the file, or create it with the schema. Raises StoreError."""
        require_own(path)
        self.path = path = without_links(path)
        self._pool = pool or CursorPool(path)
        self._memory = f"{MEMORY + (query_memory or QUERY_MEMORY)}B"
        self._connect()
        self._inode = _inode(path)
        self._broken = False
        self._minutes = UnsummedMinutes()

    def _connect(self) -> None:
        """Open the file for queries and changes, and for inserts, whose plans need no optimizer."""
        path = self.path
        require_own(path)
        if not path.parent.is_dir():
            raise StoreError(
                f"the folder {path.parent} doesn't exist; create it, or name another file with --db"
            )
        new = not path.exists()
        check_regular_file(path, may_be_missing=True)
        # The recorder checkpoints between commits: a failed checkpoint in a commit would fail the commit too.
        limits = {"memory_limit": self._memory, "wal_autocheckpoint": "1TB"}
        self._spill_folder = SpillFolder()
        connection = connect_in_memory({**NO_EXTENSIONS, **limits, **self._spill_folder.settings()})
        try:
            # An existing file keeps its version: DuckDB refuses to attach it with a lower one.
            options = f"(STORAGE_VERSION {literal(STORAGE_VERSION)})" if new else ""
            attach(connection, path, options, rewrite_path(path))
            with contextlib.suppress(OSError):  # only a killed recorder of this file leaves a rewrite behind
                remove_folder(rewrite_path(path).parent)
            _update_schema(connection, path)
        except (duckdb.Error, StoreError) as error:
            connection.close()
            self._spill_folder.remove()
            if isinstance(error, StoreError):
                raise
            if new and file_problem(error) in (FileProblem.DISK_FULL, FileProblem.FILE_SIZE_LIMIT):
                # What the full disk left is no database: the next try to record would refuse it.
                remove_with_logs(path)
            raise open_error(error, path) from error
        self._pool.open(connection.cursor())
        self._connection, self._writer = connection, connection.cursor()
        self._writer.execute("USE rec; PRAGMA disable_optimizer")

    def begin_recording(self, info: RecordingInfo) -> int:
        """Add a recording and return its number. Raises StoreError."""
        recording_id = self.next_free("recording_id", "recordings")
        row = asdict(info) | {
            "recording_id": recording_id,
            "started_at": micros(info.started_at),
            "schema_version": SCHEMA_VERSION,
        }
        self.write([(schema.RECORDINGS, {name: array(schema.RECORDINGS, name, [row[name]]) for name in row})])
        return recording_id

    def next_free(self, column: str, table: str) -> int:
        """Return the number after the highest in the column. Raises StoreError."""
        return int(self.execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}")[0][0])  # noqa: S608

    def profile(
        self, facts: ProfileFacts, recording_id: int | None = None, profile_id: int | None = None
    ) -> StoredProfile:
        """Return a new profile of a recording, to which rows can be added between other writes.

        Raises RepeatedProfileError, StoreError.
        """
        connection = self._connection.cursor()
        connection.execute("USE rec")
        return StoredProfile(connection, self.path, facts, recording_id, profile_id)

    def end_recording(self, recording_id: int, ended_at: float) -> None:
        """Store when the recording ended. Raises StoreError."""
        self.execute(
            "UPDATE recordings SET ended_at = make_timestamp(?) WHERE recording_id = ?",
            micros(ended_at),
            recording_id,
        )

    def write(self, tables: Sequence[tuple[TableSchema, Columns]]) -> None:
        """Write everything in one transaction, or nothing. Raises StoreError, DataRefusedError."""
        self._check_in_place()
        if self._broken:
            self.close()
            self._connect()
            self._broken = False
        try:
            try:
                self._insert(tables)
            except (duckdb.OutOfMemoryException, MemoryError):
                self._pool.stop("the recorder needed the memory that the query used")
                self._roll_back()
                self._insert(tables)
        except (duckdb.IntegrityError, duckdb.DataError, duckdb.ProgrammingError) as error:
            self._roll_back()
            raise DataRefusedError(str(error)) from error
        except duckdb.Error as error:
            raise self._failed(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _insert(self, tables: Sequence[tuple[TableSchema, Columns]]) -> None:
        sampled = [columns["ts"] for table, columns in tables if table is schema.GPU_SAMPLES]
        self._writer.execute("BEGIN")
        for table, columns in tables:
            insert(self._writer, table, columns)
        for times in sampled:
            if outdated := self._minutes.outdated_by(times):
                self._writer.execute(delete_minutes(outdated))
        self._writer.execute("COMMIT")
        for times in sampled:
            self._minutes.added(times)

    def _roll_back(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._writer.execute("ROLLBACK")

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file; later if a query still reads from it. Raises StoreError."""
        if self.wal_bytes() > _MAX_WAL_BYTES:
            self._pool.stop("the recorder had to write its log into the file")
        with contextlib.suppress(_BusyError):
            self.execute("CHECKPOINT rec")
            if not self._pool.busy:
                release_memory(self._connection, self._memory)

    def roll_up(self, *, at_close: bool = False) -> bool:
        """Sum up the oldest minute without sums that is over; return False if none is.

        At the close, a minute need not be over. If it fails, readers use the minute's samples.
        """
        minute = self._minutes.take_due(at_close=at_close)
        if minute is None:
            return False
        execute = self._connection.execute
        try:
            execute("BEGIN")
            execute(delete_minutes([minute]))
            add_sums(self._connection, minute, minute + MINUTE_US)
            execute("COMMIT")
        except duckdb.Error as error:
            _LOG.info("a minute has no sums: %s", error)
            with contextlib.suppress(duckdb.Error):
                execute("ROLLBACK")
        return True

    def describe(self) -> None:
        """Store the meanings of columns, for people who open the file with DuckDB. Raises StoreError."""
        # Hundreds of statements take less than half the time in one transaction.
        self.execute(f"BEGIN; {'; '.join(described())}; COMMIT")

    def should_rewrite(self) -> bool:
        """Return whether a rewrite pays off and is allowed. Raises StoreError.

        Not while its write-ahead log has content, for links, for files with other tables or columns than
        ours, or when the disk is nearly full.
        """
        if self.path.is_symlink() or self.path.stat().st_nlink != 1 or _inode(self.path) != self._inode:
            return False
        if self.wal_bytes() or not _MIN_REWRITE_BYTES < self.bytes() <= _MAX_REWRITE_BYTES:
            return False
        if shutil.disk_usage(self.path.parent).free < _FREE_SPACE_FACTOR * self.bytes():
            return False
        own = {("main", table.name, column.name) for table in schema.TABLES for column in table.columns}
        return set(self.execute(ALL_COLUMNS)) == own

    def rewrite(self, timeout_s: float) -> None:
        """Replace the file with a sorted copy if ``should_rewrite``, within ``timeout_s``.

        The database must be closed afterwards.
        """
        late = threading.Timer(timeout_s, self._connection.interrupt)
        late.daemon = True
        execute, copy = self._connection.execute, rewrite_path(self.path)
        try:
            if not self.should_rewrite():
                return
            late.start()
            stat = self.path.stat()
            # A crash may have left the copy's folder, or somebody made a link of that name. mkdir fails if
            # another link is made in this moment, which is possible in folders where others may write.
            remove_folder(copy.parent)
            copy.parent.mkdir(0o700)
            execute(f"ATTACH {literal(str(copy))} AS copy (STORAGE_VERSION {literal(STORAGE_VERSION)})")
            os.chown(copy, -1, stat.st_gid)
            shutil.copystat(self.path, copy)  # permissions, access control lists included
            execute("SET threads = 2")
            execute("COPY FROM DATABASE rec TO copy (SCHEMA)")
            for table in schema.TABLES:
                for rows in self._sorted(table):
                    # DuckDB ignores an interrupt that comes between two statements.
                    if late.finished.is_set():
                        raise OSError("it took too long")
                    execute(f"INSERT INTO copy.{table.name} {rows}")
            # DETACH alone would leave the checkpoint to the last query that reads the file.
            execute("CHECKPOINT copy")
            execute("DETACH copy")
            if file_bytes(wal_path(copy)):
                raise OSError("the copy isn't complete without its write-ahead log")
            if _inode(self.path) != self._inode:
                raise OSError("it was deleted, moved or replaced")
            copy.rename(self.path)
            self._inode = _inode(self.path)
            copy.parent.rmdir()
        except (StoreError, duckdb.Error, OSError, RuntimeError) as error:
            _LOG.info("%s was not rewritten: %s", self.path, error)
            with contextlib.suppress(duckdb.Error):
                execute("DETACH copy")
            with contextlib.suppress(OSError):
                remove_folder(copy.parent)
        finally:
            late.cancel()

    def _sorted(self, table: TableSchema) -> Iterator[str]:
        """Return queries for all rows of a table; each sorts samples by GPU, so that they compress.

        The queries are in the order of times, so that DuckDB skips row groups outside of a time range.
        """
        if (key := _SORTED_BY.get(table)) is None:
            yield f"FROM rec.{table.name}"
            return
        span = f"SELECT epoch_us(min(ts)), epoch_us(max(ts)), count(*) FROM rec.{table.name}"  # noqa: S608
        ((first, last, count),) = self.execute(span)
        if not count:
            return
        step = -(-(last + 1 - first) // -(-count // _SORTED_ROWS))
        for low in range(first, last + 1, step):
            within = f"ts >= make_timestamp({low}) AND ts < make_timestamp({low + step})"
            yield f"FROM rec.{table.name} WHERE {within} ORDER BY {key}, ts, rowid"

    def close(self) -> None:
        """Close the file; running queries end."""
        self._pool.close(f"{self.path} was closed before the query ended")
        with contextlib.suppress(duckdb.Error):
            self._writer.close()
            self._connection.close()
        self._spill_folder.remove()

    def bytes(self) -> int:
        """Return the size of the file with its write-ahead log."""
        return file_bytes(self.path) + self.wal_bytes()

    def wal_bytes(self) -> int:
        """Return the size of the write-ahead log."""
        return file_bytes(wal_path(self.path))

    def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows. Raises StoreError."""
        try:
            return self._connection.execute(sql, values).fetchall()
        except duckdb.TransactionException as error:
            raise _BusyError(explain(error, self.path)) from error
        except duckdb.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: duckdb.Error) -> StoreError:
        self._broken = True
        return StoreError(explain(error, self.path))

    def _check_in_place(self) -> None:
        """Raise StoreError if the file was moved, deleted or replaced."""
        if (inode := _inode(self.path)) != self._inode:
            gone = "deleted or moved", "it"
            happened, what = gone if inode is None else ("replaced by another file", "the recording's file")
            raise StoreError(
                f"{self.path} was {happened}, and nothing more is saved; move {what} back, "
                "or restart with another file"
            )


@contextlib.contextmanager
def writing_profile(path: Path, facts: ProfileFacts) -> Iterator[StoredProfile]:
    """Write a profile into a file that no recorder has open. Raises StoreError.

    If that fails, the profile's rows are removed, and a file that was made for it.
    """
    database, stored, done, new = None, None, False, not path.exists()
    try:
        database = Database(path)
        new = database.next_free("recording_id", "recordings") == 1
        stored = database.profile(facts)
        yield stored
        database.describe()
        database.checkpoint()
        done = True
    finally:
        if stored is not None and not done and not new:
            stored.abandon()
        if database is not None:
            database.close()
        if new and not done:
            remove_with_logs(path)


def _update_schema(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Create or complete tables, columns and views of the attached database ``rec``. Raises StoreError."""
    existing = checked_columns(connection, path)
    connection.execute("USE rec")
    connection.execute("BEGIN")
    for table in schema.TABLES:
        if not (there := existing.get(table.name)):
            connection.execute(table.create)
            continue
        for column in table.columns:
            if column.name not in there:
                connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type}")
    if existing:
        outdated = f"UPDATE recordings SET schema_version = {SCHEMA_VERSION}"  # noqa: S608 (a number)
        connection.execute(f"{outdated} WHERE schema_version < {SCHEMA_VERSION}")
        for statement in remove_unfinished():
            connection.execute(statement)
    for statement in view_statements():
        connection.execute(statement)
    connection.execute("COMMIT")


def rewrite_path(path: Path) -> Path:
    """Return the path of the copy that a rewrite makes, in a private folder of its own."""
    return path.with_name(path.name + ".compact") / path.name


def remove_folder(folder: Path) -> None:
    """Remove a folder and what is in it, or a file or link of this name."""
    try:
        shutil.rmtree(folder)  # follows no link
    except FileNotFoundError:
        pass
    except OSError:
        folder.unlink(missing_ok=True)


def _inode(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, None if it doesn't exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
