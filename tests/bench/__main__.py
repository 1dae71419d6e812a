"""Runs benches, prints one table: ``python -m tests.bench [NAME …] [--smoke] [--seed N] [--keep FOLDER]``."""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.figures import Bench, BenchOptions, Figure, markdown
from tests.bytecode import write_bytecode

USUAL = ("fanout", "agent", "throughput", "server", "disk", "screen", "day", "rules", "dask", "runs")
BENCHES = (*USUAL, "memory")
"""All benches; the last one takes minutes and runs only when named."""
BUSY_LOAD = 0.5


def main() -> int:
    """Run the named benches, or all; return 0 if they ran, whether or not goals are met."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}")
    parser.add_argument("--smoke", action="store_true", help="only see that all run: little load, no meaning")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the simulated nodes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave recordings and plots there")
    asked = parser.parse_args()
    unknown = set(asked.names) - set(BENCHES)
    if unknown:
        parser.error(f"there is no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    names = asked.names or (BENCHES if asked.smoke else USUAL)
    write_bytecode()  # start-up times are those of an installed program
    smoke = "; a smoke run, whose figures mean nothing" if asked.smoke else ""
    print(_conditions(asked.seed) + smoke, end="\n\n", flush=True)
    if asked.keep:
        asked.keep.mkdir(parents=True, exist_ok=True)
    options = BenchOptions(asked.smoke, asked.seed, (asked.keep or Path()).absolute())
    _run(names, options, kept=asked.keep is not None)
    return 0


def _conditions(seed: int) -> str:
    """Return the seed that repeats the run, and how busy the machine is."""
    load = os.getloadavg()[0]
    told = f"seed {seed}, {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return told + (f"; this machine is busy (load {load:.1f}), so compare ratios" if load > BUSY_LOAD else "")


def _run(names: Sequence[str], options: BenchOptions, *, kept: bool) -> None:
    """Run benches and print their table; unless files are kept, each has a folder of its own."""
    figures: list[Figure] = []
    for name in names:
        began = time.monotonic()
        bench: Bench = importlib.import_module(f"tests.bench.{name}").run
        with tempfile.TemporaryDirectory(prefix="gswarm-bench-") as folder:
            for figure in bench(options if kept else replace(options, folder=Path(folder))):
                figures.append(figure)
                print("  ".join(cell for cell in figure.cells() if cell), file=sys.stderr)
        print(f"{name} took {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(markdown(figures))


if __name__ == "__main__":
    sys.exit(main())
