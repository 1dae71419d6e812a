"""Time to list recordings on Dask's workers, against files and workers, with their start left out.

The files are links to one recording of eight GPUs, so that the disk plays no part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial

from distributed import LocalCluster

from gswarm_tui.commands.runs import _read
from gswarm_tui.runs.dask_work import WantedRun, connected, work_on
from tests.bench.figures import BenchOptions, Figure
from tests.integration.test_compare import frames
from tests.unit.store_recording import T0, record


def run(options: BenchOptions) -> Iterator[Figure]:
    """Read all files by one worker, then by two."""
    most, seconds = options.count(200, 4), options.count(600, 10)
    path = options.folder / "run.duckdb"
    record(path, frames(8, seconds), ended_at=T0 + seconds)
    wanted = []
    for number in range(most):
        os.link(path, link := options.folder / f"{number}.duckdb")
        wanted.append(WantedRun(link))
    for workers in (1, 2):
        local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
        with local as cluster, connected(cluster.scheduler_address, {}) as client:
            work_on(client, _read, partial(list, wanted[: 2 * workers]))
            for files in (most // 4, most):
                began = time.monotonic()
                answers = work_on(client, _read, partial(list, wanted[:files]))
                took = time.monotonic() - began
                assert len([one for one in answers if one.value]) == files
                yield Figure(f"runs by Dask, {workers} workers, {files} files", took, "s")
