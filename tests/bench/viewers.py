"""CPU time that viewers cost a recorder at 1 Hz; ``python -m tests.bench.viewers PATH`` is a viewer."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from gswarm_tui.commands.head_choice import choose_head
from gswarm_tui.control.attached import AttachedRun
from gswarm_tui.control.routes import SocketRoute
from tests.bench.figures import BenchOptions, Figure
from tests.bench.nodes import Nodes
from tests.bench.processes import cpu_s
from tests.bench.record import GPUS_A_NODE, recording
from tests.bench.watched import Reader

VIEWERS = 8
SETTLES_S, MEASURED_S = 8.0, 15.0
GOAL = 1.0
"""Percent of a core for each viewer."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure a recorder without and with viewers, in turns."""
    nodes, viewers = options.count(64, 2), options.count(VIEWERS, 2)
    journal, db = options.folder / "viewers.jsonl", options.folder / "viewers.duckdb"
    costs, starts = [], []
    with (
        Nodes(
            options.folder / "viewers", nodes, GPUS_A_NODE, options.seed, readings=options.count(30, 3)
        ) as served,
        recording(journal, served.folder, nodes, db) as pids,
    ):
        Reader(journal, ()).wait_for(nodes)
        time.sleep(options.seconds(SETTLES_S))
        for _ in range(options.count(5, 1)):
            alone = _share(pids, options.seconds(MEASURED_S))
            before = sum(map(cpu_s, pids))
            began = time.monotonic()
            with _following(db, viewers):
                time.sleep(options.seconds(SETTLES_S))
                used = 1000 * (sum(map(cpu_s, pids)) - before - alone / 100 * (time.monotonic() - began))
                starts.append(used / viewers)
                costs.append((_share(pids, options.seconds(MEASURED_S)) - alone) / viewers)
    fleet = f"{nodes} nodes × {GPUS_A_NODE} GPUs at 1 Hz"
    yield Figure(
        f"recorder for each viewer, {fleet}", max(0.0, statistics.median(costs)), "% of a core", goal=GOAL
    )
    yield Figure("   its start, with the last minutes", max(0.0, statistics.median(starts)), "ms of CPU")


def _share(pids: Sequence[int], seconds: float) -> float:
    """Return the share of a core that these processes need, in percent."""
    began, before = time.monotonic(), sum(map(cpu_s, pids))
    time.sleep(seconds)
    return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


@contextmanager
def _following(db: Path, viewers: int) -> Iterator[None]:
    """Run viewers until the end of the block; they have the first state when it begins."""
    words = [sys.executable, "-m", "tests.bench.viewers", str(db)]
    started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(viewers)]
    try:
        for viewer in started:
            assert viewer.stdout is not None
            assert viewer.stdout.readline() == "attached\n", "a viewer ended"
        yield
    finally:
        for viewer in started:
            viewer.kill()
            viewer.communicate()


async def _view(db: Path) -> None:
    arguments = argparse.Namespace(recording="", db=db)
    attached = AttachedRun(SocketRoute(os.environ, partial(choose_head, arguments, os.environ)))
    await attached.start()
    print("attached", flush=True)
    await attached.run()


if __name__ == "__main__":
    asyncio.run(_view(Path(sys.argv[1])))
