"""A recording file written anew beside itself: what that is called, and that it is whole or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import duckdb

from gswarm_tui.store.sql.schema import STORAGE_VERSION, literal


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
