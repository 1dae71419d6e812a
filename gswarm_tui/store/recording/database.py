"""The DuckDB file itself: opening it, its schema, writing one transaction.

Facts this rests on, measured with DuckDB 2.0: a failed commit leaves nothing behind; a failed checkpoint
invalidates the attached file until it is attached again; a deleted file can still be copied from the
connection that has it open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from gswarm_tui.store.errors import StoreError, explain, open_error
from gswarm_tui.store.querying.running_query import SpillFolder
from gswarm_tui.store.recording.batch import Columns, micros
from gswarm_tui.store.recording.bulk_insert import BulkInsert
from gswarm_tui.store.sql.schema import (
    RECORDINGS,
    SCHEMA_VERSION,
    STORAGE_VERSION,
    TABLES,
    TableSchema,
    create_statements,
    literal,
    upgrade_statements,
)
from gswarm_tui.store.sql.views import view_statements

if TYPE_CHECKING:
    from gswarm_tui.store.querying.recorder_source import CursorPool

_LOG = logging.getLogger(__name__)

MEMORY = "256MB"
"""DuckDB keeps what it has written up to this; a login node's users have to share theirs."""

_MOST_LOG = 256 * 1024 * 1024
"""So large may the write-ahead log become before queries end that keep it from being emptied."""

_MOST_COMPACTED = 128 * 1024 * 1024
"""So much is written anew in three or four seconds."""
_ROOM = 4
"""So many times the file's size has to be free for that, of which it takes at most two."""
_BLOCK = 256 * 1024
_MOST_HOLES = 8
"""A smaller file has no more than so many blocks to lose."""

_MOST_SPILT = 4 * 1024**3

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": 1,  # queries get more while there are any
    "async_threads": 1,  # for files that are far away
    "memory_limit": MEMORY,
    # The recorder checkpoints between commits: a checkpoint that fails in a commit takes that with it.
    "wal_autocheckpoint": "1TB",
}


class _BusyError(StoreError):
    """A query stands in the way."""


class DataRefusedError(Exception):
    """The database is well but doesn't take these values."""


