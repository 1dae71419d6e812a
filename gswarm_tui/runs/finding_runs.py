"""Finds recordings below folders, and reads those that the catalogue doesn't know as they are now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gswarm_tui.common.errors import UserError
from gswarm_tui.runs import catalogue
from gswarm_tui.runs.line import RUN_PREFIX, RUNNING, RunLine, size_and_time
from gswarm_tui.store.querying.results import QuerySource

SUFFIX = ".duckdb"
_AT_ONCE = 2
"""Files that are read at the same time: login nodes are shared."""

Skip = Callable[[Path, str], None]
"""Notes a file or folder that couldn't be read, and why."""


def search(places: Iterable[Path], skip: Skip) -> Iterator[Path]:
    """Yield the recordings in and below folders, and files that are named; hidden folders are left out.

    A run in a dataset is its folder ``recordings/run=…``.
    """
    for place in places:
        if not place.is_dir():
            yield place
            continue
        for folder, below, files in os.walk(
            place, onerror=lambda error: skip(Path(error.filename), error.strerror or str(error))
        ):
            here = Path(folder)
            runs = []
            if "recordings" in below:
                with contextlib.suppress(OSError):
                    runs = sorted((here / "recordings").glob(f"{RUN_PREFIX}*"))
            yield from runs
            below[:] = [] if runs else sorted(name for name in below if not name.startswith("."))
            yield from (here / name for name in sorted(files) if name.endswith(SUFFIX))


def find_runs(
    paths: Iterable[Path],
    opened: Callable[[Path], QuerySource],
    skip: Skip,
    *,
    running: Collection[Path] = (),
    known_too: bool = False,
    copies: bool = False,
    report: Callable[[float], None] = lambda _share: None,
) -> list[RunLine]:
    """Return a line for each recording in files, the newest first; one in several files counts once.

    What the catalogue doesn't know is read by ``opened``, and so are the files in ``running``; links to one
    file are read once. With ``known_too`` the catalogue's other recordings are returned as well, with
    ``copies`` a line of each file that has the run. ``report`` gets the share done.
    """
    known: dict[str, list[RunLine]] = {}
    with contextlib.suppress(UserError, OSError):
        known = catalogue.load()
    wanted = dict.fromkeys(str(path.absolute()) for path in paths)
    found: list[RunLine] = []
    unread = []
    seen = set[tuple[int, ...]]()
    for name in wanted | (dict.fromkeys(known) if known_too else {}):
        try:
            now, file = size_and_time(Path(name)), Path(name).stat()
        except OSError as error:
            if name in wanted:
                skip(Path(name), error.strerror or str(error))
            continue
        # A file and a link to it differ in size if only one of them has its log beside it.
        same = file.st_dev, file.st_ino, *now
        if same in seen and not copies and Path(name) not in running:
            continue
        seen.add(same)
        if Path(name) not in running and _are_fresh(lines := known.get(name, []), *now):
            found += lines
        else:
            unread.append(Path(name))
    found += _read(unread, opened, skip, report)
    return found if copies else once(found)


def known_runs() -> list[RunLine]:
    """Return the catalogue's runs as they were read, the newest first; none if it can't be read."""
    with contextlib.suppress(UserError, OSError):
        return once(line for lines in catalogue.load().values() for line in lines)
    return []


def _are_fresh(lines: list[RunLine], size: int, mtime_ns: int) -> bool:
    """Return whether lines are of a file as it is now; of a run in a dataset, only the time is known."""
    return bool(lines) and lines[0].mtime_ns == mtime_ns and size in (0, lines[0].size)


def _read(
    paths: list[Path], opened: Callable[[Path], QuerySource], skip: Skip, report: Callable[[float], None]
) -> list[RunLine]:
    """Read files, and add each that nobody writes to the catalogue at once: a killed list continues there."""
    found: list[RunLine] = []
    reading: set[QuerySource] = set()
    stopped = False

    def read(path: Path) -> tuple[list[RunLine], str]:
        # The reading of files loads DuckDB, which a list of runs in the catalogue doesn't need.
        from gswarm_tui.runs.reading import read_lines

        try:
            with contextlib.closing(opened(path)) as source:
                reading.add(source)
                try:
                    lines = [] if stopped else read_lines(source)
                finally:
                    reading.discard(source)
            with contextlib.suppress(UserError, OSError):
                catalogue.add(line for line in lines if line.state != RUNNING)
            return lines, ""
        except UserError as error:
            return [], str(error)
        except OSError as error:
            return [], error.strerror or str(error)
        except (LookupError, TypeError, ValueError, ArithmeticError):
            return [], "has values that no recording has"

    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        for done, (path, (lines, why)) in enumerate(zip(paths, pool.map(read, paths), strict=True)):
            report(done / len(paths))
            found += lines
            if why:
                skip(path, why)
    finally:
        stopped = True
        pool.shutdown(wait=False, cancel_futures=True)
        for source in list(reading):
            source.interrupt()
    return found


def once(found: Iterable[RunLine]) -> list[RunLine]:
    """Return each run once, of several copies the most complete one; a file rather than an export."""
    best: dict[str, RunLine] = {}
    for line in found:
        other = best.get(line.run)
        if other is None or _rank(line) > _rank(other):
            best[line.run] = line
    return sorted(best.values(), key=lambda line: -line.started_at)


def _rank(line: RunLine) -> tuple[bool, float, bool, str]:
    in_file = line.path.endswith(SUFFIX)
    return line.state == RUNNING, line.seconds * (line.coverage or 0.0), in_file, line.path
