"""The whole program in a terminal: start, CPU beside nvitop, keys and paints beside other work, memory."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from tests.bench.figures import BenchOptions, Figure
from tests.bench.processes import PROGRAM, Tree, busy_processes, stand_in
from tests.terminal import InTerminal

UNDER_WAY_S = 8
UNANSWERED_S = 10.0
"""A key without a paint in this time counts as this slow."""
UNPAINTED_S = 2.0
"""A longer time without a paint counts as unpainted: paints are a second apart, give or take a few ms."""
BUSY = 2
PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fleet", ("j", "k", "l", "h", *"zzzzzz", *"]]][[[", *"ooooo")),
    ("filter", ("/", *"util<95", "\r")),
    ("node", ("\r", "j", "k", "l", "h", "z")),
    ("GPU", ("\r", "l", "h", "z")),
    ("sessions", ("S",)),
    ("events", ("e", "k", "v")),
    ("fleet again", ("N", "f", "j")),
)
"""Keys that each change the screen, by the screen on which they are pressed."""
LOOK_BACK = (" ", ",", ".", "N")
"""Keys that look back, go to earlier and later moments, and return to now."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure the start, then eight GPUs, then the memory of 32 GPUs, then a large fleet."""
    yield from _starts(options)
    yield from _eight(options)
    with _demo(options, "4x8") as (app, tree):
        yield from _memory(options, app, tree, "32 GPUs", 190)
    yield from _fleet(options)


@contextmanager
def _demo(options: BenchOptions, size: str) -> Iterator[tuple[InTerminal, Tree]]:
    tree, path = Tree(size), options.folder / f"screen-{size}-{time.monotonic_ns()}.duckdb"
    command = [*PROGRAM, "--demo", size, "--db", str(path)]
    with InTerminal(command, env=tree.environ(), folder=options.folder) as app:
        yield app, tree


def _starts(options: BenchOptions) -> Iterator[Figure]:
    """Measure the time from the command to the first paint, and until all nodes are live."""
    for nodes, runs in ((4, options.count(5, 1)), (options.count(1024, 8), options.count(3, 1))):
        painted, live = [], []
        for _ in range(runs):
            with _demo(options, f"{nodes}x8") as (app, _tree):
                painted.append(app.wait_for("sim") - app.began)
                live.append(app.wait_for(f"nodes {nodes:,}/{nodes:,} ") - app.began)
        fleet = f"{nodes} simulated nodes × 8 GPUs"
        yield Figure(f"first paint, {fleet}", statistics.median(painted), "s")
        yield Figure("  all nodes live", statistics.median(live), "s")


def _eight(options: BenchOptions) -> Iterator[Figure]:
    environ, seconds = stand_in(options.folder, 8), options.seconds(60)
    command = [*PROGRAM, "--launcher", "local", "--db", str(options.folder / "eight.duckdb")]
    cpu, kib = _cost(command, environ, options, seconds)
    beside: tuple[float | None, float | None] = (None, None)
    nvitop = Path(sys.executable).parent / "nvitop"
    if nvitop.exists():
        beside = _cost([str(nvitop), "--monitor", "full", "--interval", "1"], environ, options, seconds)
    yield Figure("all processes, agent and recording included, 8 GPUs at 1 Hz", cpu, "% of a core",
                 1.75 * beside[0] if beside[0] else None,
                 limit="nvitop, which doesn't record", beside=beside[0])  # fmt: skip
    yield Figure("to the terminal, 8 GPUs at 1 Hz", kib, "KiB/s", 5, limit="nvitop", beside=beside[1])


def _cost(
    command: list[str], environ: dict[str, str], options: BenchOptions, seconds: float
) -> tuple[float, float]:
    """Return percent of a core of all its processes, and KiB per second to the terminal, after the start."""
    tree = Tree("eight")
    with InTerminal(command, size=(120, 40), env=tree.environ(environ), folder=options.folder) as app:
        app.wait_for("MEM" if "nvitop" in command[0] else "util")
        time.sleep(options.seconds(UNDER_WAY_S))
        began = time.monotonic()
        cpu = tree.share_of_a_core(seconds)
        return cpu, app.written_bytes(began, time.monotonic()) / 1024 / seconds


def _memory(
    options: BenchOptions, app: InTerminal, tree: Tree, fleet: str, goal_mb: float
) -> Iterator[Figure]:
    app.wait_for("sim")
    time.sleep(options.seconds(UNDER_WAY_S))
    before = tree.pss_mb()
    for key in LOOK_BACK:
        _answered(app, key, quiet=not options.smoke)
    yield Figure(f"memory of all processes (Pss), {fleet}", before, "MB", goal_mb)
    yield Figure("  the same after looking back", tree.pss_mb(), "MB", goal_mb)


def _fleet(options: BenchOptions) -> Iterator[Figure]:
    nodes, seconds = options.count(1024, 8), options.seconds(40)
    with _demo(options, f"{nodes}x8") as (app, tree):
        app.wait_for(f"nodes {nodes:,}/{nodes:,} ")
        time.sleep(options.seconds(UNDER_WAY_S))
        fleet = f"{nodes} × 8 GPUs at 1 Hz, 200×60, recording"
        yield Figure(f"all processes, {fleet}", tree.share_of_a_core(seconds), "% of a core")
        yield from _responds(options, app, seconds, f"{fleet}, quiet", 100)
        with busy_processes(BUSY):
            yield from _responds(options, app, seconds, f"{fleet}, beside {BUSY} busy processes", 300)
        yield from _memory(options, app, tree, f"{nodes * 8:,} GPUs", 650)


def _responds(
    options: BenchOptions, app: InTerminal, seconds: float, what: str, goal_ms: float
) -> Iterator[Figure]:
    """Measure the time without a paint, then the time from keys to their paints on all screens."""
    began = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    painted = [began, *(at for at, _ in app.writes if began <= at < ended), ended]
    gaps = [later - earlier for earlier, later in pairwise(painted)]
    delays = []
    for place, keys in PLACES:
        took = [_answered(app, key, quiet=not options.smoke) for key in keys]
        print(f"{place}: {', '.join(f'{1000 * s:.0f}' for s in took)} ms", file=sys.stderr)
        delays += took
    delays.sort()
    late = delays[int(0.95 * (len(delays) - 1))]
    yield Figure(f"key to paint, {what}, p95", 1000 * late, "ms", goal_ms,
                 limit="median", beside=1000 * statistics.median(delays))  # fmt: skip
    unpainted = sum(gap for gap in gaps if gap > UNPAINTED_S)
    yield Figure(f"  gaps between paints longer than {UNPAINTED_S:g} s, in all", unpainted, "s", 0,
                 limit="longest gap", beside=max(gaps))  # fmt: skip


def _answered(app: InTerminal, key: str, *, quiet: bool) -> float:
    """Measure the time from a key to the next paint; with ``quiet`` only while nothing else is painted."""
    if quiet:
        began = time.monotonic()
        with suppress(TimeoutError):
            app.wait_for_writing(app.written, UNANSWERED_S)
        while time.monotonic() - app.writes[-1][0] < 0.15 and time.monotonic() - began < UNANSWERED_S:
            time.sleep(0.02)
    since, pressed = app.written, time.monotonic()
    app.press(key)
    try:
        return app.wait_for_writing(since, UNANSWERED_S) - pressed
    except TimeoutError:
        return UNANSWERED_S
