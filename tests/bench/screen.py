"""Cost of the whole app in a terminal: CPU, bytes written, key latency, missed seconds, memory."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.bench.figures import BenchOptions, Figure
from tests.bench.processes import peak_mib, share_of_a_core, with_agents
from tests.bench.standin import stand_in
from tests.bench.start import PROGRAM
from tests.terminal import InTerminal

UNDER_WAY_S = 8
MB_A_MIB = 1.048576
UNANSWERED_S = 10.0
"""A key without a paint in this time counts as this slow."""
PLACES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fleet", ("j", "k", "l", "h", *"zzzzzz", *"]]][[[", *"ooooo")),
    ("filter", ("/", *"util<95", "\r")),
    ("node", ("\r", "j", "k", "l", "h", "z")),
    ("GPU", ("\r", "l", "h", "z")),
    ("sessions", ("S",)),
    ("events", ("e", "k", "v")),
    ("looking back", (" ", ",", ".")),
    ("fleet again", ("N", "f", "j")),
)
"""Keys that each change the screen, by the screen on which they are pressed."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure eight GPUs, then 8,192 GPUs, then the memory with 8,192 and with 32."""
    yield from _eight(options)
    yield from _fleet(options)
    with _demo(options, "4x8") as app:
        _settle(app, options)
        yield Figure("memory of the head, 32 GPUs", MB_A_MIB * peak_mib(app.pid), "MB", 135)
        for key in " ,.N":
            _answered(app, key, quiet=not options.smoke)
        yield Figure("  the same after looking back", MB_A_MIB * peak_mib(app.pid), "MB")


def _demo(options: BenchOptions, size: str) -> InTerminal:
    path = options.folder / f"screen-{size}.duckdb"
    return InTerminal([*PROGRAM, "--demo", size, "--db", str(path)], folder=options.folder)


def _settle(app: InTerminal, options: BenchOptions) -> None:
    app.wait_for("sim")
    time.sleep(options.seconds(UNDER_WAY_S))


def _eight(options: BenchOptions) -> Iterator[Figure]:
    environ, seconds = stand_in(options.folder, 8), options.seconds(60)
    path = options.folder / "eight.duckdb"
    command = [*PROGRAM, "--launcher", "local", "--db", str(path)]
    with InTerminal(command, size=(120, 40), env=environ, folder=options.folder) as app:
        app.wait_for("util")
        cpu, kib = _cost(app, options, seconds)
    nvitop = Path(sys.executable).parent / "nvitop"
    beside: tuple[float | None, float | None] = (None, None)
    if nvitop.exists():
        with InTerminal(
            [str(nvitop), "--monitor", "full", "--interval", "1"], size=(120, 40), env=environ
        ) as peer:
            beside = _cost(peer, options, seconds)
    yield Figure("whole app with agent and recording, 8 GPUs at 1 Hz", cpu, "% of a core", 2.5,
                 limit="nvitop, which doesn't record", beside=beside[0])  # fmt: skip
    yield Figure("to the terminal, 8 GPUs at 1 Hz", kib, "KiB/s", 5, limit="nvitop", beside=beside[1])


def _cost(app: InTerminal, options: BenchOptions, seconds: float) -> tuple[float, float]:
    """Measure percent of a core, agents included, and KiB per second to the terminal, after the start."""
    time.sleep(options.seconds(UNDER_WAY_S))
    began = time.monotonic()
    cpu = share_of_a_core(with_agents(app.pid), seconds)
    return cpu, app.written_bytes(began, time.monotonic()) / 1024 / seconds


def _fleet(options: BenchOptions) -> Iterator[Figure]:
    nodes, seconds = options.count(1024, 8), options.seconds(40)
    with _demo(options, f"{nodes}x8") as app:
        _settle(app, options)
        began = time.monotonic()
        cpu = share_of_a_core([app.pid], seconds)
        painted = {int(at - began) for at, _ in app.writes if began <= at < began + seconds}
        yield Figure(f"whole app with recording, {nodes} × 8 GPUs at 1 Hz, 200×60", cpu, "% of a core", 30)
        yield Figure("seconds in which nothing was painted", int(seconds) - len(painted), "s", 0)
        delays = []
        for place, keys in PLACES:
            pressed = dict.fromkeys(keys) if options.smoke else keys
            took = [_answered(app, key, quiet=not options.smoke) for key in pressed]
            print(f"{place}: {', '.join(f'{1000 * s:.0f}' for s in took)} ms", file=sys.stderr)
            delays += took
        delays.sort()
        late = delays[int(0.95 * (len(delays) - 1))]
        yield Figure("key to paint on all screens, between ticks, p95", 1000 * late, "ms", 100,
                     limit="median", beside=1000 * statistics.median(delays))  # fmt: skip
        memory = MB_A_MIB * peak_mib(app.pid)
        yield Figure(f"memory of the head, {nodes * 8} GPUs, after looking back", memory, "MB", 400)


def key_to_paint(app: InTerminal, number: int) -> float:
    """Measure the time from a cursor key to its paint, down and up in turns, with no other paint."""
    return _answered(app, "k" if number % 2 else "j")


def _answered(app: InTerminal, key: str, *, quiet: bool = True) -> float:
    """Measure the time from a key to the next paint; with ``quiet`` only while nothing else is painted."""
    if quiet:
        _quiet(app)
    since, began = app.written, time.monotonic()
    app.press(key)
    try:
        return app.wait_for_writing(since, UNANSWERED_S) - began
    except TimeoutError:
        return UNANSWERED_S


def _quiet(app: InTerminal) -> None:
    """Wait until a tick was painted and nothing else is, on a busy machine only for a while."""
    began = time.monotonic()
    with suppress(TimeoutError):
        app.wait_for_writing(app.written, UNANSWERED_S)
    while time.monotonic() - app.writes[-1][0] < 0.15 and time.monotonic() - began < UNANSWERED_S:
        time.sleep(0.02)
