"""Finds recordings below folders, and reads those that the catalogue doesn't know as they are now."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
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
Report = Callable[[list[RunLine], int, int], None]
"""Gets the lines so far, and how many files of how many were read: 0 of 0 while folders are searched.

It is called once per folder and file; an error that it raises stops the search and the reading.
"""


def search(
    places: Iterable[Path], skip: Skip, at_folder: Callable[[], None] = lambda: None
) -> Iterator[Path]:
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
            at_folder()
            here = Path(folder)
            runs = []
            if "recordings" in below:
                with contextlib.suppress(OSError):
                    runs = sorted((here / "recordings").glob(f"{RUN_PREFIX}*"))
            yield from runs
            below[:] = [] if runs else sorted(name for name in below if not name.startswith("."))
            yield from (here / name for name in sorted(files) if name.endswith(SUFFIX))


def find_runs(
    places: Iterable[Path],
    opened: Callable[[Path], QuerySource],
    skip: Skip,
    *,
    running: Collection[Path] = (),
    known_too: bool = False,
    copies: bool = False,
    report: Report = lambda _found, _read, _of: None,
) -> list[RunLine]:
    """Return a line for each recording in places, the newest first; one in several files counts once.

    What the catalogue doesn't know is read by ``opened``, and so are the files in ``running``; links to one
    file are read once. With ``known_too`` the catalogue's other recordings are returned as well, with
    ``copies`` a line of each file that has the run.
    """
    known: dict[str, list[RunLine]] = {}
    with contextlib.suppress(UserError, OSError):
        known = catalogue.load()
    found: list[RunLine] = []
    unread: dict[Path, None] = {}
    seen = set[tuple[int, ...]]()
    # Known runs come first, as the search of folders may take long.
    wanted = search(places, skip, lambda: report(found, 0, 0))
    paths = chain(map(Path, known if known_too else ()), (path.absolute() for path in wanted))
    for path in paths:
        try:
            now, file = size_and_time(path), path.stat()
        except OSError as error:
            # The file of a known run may be gone; one that was found or named can't be read.
            if not known_too or str(path) not in known:
                skip(path, error.strerror or str(error))
            continue
        # A file and a link to it differ in size if only one of them has its log beside it.
        same = file.st_dev, file.st_ino, *now
        if same in seen and not copies and path not in running:
            continue
        seen.add(same)
        if path not in running and _are_fresh(lines := known.get(str(path), []), *now):
            found += lines
        else:
            unread[path] = None
    _read(list(unread), opened, skip, found, report)
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
    paths: list[Path],
    opened: Callable[[Path], QuerySource],
    skip: Skip,
    found: list[RunLine],
    report: Report,
) -> None:
    """Read files, and add each that nobody writes to the catalogue at once: a killed list continues there."""
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
        for done, (path, (lines, why)) in enumerate(zip(paths, pool.map(read, paths), strict=True), start=1):
            found += lines
            if why:
                skip(path, why)
            report(found, done, len(paths))
    finally:
        stopped = True
        pool.shutdown(wait=False, cancel_futures=True)
        for source in list(reading):
            source.interrupt()


def once(found: Iterable[RunLine]) -> list[RunLine]:
    """Return each run once, of copies the most complete one; rather with samples, and rather a file."""
    best: dict[str, RunLine] = {}
    for line in found:
        other = best.get(line.run)
        if other is None or _rank(line) > _rank(other):
            best[line.run] = line
    return sorted(best.values(), key=lambda line: -line.started_at)


def _rank(line: RunLine) -> tuple[bool, int, bool, bool, str]:
    in_file, measured_s = line.path.endswith(SUFFIX), round(line.seconds * (line.coverage or 0.0))
    return line.state == RUNNING, measured_s, not line.thinned, in_file, line.path
