"""Everything gswarm-tui uses of DuckDB beyond its documented interface.

tests/unit/test_duckdb_internals.py reports what a new DuckDB breaks; docs/decisions/009-duckdb.md has the
reasons. Imports quickly: commands need the error texts before they load DuckDB.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

Settings = dict[str, str | bool | int | float | list[str]]
NO_EXTENSIONS: Settings = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Settings of every connection: a query must not download code."""


def connect_in_memory(settings: Settings) -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database in memory with these settings. Raises duckdb.Error.

    Its zone is UTC, as are the times of a recording: ``now()`` compares with them on every machine. It has
    one thread unless ``settings`` give it more, and one for remote files, of which DuckDB would start two on
    each core.
    """
    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": 1, "async_threads": 1, **settings})
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    if (most := settings.get("max_temp_directory_size")) is not None:
        connection.execute("SET max_temp_directory_size = ?", [most])  # DuckDB 2.0 ignores it before
    return connection


class SpillFolder:
    """A private temporary folder for queries that need more than memory; without one, only they fail."""

    def __init__(self) -> None:
        self._path = ""
        with suppress(OSError):  # all temporary folders are full
            self._path = tempfile.mkdtemp(prefix="gswarm-tui-spill-")

    def settings(self) -> Settings:
        """Return the settings with which DuckDB connects."""
        return {"temp_directory": self._path, "max_temp_directory_size": "4GB"}

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._path, ignore_errors=True)


# Error texts

INTERRUPTED = "Query interrupted"
"""Text of the RuntimeError of a query that Ctrl-C, or another signal that ends this program, interrupts."""


class FileProblem(Enum):
    """Reasons for which DuckDB can't use a file; each value is a pattern that its error text contains."""

    NO_LOCKS = "Could not set lock.*: (No locks|Function not|Operation not supported)"
    LOCKED = "Could not set lock|Conflicting lock"
    ALREADY_ATTACHED = "already attached|Unique file handle"
    NOT_A_DATABASE = "not a valid DuckDB database|xtension.* (not found|disabled)|Cannot launch in-memory"
    DAMAGED = "Could not read enough bytes|Corrupt database file"
    NEWER_VERSION = "can only read|newer version|storage version greater"
    DISK_FULL = "No space left|quota exceeded"
    FILE_SIZE_LIMIT = "File too large"
    READ_ONLY_FILE_SYSTEM = "Read-only file system"
    NOT_WRITABLE = "Permission denied|Operation not permitted"


def file_problem(error: Exception) -> FileProblem | None:
    """Return why DuckDB can't use a file, None if the text is unknown."""
    text = str(error)
    return next((one for one in FileProblem if re.search(one.value, text, re.IGNORECASE)), None)


def lock_holder(error: Exception) -> tuple[str, int] | None:
    """Return the program and the process id that hold the file's lock, None if DuckDB names none."""
    held = re.search(r"Conflicting lock is held in (\S+) \(PID (\d+)", str(error), re.IGNORECASE)
    return None if held is None else (held[1], int(held[2]))


def is_about_parquet(error: Exception) -> bool:
    """Return whether an error is about a Parquet file that was read, not about the database."""
    return "parquet" in str(error).lower()


def lacks_spill_space(error: duckdb.OutOfMemoryException) -> bool:
    """Return whether a query failed because its temporary files would grow beyond their limit."""
    return "max_temp_directory_size" in str(error)


def query_problem(error: Exception) -> tuple[str, str]:
    """Return DuckDB's error about a query as one line with its hint and the query's line, and what it quotes.

    In a PermissionException, that is the file which the query reads.
    """
    text, _, location = str(error).partition("\n\nLINE ")
    message = re.sub(r"^[A-Za-z ]+ Error: ", "", " ".join(text.split())).rstrip(".!")
    quoted = re.search(r'"(.*)"', message)
    if line := re.match(r"(\d+): (.*)", location):
        message += f' (line {line[1]}: "{line[2].strip()}")'
    return message, quoted[1] if quoted else ""


# Memory

_ALLOCATOR_OPTIONS = "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0,background_thread:true"


def share_one_arena(environ: MutableMapping[str, str]) -> None:
    """Make DuckDB return freed memory soon, in a process that runs for days; call before DuckDB is loaded.

    Its allocator, jemalloc, has an arena for each thread, and the arena of an idle thread returns nothing.
    One arena saves 7 of 127 MB at 32 GPUs, but a query's threads wait for each other: commands that end soon
    don't call this. The user's own ``DUCKDB_JE_MALLOC_CONF`` wins.
    """
    environ.setdefault("DUCKDB_JE_MALLOC_CONF", _ALLOCATOR_OPTIONS)


def release_memory(connection: duckdb.DuckDBPyConnection, memory_limit: str) -> None:
    """Make DuckDB drop cached blocks and the queue of freed ones, then restore its memory limit.

    It walks through that queue only while it uses more than its limit.
    """
    import duckdb

    with suppress(duckdb.OutOfMemoryException):  # nothing fits into so little
        connection.execute("SET memory_limit = '1KB'")
    connection.execute(f"SET memory_limit = '{memory_limit}'")
