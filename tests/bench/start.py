"""Start-up time of the help and of the demo's first paint."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from tests.bench.figures import BenchOptions, Figure
from tests.terminal import InTerminal

PROGRAM = [sys.executable, "-m", "gswarm_tui"]


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure wall time from the command to the end of the help, and to the first fleet on screen."""
    runs = options.count(7, 1)
    bare = statistics.median(_took([sys.executable, "-c", "pass"]) for _ in range(runs))
    helped = statistics.median(_took([*PROGRAM, "--help"]) for _ in range(runs))
    yield Figure("--help, from the command to its end", helped, "s", 0.2, limit="bare Python", beside=bare)
    painted = statistics.median(_first_paint(options) for _ in range(runs))
    yield Figure(
        "--demo, from the command to the first paint", painted, "s", 0.7, limit="bare Python", beside=bare
    )


def _took(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def _first_paint(options: BenchOptions) -> float:
    with InTerminal([*PROGRAM, "--demo", "--no-record"], size=(120, 40), folder=options.folder) as program:
        return program.wait_for("sim01") - program.began
