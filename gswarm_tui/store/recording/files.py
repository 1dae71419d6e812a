"""The default name of a recording file, and checks of existing files."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from gswarm_tui.store.errors import StoreError, owner_name


def default_paths(folder: Path, now: datetime, job_id: str | None = None) -> Iterator[Path]:
    """Yield paths in ``folder`` named after the Slurm job, else after the local time ``now`` to the minute.

    An existing file gets one more recording, so nothing is overwritten. The numbered names are for the case
    that another program records into the first.
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


def has_log(path: Path) -> bool:
    """Return whether a recording has a write-ahead log, as it wasn't closed."""
    try:
        return path.with_name(path.name + ".wal").stat().st_size > 0
    except OSError:
        return False


def is_own(path: Path) -> bool:
    """Return whether nobody else can write the file and its write-ahead log, if they exist."""
    for each in (path, path.with_name(path.name + ".wal")):
        try:
            found = each.stat()
        except FileNotFoundError:
            if each.is_symlink():
                return False
            continue
        except OSError:
            return False
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return False
    return True


def require_own(path: Path) -> None:
    """Check that a recording at ``path`` would be in no file of another user and behind no dangling link.

    Raises StoreError.
    """
    for each in (path, path.with_name(path.name + ".wal")):
        try:
            link = each.lstat()
            found = each.stat()
        except FileNotFoundError:
            if each.is_symlink():
                raise StoreError(
                    f"{each} is a symbolic link of {owner_name(link.st_uid)} to {each.readlink()}, which "
                    "doesn't exist; remove the link, or name another file with --db"
                ) from None
            continue
        except PermissionError:
            sentence = f"{each} can't be written: you may not enter its folder; name another file with --db"
            raise StoreError(sentence) from None
        except OSError:  # DuckDB reports it
            continue
        if stat.S_ISREG(found.st_mode) and found.st_uid != os.geteuid():
            raise StoreError(f"{each} belongs to {owner_name(found.st_uid)}; name another file with --db")
