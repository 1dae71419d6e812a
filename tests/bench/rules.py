"""What a look of the rules at the fleet costs the recorder each second, and the memory of their window."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

from gswarm_tui.fleet.events import Event
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.live import LiveWatch
from gswarm_tui.launch.simulated import simulated_names
from gswarm_tui.run.lifetime import delay_garbage_collection
from tests.bench.figures import BenchOptions, Figure
from tests.bench.memory import GPUS, repeating_fleet
from tests.bench.processes import rss_mib

LOOKS, BEFORE = 400, 160
"""Looks at 1 Hz that count, and the frames before them, which fill the own history of 8,192 GPUs."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure looks at 512 and at 8,192 GPUs that train, with a process on each."""
    delay_garbage_collection()
    for nodes, mean_ms, p95_ms, goal_mib in ((64, 1.0, 5.0, None), (1024, None, 15.0, 40.0)):
        took, mib = _looks(options.count(nodes, 4), options.count(LOOKS, 20), options.seed)
        fleet = f"{nodes * GPUS:,} GPUs"
        yield Figure(f"rules, CPU a look at {fleet}, mean", statistics.mean(took), "ms", mean_ms)
        yield Figure("  p95", sorted(took)[int(0.95 * len(took))], "ms", p95_ms)
        yield Figure("  longest", max(took), "ms")
        if goal_mib:
            yield Figure("  memory", mib, "MiB", goal_mib)


def _looks(nodes: int, count: int, seed: int) -> tuple[list[float], float]:
    """Return the milliseconds of CPU time of each look, and the MiB that they added."""
    names = simulated_names(nodes)
    fleet, published = Fleet(names), list[Event]()
    simulated = list(repeating_fleet(names, seed))
    for node in simulated:
        for event in node.begin(1000.0):
            fleet.apply(event)
    watch, took, before = LiveWatch(fleet, published.append, user="demo"), [], 0.0
    for second in range(1, BEFORE + count):
        now = 1000.0 + second
        fleet.apply_frames([node.frame(second, now) for node in simulated])
        if second < BEFORE:
            before = rss_mib(os.getpid())
            continue
        began = time.process_time()
        watch.observe(now)
        took.append(1000 * (time.process_time() - began))
        published.clear()
    return took, rss_mib(os.getpid()) - before
