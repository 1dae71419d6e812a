"""Time to list many recordings: files never seen, the same again, and 10,000 that the catalogue knows.

The files are copies of one recording of 64 GPUs. Those that are known only need to exist: they are empty.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from gswarm_tui.run.all_runs import collect
from gswarm_tui.runs import catalogue
from tests.bench.figures import BenchOptions, Figure
from tests.integration.test_compare import frames
from tests.unit.store_recording import T0, record


def run(options: BenchOptions) -> Iterator[Figure]:
    """List folders in a process that has started, with a catalogue that is empty at first."""
    files, known, seconds = options.count(1_000, 4), options.count(10_000, 40), options.count(60, 10)
    unread, listed = options.folder / "unread", options.folder / "listed"
    unread.mkdir()
    listed.mkdir()
    path = options.folder / "run.duckdb"
    record(path, frames(64, seconds), ended_at=T0 + seconds)
    for number in range(files):
        shutil.copy(path, unread / f"{number}.duckdb")
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(options.folder / "cache")):
        for what, goal in (("never seen", 60.0), ("again", 1.0)):
            began = time.monotonic()
            lines, skipped = collect([unread], os.environ, copies=True)
            yield Figure(f"runs, {files} files {what}", time.monotonic() - began, "s", goal)
            assert (len(lines), skipped) == (files, [])
        empty = [listed / f"{number}.duckdb" for number in range(known)]
        for path in empty:
            path.touch()
        catalogue.add(
            replace(lines[0], path=str(path), run=path.stem, size=0, mtime_ns=path.stat().st_mtime_ns)
            for path in empty
        )
        began = time.monotonic()
        lines, skipped = collect([listed], os.environ)
        yield Figure(f"runs, {known} known files", time.monotonic() - began, "s", 2.0)
        assert (len(lines), skipped) == (known, [])
