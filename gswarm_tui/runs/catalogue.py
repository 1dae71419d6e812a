"""Catalogue of this user's recordings: a line for each in the cache folder, so that lists open no file twice.

Lines are only added, and later ones of a file win. It can be deleted at any time: what isn't in it is read
from the files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

from gswarm_tui.common.paths import cache_folder
from gswarm_tui.runs.line import RunLine

_REWRITTEN_FROM = 100
"""A catalogue with fewer lines isn't worth a rewrite."""


def load() -> dict[str, list[RunLine]]:
    """Return the newest lines of each file by its path; lines that can't be read are skipped.

    Rewrites the catalogue, without files that are gone, when half of its lines are outdated. Raises
    UserError, OSError.
    """
    found, lines = _read()
    kept = sum(map(len, found.values()))
    if lines > _REWRITTEN_FROM and 2 * kept < lines:
        with _locked() as path:
            found, _ = _read()
            # A file that is back later, with its disk, is read again.
            found = {name: found[name] for name in found if os.path.exists(name)}  # noqa: PTH110
            with NamedTemporaryFile("w", prefix=".runs.", dir=path.parent, delete=False) as part:
                part.writelines(f"{line.to_json()}\n" for of_file in found.values() for line in of_file)
            Path(part.name).replace(path)
    return found


def add(lines: Iterable[RunLine]) -> None:
    """Add lines, which replace those of the same files. Raises UserError, OSError."""
    if added := "".join(f"{line.to_json()}\n" for line in lines):
        with _locked() as path, path.open("ab") as file:
            # A line that was cut short ends here.
            file.write(b"\n" * (file.tell() > 0) + added.encode())


def _read() -> tuple[dict[str, list[RunLine]], int]:
    """Return the newest lines of each file, and the number of all lines."""
    found: dict[str, list[RunLine]] = {}
    count = 0
    with contextlib.suppress(FileNotFoundError), _path().open("rb") as file:
        for text in file:
            count += len(text) > 1
            with contextlib.suppress(ValueError, TypeError, KeyError):
                line = RunLine.from_json(text)
                same = found.setdefault(line.path, [])
                if same and (same[0].size, same[0].mtime_ns) != (line.size, line.mtime_ns):
                    same.clear()
                same[:] = [one for one in same if one.run != line.run] + [line]
    return found, count


def _path() -> Path:
    return cache_folder() / "runs.jsonl"


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    """Hold the catalogue's lock, which is a file of its own, as a rewrite replaces the catalogue."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
    finally:
        os.close(lock)
