"""Growth of the cost with GPUs and sampling rate, for hub and recorder and for the whole app: table and plot.

Links, hub, recorder and screen are real; the nodes repeat what they measured beforehand, in another process
of this machine. Where they can't keep up, or the head can't, the row says so and tells no number.
"""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import duckdb

from gswarm_tui.launch.simulated import simulated_names
from tests.bench.curves import Curve, Panel, draw_panels
from tests.bench.figures import BenchOptions, Figure, number, table
from tests.bench.headless import Headless
from tests.bench.lateness import Sleeper
from tests.bench.nodes import Nodes
from tests.bench.processes import cpu_s, rss_mib
from tests.bench.watched import Reader, in_terminal
from tests.terminal import InTerminal

GPUS_A_NODE = 8
SIZES = (8, 64, 512, 4096, 8192)
RATES_HZ = (1, 4, 10)
READINGS = 20
MEASURED_S = 10.0
ENOUGH = 0.97
"""Share of the frames that must arrive; a run with fewer didn't keep up with its rate."""
BUSY_PCT = 85.0
"""The process that uses more of a core than this is the one that didn't keep up."""
ENOUGH_SAMPLES = 50_000
"""Files with fewer samples give no bytes per sample: an almost empty file already has some MB."""


@dataclass(frozen=True)
class Point:
    """One run: its fleet and the head's cost, NaN if the head couldn't keep up.

    ``bytes_a_sample`` is of the closed file, ``on_disk_s`` and ``painted_s`` are median ages of readings,
    ``late_ms`` is how late a thread that only sleeps woke meanwhile, 95th percentile.
    ``problem`` says who didn't keep up.
    """

    screen: bool
    gpus: int
    hertz: int
    cpu_pct: float = math.nan
    rss_mib: float = math.nan
    bytes_a_sample: float = math.nan
    on_disk_s: float = math.nan
    painted_s: float = math.nan
    nodes_cpu_pct: float = math.nan
    late_ms: float = math.nan
    problem: str = ""

    @property
    def samples_a_s(self) -> int:
        """GPU samples per second."""
        return self.gpus * self.hertz


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure each size at each rate, without and with the screen; return how steeply the cost grows."""
    points = []
    for gpus in SIZES[:2] if options.smoke else SIZES:
        nodes = gpus // GPUS_A_NODE
        folder = options.folder / f"growth-{gpus}"
        with Nodes(folder, nodes, GPUS_A_NODE, options.seed, readings=options.count(READINGS, 3)) as served:
            for hertz in RATES_HZ[:1] if options.smoke else RATES_HZ:
                for screen in (False,) if options.smoke and gpus == SIZES[0] else (False, True):
                    points.append(measured(options, served, hertz, screen=screen))
                    print("  ".join(cell for cell in next(_rows(points[-1:])) if cell), file=sys.stderr)
    _leave(points, options.folder)
    yield from _figures(points)


def measured(options: BenchOptions, served: Nodes, hertz: int, *, screen: bool) -> Point:
    """Measure one run of a head on these nodes; its recording stays in the bench's folder."""
    gpus = served.nodes * GPUS_A_NODE
    name = f"growth-{gpus}-{hertz}-{'app' if screen else 'headless'}"
    path, journal = options.folder / f"{name}.duckdb", options.folder / f"{name}.jsonl"
    head: AbstractContextManager[InTerminal | Headless]
    if screen:
        words = ["--demo", f"{served.nodes}x{GPUS_A_NODE}", "--interval", str(1 / hertz), "--db", str(path)]
        head = in_terminal(journal, served.folder, words)
    else:
        head = Headless(journal, served.folder, simulated_names(served.nodes), 1000 // hertz, path)
    with head as app, Sleeper() as sleeper:
        reader = Reader(journal, app.writes)
        reader.wait_for(served.nodes)
        time.sleep(options.seconds(min(8.0, 2 + gpus / 1000)))
        reader.lags()
        sleeper.late_ms()
        began, head_s, nodes_s = time.monotonic(), cpu_s(app.pid), served.cpu_s()
        time.sleep(options.seconds(MEASURED_S))
        took = time.monotonic() - began
        head_pct = 100 * (cpu_s(app.pid) - head_s) / took
        nodes_pct = 100 * (served.cpu_s() - nodes_s) / took
        memory, lags, late_ms = rss_mib(app.pid), reader.lags(), sleeper.late_ms()
    came = lags.frames_a_s / (served.nodes * hertz)
    if came < ENOUGH and not options.smoke:
        slow = "the head" if head_pct > BUSY_PCT else "the nodes" if nodes_pct > BUSY_PCT else "the machine"
        return Point(screen, gpus, hertz, problem=f"{slow} can't: {100 * came:.0f} % of the frames came")
    return Point(
        screen, gpus, hertz, head_pct, memory, _bytes_a_sample(path), lags.on_disk_s, lags.painted_s,
        nodes_pct, late_ms,
    )  # fmt: skip


def _bytes_a_sample(path: Path) -> float:
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute("SELECT count(*) FROM gpu_samples").fetchone()
    samples = found[0] if found else 0
    return path.stat().st_size / samples if samples >= ENOUGH_SAMPLES else math.nan


def _figures(points: Sequence[Point]) -> Iterator[Figure]:
    """Return the growth of CPU time divided by that of samples; the goal is at most 1."""
    good = {(p.screen, p.gpus, p.hertz): p for p in points if not p.problem}
    for screen, what in ((False, "hub + recorder"), (True, "whole app")):
        for low, high in (((8, 1), (64, 1)), ((512, 1), (8192, 1)), ((512, 1), (512, 10))):
            one, other = good.get((screen, *low)), good.get((screen, *high))
            if one is not None and other is not None:
                times = other.samples_a_s / one.samples_a_s
                yield Figure(
                    f"{what}, {low[0]:,} GPUs at {low[1]} Hz → {high[0]:,} at {high[1]} Hz",
                    other.cpu_pct / one.cpu_pct, "× the CPU", times,
                    limit="so many times the samples", beside=times,
                )  # fmt: skip


_HEAD = (
    "what", "GPUs", "Hz", "samples/s", "% of a core", "µs/sample", "MiB", "B/sample", "to disk, s",
    "painted, s", "nodes' %", "a sleeper late, ms",
)  # fmt: skip


def _rows(points: Sequence[Point]) -> Iterator[Sequence[str]]:
    for p in points:
        what = "whole app" if p.screen else "hub + recorder"
        begin = what, f"{p.gpus:,}", f"{p.hertz}", f"{p.samples_a_s:,}"
        if p.problem:
            yield *begin, p.problem, "", "", "", "", "", "", ""
            continue
        each_us = 1e4 * p.cpu_pct / p.samples_a_s
        yield (
            *begin, number(p.cpu_pct), number(each_us), number(p.rss_mib), _told(p.bytes_a_sample),
            _told(p.on_disk_s), _told(p.painted_s), f"{p.nodes_cpu_pct:.0f}",
            _told(p.late_ms),
        )  # fmt: skip


def _told(value: float) -> str:
    return "" if math.isnan(value) else number(value)


def _leave(points: Sequence[Point], folder: Path) -> None:
    """Print the table, and write ``growth.csv``, ``growth.png`` and ``growth.svg``."""
    with (folder / "growth.csv").open("w", newline="") as file:
        written = csv.DictWriter(file, [field.name for field in fields(Point)])
        written.writeheader()
        written.writerows(asdict(point) for point in points)
    print(table(_HEAD, list(_rows(points))), end="\n\n")
    failed = [f"{p.gpus:,} GPUs at {p.hertz} Hz" for p in points if p.problem]
    below = f"without {', '.join(dict.fromkeys(failed))}, which this machine can't do" if failed else ""
    for kind in ("png", "svg"):
        draw_panels(_panels(points), folder / f"growth.{kind}", below=below)
    print(f"the plot is {folder / 'growth.png'}, and growth.svg beside it", file=sys.stderr)


def _panels(points: Sequence[Point]) -> list[Panel]:
    whole, recording = ([p for p in points if p.screen is screen] for screen in (True, False))
    load, gpus = "GPU-samples a second", "GPUs"
    return [
        Panel("CPU of links, hub and recorder, % of a core", load, _curves(recording, load, "cpu_pct"), True),
        Panel("CPU of the whole app at 200×60, % of a core", load, _curves(whole, load, "cpu_pct"), True),
        Panel("memory of the whole app, MiB", gpus, _curves(whole, gpus, "rss_mib")),
        Panel("from a reading to the disk, median s", load, _curves(whole, load, "on_disk_s")),
        Panel("from a reading to the screen, median s", load, _curves(whole, load, "painted_s")),
        Panel("closed file, bytes a GPU-sample", load, _curves(whole, load, "bytes_a_sample")),
    ]


def _curves(points: Sequence[Point], over: str, name: str) -> list[Curve]:
    """Return a curve for each rate."""
    curves = []
    for hertz in sorted({p.hertz for p in points}):
        chosen = [p for p in points if p.hertz == hertz]
        x = [p.gpus if over == "GPUs" else p.samples_a_s for p in chosen]
        curves.append(Curve(f"{hertz} Hz", x, [getattr(p, name) for p in chosen]))
    return curves
