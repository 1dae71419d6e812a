"""How cost grows with GPUs and with the rate: the whole app in a terminal, as a table and as a plot."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Drawing

from tests.bench.figures import Figure, Form
from tests.bench.processes import InTerminal, rss_mib, share_of_a_core
from tests.bench.start import PROGRAM

GPUS_A_NODE = 8
SIZES = (8, 64, 512, 4096, 8192)
RATES_HZ = (1, 2, 5, 10)
MOST_SAMPLES_A_S = 8192
"""Larger products of GPUs and rate than this are more than one simulating machine gives."""


@dataclass(frozen=True)
class Point:
    """One run: what it watched, and percent of a core and MiB that the head needed."""

    gpus: int
    hertz: int
    cpu_pct: float
    rss_mib: float

    @property
    def samples_a_s(self) -> int:
        """GPU-samples a second."""
        return self.gpus * self.hertz


def run(form: Form) -> Iterator[Figure]:
    """Every size at 1 Hz, and every rate at the sizes that fit; the figure is the cost of one more sample."""
    sizes, rates = (SIZES[:2], RATES_HZ[::3]) if form.smoke else (SIZES, RATES_HZ)
    points = [
        _measured(form, gpus, hertz)
        for gpus in sizes
        for hertz in rates
        if hertz == 1 or gpus * hertz <= MOST_SAMPLES_A_S
    ]
    picture = form.folder / "growth.svg"
    _draw(points, picture)
    print(f"the plot is {picture}", file=sys.stderr)
    smallest = points[0]
    for point in points:
        more = point.samples_a_s - smallest.samples_a_s
        each = f", {1e4 * (point.cpu_pct - smallest.cpu_pct) / more:.2f} µs a sample" if more else ""
        what = f"whole app, {point.gpus:,} GPUs at {point.hertz} Hz"
        yield Figure(what, point.cpu_pct, f"% of a core, {point.rss_mib:.0f} MiB{each}")


def _draw(points: Sequence[Point], path: Path) -> None:
    """Percent of a core and MiB over GPU-samples a second, a line a rate, both axes logarithmic."""
    figure = Drawing(figsize=(9, 4), layout="constrained")
    for place, (name, unit) in enumerate((("cpu_pct", "% of a core"), ("rss_mib", "MiB")), 1):
        axes = figure.add_subplot(1, 2, place, xscale="log", yscale="log")
        for hertz in sorted({point.hertz for point in points}):
            chosen = [point for point in points if point.hertz == hertz]
            axes.plot(
                [point.samples_a_s for point in chosen], [getattr(point, name) for point in chosen],
                marker="o", label=f"{hertz} Hz",
            )  # fmt: skip
        axes.set(xlabel="GPU-samples a second", ylabel=unit)
        axes.grid(True, which="major", alpha=0.3)
    axes.legend(title="rate")
    figure.savefig(path)


def _measured(form: Form, gpus: int, hertz: int) -> Point:
    size = f"{gpus // GPUS_A_NODE}x{GPUS_A_NODE}"
    path = form.folder / f"growth-{size}-{hertz}.duckdb"
    command = [*PROGRAM, "--demo", size, "--interval", str(1 / hertz), "--db", str(path)]
    with InTerminal(command, folder=form.folder) as app:
        app.wait_for("sim")
        time.sleep(form.seconds(8))
        return Point(gpus, hertz, share_of_a_core(app.pid, form.seconds(20)), rss_mib(app.pid))
