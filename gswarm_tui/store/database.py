"""The DuckDB file itself: opening it, its schema, writing one transaction.

Facts this rests on, measured with DuckDB 2.0: a failed commit leaves nothing behind; a failed checkpoint
invalidates the attached file until it is attached again; a deleted file can still be copied from the
connection that has it open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from gswarm_tui.store.batch import micros
from gswarm_tui.store.errors import StoreError, explain, not_opened
from gswarm_tui.store.precision import rounded
from gswarm_tui.store.samples import Columns
from gswarm_tui.store.schema import (
    RECORDINGS,
    SCHEMA_VERSION,
    STORAGE_VERSION,
    TABLES,
    Table,
    create_statements,
    literal,
    upgrade_statements,
)
from gswarm_tui.store.scratch import Scratch
from gswarm_tui.store.views import view_statements

if TYPE_CHECKING:
    from gswarm_tui.store.queries import Lending

MEMORY = "256MB"
"""DuckDB keeps what it has written up to this; a login node's users have to share theirs."""

_MOST_LOG = 256 * 1024 * 1024
"""So large may the write-ahead log become before queries end that keep it from being emptied."""

_MOST_SPILT = 4 * 1024**3

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "threads": 2,
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

    def __init__(self, path: Path, lending: Lending | None = None) -> None:
        """Opens the file, or makes it with the schema. Raises StoreError."""
        self.path = path
        self._lending = lending
        # Only queries need it; the recording may be on the same disk.
        self._scratch = Scratch(_MOST_SPILT)
        self._connection = self._connect()
        self._inode = _inode(path)
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
            _prepare(connection, path)
            _shut_in(connection, path)
        except duckdb.Error as error:
            connection.close()
            raise not_opened(error, path) from error
        except StoreError:
            connection.close()
            raise
        if self._lending is not None:
            self._lending.serve(connection.cursor())
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

    def write(self, tables: Iterable[tuple[Table, Columns]]) -> None:
        """Writes all in one transaction or nothing. Raises StoreError, DataRefusedError."""
        if self._broken:
            self._reopen()
        self._check_in_place()
        try:
            self._write_all(tables)
        except (duckdb.IntegrityError, duckdb.DataError, duckdb.ProgrammingError) as error:
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
            raise DataRefusedError(str(error)) from error
        except duckdb.Error as error:
            raise self._failed(error) from error

    def _write_all(self, tables: Iterable[tuple[Table, Columns]]) -> None:
        while True:
            try:
                self._connection.execute("BEGIN")
                for table, columns in tables:
                    self._insert(table, columns)
                self._connection.execute("COMMIT")
                return
            except duckdb.OutOfMemoryException:
                if self._lending is None or not self._lending.stop(
                    "the recorder needed the memory that the query had"
                ):
                    raise
                with contextlib.suppress(duckdb.Error):
                    self._connection.execute("ROLLBACK")

    def _insert(self, table: Table, incoming: Columns) -> None:
        names = ", ".join(incoming)
        values = ", ".join(f"TRY_CAST({name} AS {table[name].type})" for name in incoming)
        verb = "INSERT OR REPLACE" if table.keyed else "INSERT"
        kept = {n: rounded(part) if table[n].type == "FLOAT" else part for n, part in incoming.items()}
        # DuckDB reads the arrays where they lie; only this connection sees them.
        self._connection.register("incoming", kept)
        try:
            self._connection.execute(f"{verb} INTO {table.name} ({names}) SELECT {values} FROM incoming")  # noqa: S608
        finally:
            # Where the statement failed this does, too, and would hide why; the next arrays take the place.
            with contextlib.suppress(duckdb.TransactionException):
                self._connection.unregister("incoming")

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file; later if a query looks at it. Raises StoreError."""
        if self._lending is not None:
            self._lending.settle()
            if self.wal_bytes() > _MOST_LOG:
                self._lending.stop("the recorder had to bring what it wrote into the file")
        with contextlib.suppress(_BusyError):
            self._execute("CHECKPOINT rec")

    def close(self) -> None:
        """Lets go of the file; queries end."""
        if self._lending is not None:
            self._lending.withdraw(f"{self.path} was closed before the query was answered")
        with contextlib.suppress(duckdb.Error):
            self._connection.close()
        self._scratch.remove()

    def bytes(self) -> int:
        """Size of the file with its write-ahead log."""
        return _size(self.path) + self.wal_bytes()

    def wal_bytes(self) -> int:
        """Size of the write-ahead log."""
        return _size(self._wal)

    @property
    def _wal(self) -> Path:
        return self.path.with_name(self.path.name + ".wal")

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
        if _inode(self.path) != self._inode:
            raise StoreError(f"{self.path} is gone; put it back, or end and record into another file")
        self.close()
        self._connection = self._connect()
        self._broken = False

    def _check_in_place(self) -> None:
        """Sees that the path still leads to the file being written. Raises StoreError."""
        inode = _inode(self.path)
        if inode is None:
            self._put_back()
        elif inode != self._inode:
            raise StoreError(f"{self.path} was replaced by another file; move that one away")

    def step_aside(self) -> None:
        """Where another file has its place, goes on as a new one beside that. Raises StoreError."""
        if _inode(self.path) not in (None, self._inode):
            numbered = (self.path.with_stem(f"{self.path.stem}-{number}") for number in count(2))
            free = next(path for path in numbered if not path.exists())
            self._put_back(free)

    def _put_back(self, to: Path | None = None) -> None:
        """A deleted file is still whole in this connection: writes it anew. Raises StoreError."""
        rescue = _rescue(self.path)
        options = f"(STORAGE_VERSION {literal(STORAGE_VERSION)})"
        try:
            rescue.unlink(missing_ok=True)  # left by a crash, or a link that somebody made
            self._connection.execute(f"ATTACH {literal(str(rescue))} AS rescue {options}")
            self._connection.execute("COPY FROM DATABASE rec TO rescue")
            self._connection.execute("DETACH rescue")
            rescue.rename(to or self.path)
        except (duckdb.Error, OSError) as error:
            with contextlib.suppress(duckdb.Error):
                self._connection.execute("DETACH rescue")
            with contextlib.suppress(OSError):
                rescue.unlink()
            raise StoreError(explain(error, self.path)) from error
        self.close()
        with contextlib.suppress(OSError):
            self._wal.unlink()  # it belongs to the deleted file
        self.path = to or self.path
        self._inode, self._broken = _inode(self.path), True
        self._reopen()


def _prepare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    existing: dict[str, set[str]] = {}
    for table, column in connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() "
        "WHERE database_name = 'rec' AND NOT internal "
        "AND table_oid IN (SELECT table_oid FROM duckdb_tables() WHERE database_name = 'rec')"
    ).fetchall():
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


def _shut_in(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """From here on no statement reaches any file but the attached one and its rescue, and no network."""
    files = [f"{_rescue(path)}{suffix}" for suffix in ("", ".wal", ".wal.checkpoint", ".wal.recovery")]
    connection.execute("SET allowed_paths = ?", [files])
    connection.execute("SET enable_external_access = false")


def _rescue(path: Path) -> Path:
    return path.with_name(path.name + ".rescue")


def _is_ours(existing: dict[str, set[str]]) -> bool:
    return all(key.name in existing[t.name] for t in TABLES for key in t.columns[:2]) and (
        RECORDINGS["schema_version"].name in existing[RECORDINGS.name]
    )


def _clean(value: Any) -> Any:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
