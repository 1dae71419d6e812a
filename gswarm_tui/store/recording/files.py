"""The default name of a recording file, and checks that existing files belong to this user.

What is in a file is checked in ``store/querying/opening.py``.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gswarm_tui.store.errors import StoreError, owner_name
from gswarm_tui.store.querying.opening import with_logs


def default_paths(folder: Path, now: datetime, job_id: str | None = None) -> Iterator[Path]:
    """Yield paths in ``folder`` named after the Slurm job, else after the local time ``now`` to the minute.

    The file of a job gets one more recording each time. The numbered names are for the case that another
    program records into the first, or that a file of the same minute exists.
    """
    name = f"gswarm-job{job_id}" if job_id else f"gswarm-{now:%Y%m%d-%H%M}"
    yield folder / f"{name}.duckdb"
    for number in itertools.count(2):
        yield folder / f"{name}-{number}.duckdb"


def is_database(path: Path) -> bool:
    """Return whether a file starts like a DuckDB file."""
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == b"DUCK"
    except OSError:
        return False


def wal_path(path: Path) -> Path:
    """Return the path of a file's write-ahead log."""
    return path.with_name(path.name + ".wal")


def file_bytes(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it doesn't exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def has_log(path: Path) -> bool:
    """Return whether a recording has a write-ahead log, as it wasn't closed."""
    return file_bytes(wal_path(path)) > 0


def is_own(path: Path) -> bool:
    """Return whether a recording at ``path`` would be in files that nobody else can write."""
    try:
        require_own(path)
        modes = [each.stat().st_mode for each in with_logs(path) if each.exists()]
    except (StoreError, OSError):
        return False
    return not any(stat.S_IMODE(mode) & 0o022 for mode in modes)


def require_own(path: Path) -> None:
    """Check that a recording at ``path`` would be in no file and behind no link of another user.

    A link that leads nowhere is refused as well. Raises StoreError.
    """
    for each in with_logs(path):
        try:
            link = each.lstat()
        except PermissionError:
            sentence = f"{each} can't be written: its folder is closed to you; name another file with --db"
            raise StoreError(sentence) from None
        except OSError:  # it doesn't exist, or DuckDB reports it
            continue
        found = link
        if stat.S_ISLNK(link.st_mode):
            if link.st_uid not in (0, os.geteuid()) or not os.access(each, os.F_OK):
                raise StoreError(
                    f"{each} is a symbolic link of {owner_name(link.st_uid)} to {each.readlink()}; "
                    "remove the link, or name another file with --db"
                )
            found = each.stat()
        if found.st_uid != os.geteuid() and not stat.S_ISDIR(found.st_mode):
            raise StoreError(f"{each} belongs to {owner_name(found.st_uid)}; name another file with --db")
