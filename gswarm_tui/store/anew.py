"""A recording file written anew beside itself: what that is called, and that it is whole or not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import duckdb

from gswarm_tui.store.schema import STORAGE_VERSION, literal


@contextlib.contextmanager
def anew(connection: duckdb.DuckDBPyConnection, path: Path) -> Iterator[Path]:
    """A new file beside this one, as the database ``rescue``; removed where the block fails.

    Raises OSError where it isn't whole at the end.
    """
    rescue = rescue_of(path)
    options = f"(STORAGE_VERSION {literal(STORAGE_VERSION)})"
    log = log_of(rescue)
    for old in (rescue, log):  # left by a crash, or links that somebody made
        old.unlink(missing_ok=True)
    try:
        connection.execute(f"ATTACH {literal(str(rescue))} AS rescue {options}")
        yield rescue
        # DETACH would leave that to the last query that looks at it.
        connection.execute("CHECKPOINT rescue")
        connection.execute("DETACH rescue")
        if size_of(log):
            raise OSError(f"{rescue} isn't whole without its write-ahead log")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("DETACH rescue")
        for part in (rescue, log):
            with contextlib.suppress(OSError):
                part.unlink()
        raise


def rescue_of(path: Path) -> Path:
    """The new file beside a file."""
    return path.with_name(path.name + ".rescue")


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
