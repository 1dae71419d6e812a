"""Time to summarise recordings on Dask's workers, against files and workers, with their start left out.

The CPU time of the busiest worker is the time that the work takes if each worker has a free core. The files
are links to one recording of eight GPUs, so that the disk plays no part. ``--keep FOLDER`` keeps the plot,
``dask.svg``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.figure
from distributed import LocalCluster

from gswarm_tui.commands.dask_choice import _load
from gswarm_tui.common.quantities import plural
from gswarm_tui.plotting import style
from gswarm_tui.plotting.figure import figure_bytes
from gswarm_tui.runs.dask_work import WantedRun, connected, work_on
from tests.bench.figures import BenchOptions, Figure
from tests.integration.test_compare import frames
from tests.unit.store_recording import T0, record


def run(options: BenchOptions) -> Iterator[Figure]:
    """Read files by one, two and four workers, and plot the times."""
    most, seconds = options.count(80, 4), options.count(600, 10)
    path = options.folder / "run.duckdb"
    record(path, frames(8, seconds), ended_at=T0 + seconds)
    wanted = []
    for number in range(most):
        os.link(path, link := options.folder / f"{number}.duckdb")
        wanted.append(WantedRun(link))
    times: dict[str, list[tuple[int, float]]] = {}
    for workers in (1, 2, 4):
        local = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0")
        with local as cluster, connected(cluster.scheduler_address, {}) as client:
            work_on(client, _load, partial(list, wanted[: 2 * workers]))
            for files in (most // 4, most // 2, most):
                before, own = client.run(time.process_time), time.process_time()
                answers = work_on(client, _load, partial(list, wanted[:files]))
                own, after = time.process_time() - own, client.run(time.process_time)
                assert len([one for one in answers if one.value]) == files
                took = max(after[worker] - before[worker] for worker in after)
                times.setdefault(plural(workers, "worker"), []).append((files, took))
                yield Figure(f"summary by Dask, {plural(workers, 'worker')}, {files} files", took, "s")
    yield Figure(f"scheduler and command, {plural(workers, 'worker')}, {files} files", own, "s")
    (options.folder / "dask.svg").write_bytes(_plot(times))


def _plot(times: Mapping[str, Sequence[tuple[int, float]]]) -> bytes:
    """Return a plot of the seconds for each number of files, with a line for each number of workers."""
    with style.plot_style():
        figure = matplotlib.figure.Figure(figsize=(4, 2.2), layout="constrained")
        axes: Any = figure.subplots()
        for colour, (label, points) in zip(style.VALUES, times.items(), strict=False):
            axes.plot(*zip((0, 0.0), *points, strict=True), "o-", ms=2.5, color=colour, label=label)
        axes.set(xlabel="files", ylabel="seconds", xlim=0, ylim=0)
        axes.grid(axis="y")
        axes.legend(frameon=False)
        return figure_bytes(figure, "svg", "Time to summarise recordings by Dask")