@dataclass(frozen=True)
class RecordingInfo:
    """What is known about a recording when it begins; ``started_at`` is Unix time in seconds.

    ``uid`` names it to the agents, ``options`` is a JSON object that says how its nodes are reached.
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
    """A recording file held open for writing, by one thread at a time; ``lending`` lets others read it."""

    def __init__(self, path: Path, lending: CursorPool | None = None) -> None:
        """Opens the file, or makes it with the schema. Raises StoreError."""
        self.path = path
        self._lending = lending
        # Only queries need it; the recording may be on the same disk.
        self._scratch = SpillFolder(_MOST_SPILT)
        self._connection = self._connect()
        self._writing = self._connect_for_writing()
        self._inode = inode_of(path)
        self._broken = False

    def _connect(self) -> duckdb.DuckDBPyConnection:
        path = self.path
        if not path.parent.is_dir():
            raise StoreError(f"there is no folder {path.parent}; make it, or name another file with --db")
        if path.is_fifo():  # DuckDB would wait for its other end for ever
            raise StoreError(f"{path} is a pipe; name another file with --db")
        connection = duckdb.connect(":memory:", config=_SETTINGS | self._scratch.settings())
        try:
            # An existing file keeps its version: DuckDB refuses to attach one with a lower.
            options = "" if path.exists() else f"(STORAGE_VERSION {literal(STORAGE_VERSION)})"
            connection.execute(f"ATTACH {literal(str(path))} AS rec {options}")
            connection.execute("USE rec")
            with contextlib.suppress(OSError):
                remove(
                    compact_of(path)
                )  # only who has the file open makes it, so it is of one who was killed
            prepare(connection, path)
            _shut_in(connection, path)
        except duckdb.Error as error:
            connection.close()
            raise open_error(error, path) from error
        except StoreError:
            connection.close()
            raise
        if self._lending is not None:
            self._lending.serve(connection.cursor())
        return connection

    def _connect_for_writing(self) -> duckdb.DuckDBPyConnection:
        """A connection for the intake alone, whose plans leave nothing to optimize.

        Those that replace rows are made anew each time, and the optimizer takes most of that.
        """
        connection = self._connection.cursor()
        connection.execute("USE rec")
        connection.execute("PRAGMA disable_optimizer")
        self._intake = BulkInsert(connection)
        return connection

    def begin_recording(self, info: RecordingInfo) -> int:
        """Adds a recording and returns its number. Raises StoreError."""
        recording_id = self.next_free("recording_id", "recordings")
        values = asdict(info) | {"schema_version": SCHEMA_VERSION}
        values["started_at"] = micros(info.started_at)
        names = ", ".join(values)
        marks = ", ".join("make_timestamp(?)" if name == "started_at" else "?" for name in values)
        self._execute(
            f"INSERT INTO recordings (recording_id, {names}) VALUES (?, {marks})",  # noqa: S608 (own names)
            [recording_id, *(_clean(value) for value in values.values())],
        )
        return recording_id

    def next_free(self, column: str, table: str) -> int:
        """The lowest number above all that are in the column. Raises StoreError."""
        return int(self._execute(f"SELECT coalesce(max({column}), 0) + 1 FROM {table}")[0][0])  # noqa: S608

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """The rows of a query by column. Raises StoreError."""
        found = self._execute(sql, list(values))
        names = [column[0] for column in self._connection.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found]

    def end_recording(self, recording_id: int, ended_at: float) -> None:
        """Notes when the recording ended. Raises StoreError."""
        self._execute(
            "UPDATE recordings SET ended_at = make_timestamp(?) WHERE recording_id = ?",
            [micros(ended_at), recording_id],
        )

    def write(self, tables: Iterable[tuple[TableSchema, Columns]]) -> None:
        """Writes all in one transaction or nothing. Raises StoreError, DataRefusedError."""
        if self._broken:
            self._reopen()
        self._check_in_place()
        try:
            self._write_all(tables)
        except (duckdb.IntegrityError, duckdb.DataError, duckdb.ProgrammingError) as error:
            self._roll_back()
            raise DataRefusedError(str(error)) from error
        except duckdb.Error as error:
            raise self._failed(error) from error
        except BaseException:
            self._roll_back()
            raise

    def _write_all(self, tables: Iterable[tuple[TableSchema, Columns]]) -> None:
        once_more = True
        while True:
            try:
                self._writing.execute("BEGIN")
                for table, columns in tables:
                    self._intake.insert(table, columns)
                self._writing.execute("COMMIT")
                return
            except duckdb.OutOfMemoryException:
                stopped = self._lending is not None and self._lending.stop(
                    "the recorder needed the memory that the query had"
                )
                if not stopped and not once_more:
                    raise
                once_more = stopped  # one that ends by itself just now has given its memory back, too
                self._roll_back()

    def _roll_back(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._writing.execute("ROLLBACK")
        self._intake = BulkInsert(self._writing)

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file; later if a query looks at it. Raises StoreError."""
        if self._lending is not None and self.wal_bytes() > _MOST_LOG:
            self._lending.stop("the recorder had to bring what it wrote into the file")
        with contextlib.suppress(_BusyError):
            self._execute("CHECKPOINT rec")
            if self._lending is not None:
                self._lending.settle()

    def rearrange(self, table: TableSchema, where: str, order: str) -> None:
        """Puts the rows of a condition back in another order, in one transaction. Raises StoreError."""
        execute = self._connection.execute
        try:
            chosen = f"FROM {table.name} WHERE {where}"
            execute(f"CREATE OR REPLACE TEMP TABLE arranged AS {chosen} ORDER BY {order}")
            execute("BEGIN")
            taken = execute(f"DELETE {chosen}").fetchall()
            put = execute(f"INSERT INTO {table.name} FROM temp.arranged").fetchall()
            if taken != put:
                raise StoreError(f"{self.path}: {taken[0][0]} rows were to be put in order, not {put[0][0]}")
            execute("COMMIT")
        except (duckdb.Error, StoreError) as error:
            with contextlib.suppress(duckdb.Error):
                execute("ROLLBACK")
            raise StoreError(explain(error, self.path)) from error
        finally:
            with contextlib.suppress(duckdb.Error):
                execute("DROP TABLE IF EXISTS temp.arranged")

    def compactable(self) -> bool:
        """Whether the file is worth writing anew, and small enough, and may be. Raises StoreError.

        Not while something waits in its write-ahead log, where another name leads to the file, it is somebody
        else's, more was put into it than comes from here, or its disk is nearly full.
        """
        if self.wal_bytes() or self.path.is_symlink() or inode_of(self.path) != self._inode:
            return False
        if not _MOST_HOLES * _BLOCK < self.bytes() <= _MOST_COMPACTED:
            return False
        if shutil.disk_usage(self.path.parent).free < _ROOM * self.bytes():
            return False
        found = self.path.stat()
        return found.st_nlink == 1 and found.st_uid == os.geteuid() and not self._holds_more()

    def compact(self, within_s: float) -> None:
        """Writes the file anew without holes if it is ``compactable``, unless that takes too long.

        It is to be closed right after. Raises StoreError.
        """
        if not self.compactable():
            return
        done = threading.Event()

        def hurry() -> None:
            # A statement that has yet to begin isn't interrupted.
            pause = within_s
            while not done.wait(pause):
                self._connection.interrupt()
                pause = 0.1

        hurrying = threading.Thread(target=hurry, name="compacting", daemon=True)
        hurrying.start()
        try:
            found, compact = self.path.stat(), compact_of(self.path)
            with anew(self._connection, compact):
                os.chown(compact, -1, found.st_gid)
                shutil.copystat(self.path, compact)  # who else may read it, also by access control lists
                self._connection.execute("SET threads = 2")
                self._connection.execute("COPY FROM DATABASE rec TO anew")
            if inode_of(self.path) not in (None, self._inode):
                remove(compact)
                raise OSError("another file has its place")
            compact.rename(self.path)
            self._inode = inode_of(self.path)
        except (duckdb.Error, OSError) as error:
            _LOG.info("%s was not compacted: %s", self.path, error)
        finally:
            done.set()
            hurrying.join()

    def _holds_more(self) -> bool:
        """Whether there are tables or columns in the file that aren't from here. Raises StoreError."""
        own = {("main", table.name, column.name) for table in TABLES for column in table.columns}
        return set(self._execute(COLUMNS)) != own

    def close(self) -> None:
        """Lets go of the file; queries end."""
        if self._lending is not None:
            self._lending.withdraw(f"{self.path} was closed before the query was answered")
        with contextlib.suppress(duckdb.Error):
            self._writing.close()
            self._connection.close()
        self._scratch.remove()

    def bytes(self) -> int:
        """Size of the file with its write-ahead log."""
        return size_of(self.path) + self.wal_bytes()

    def wal_bytes(self) -> int:
        """Size of the write-ahead log."""
        return size_of(self._wal)

    @property
    def _wal(self) -> Path:
        return log_of(self.path)

    def _execute(self, sql: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except duckdb.TransactionException as error:
            raise _BusyError(explain(error, self.path)) from error
        except duckdb.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: duckdb.Error) -> StoreError:
        self._broken = True
        return StoreError(explain(error, self.path))

    def _reopen(self) -> None:
        if inode_of(self.path) != self._inode:
            raise StoreError(f"{self.path} is gone; put it back, or end and record into another file")
        self.close()
        self._connection = self._connect()
        self._writing = self._connect_for_writing()
        self._broken = False

    def _check_in_place(self) -> None:
        """Sees that the path still leads to the file being written. Raises StoreError."""
        inode = inode_of(self.path)
        if inode is None:
            self._put_back()
        elif inode != self._inode:
            raise StoreError(f"{self.path} was replaced by another file; move that one away")

    def step_aside(self) -> None:
        """Where another file has its place, goes on as a new one beside that. Raises StoreError."""
        if inode_of(self.path) not in (None, self._inode):
            numbered = (self.path.with_stem(f"{self.path.stem}-{number}") for number in count(2))
            free = next(path for path in numbered if not path.exists())
            self._put_back(free)

    def _put_back(self, to: Path | None = None) -> None:
        """A deleted file is still whole in this connection: writes it anew. Raises StoreError."""
        try:
            rescue = rescue_of(self.path)
            set_aside(rescue)  # of a head that was killed in this moment, it is the only copy
            with anew(self._connection, rescue):
                self._connection.execute("COPY FROM DATABASE rec TO anew")
            rescue.rename(to or self.path)
        except (duckdb.Error, OSError) as error:
            raise StoreError(explain(error, self.path)) from error
        self.close()
        with contextlib.suppress(OSError):
            self._wal.unlink()  # it belongs to the deleted file
        self.path = to or self.path
        self._inode, self._broken = inode_of(self.path), True
        self._reopen()


def _shut_in(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """From here on no statement reaches any file but the attached one and those beside it, and no network."""
    suffixes = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
    files = [f"{new}{suffix}" for new in (rescue_of(path), compact_of(path)) for suffix in suffixes]
    connection.execute("SET allowed_paths = ?", [files])
    connection.execute("SET enable_external_access = false")


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


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


@contextlib.contextmanager
def anew(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[None]:
    """A new file at the path, as the database ``anew``; removed where the block fails.

    Raises OSError where it isn't whole at the end.
    """
    options = f"(STORAGE_VERSION {literal(STORAGE_VERSION)})"
    log = log_of(path)
    remove(path)  # left by a crash, or links that somebody made
    try:
        connection.execute(f"ATTACH {literal(str(path))} AS anew {options}")
        yield
        # DETACH would leave that to the last query that looks at it.
        connection.execute("CHECKPOINT anew")
        connection.execute("DETACH anew")
        if size_of(log):
            raise OSError(f"{path} isn't whole without its write-ahead log")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("DETACH anew")
        with contextlib.suppress(OSError):
            remove(path)
        raise


def rescue_of(path: Path) -> Path:
    """Where a file that was deleted is written anew: nothing else may be left of it."""
    return path.with_name(path.name + ".rescue")


def compact_of(path: Path) -> Path:
    """Where a file is written anew that is in its place: nobody needs this if that isn't finished."""
    return path.with_name(path.name + ".compact")


def set_aside(path: Path) -> None:
    """Gives a file that is there, and its write-ahead log, a free name with a number. Raises OSError."""
    if path.is_symlink() or not size_of(path):
        return
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    free = next(one for one in numbered if not one.exists() and not log_of(one).exists())
    path.rename(free)
    if log_of(path).exists():
        log_of(path).rename(log_of(free))


def remove(path: Path) -> None:
    """Removes a file and its write-ahead log, where they are. Raises OSError."""
    for part in (path, log_of(path)):
        part.unlink(missing_ok=True)


def log_of(path: Path) -> Path:
    """DuckDB's write-ahead log of a file."""
    return path.with_name(path.name + ".wal")


def inode_of(path: Path) -> tuple[int, int] | None:
    """What tells a file from another of the same name, None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def size_of(path: Path) -> int:
    """Bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
