"""Memory of the head: a large fleet with its whole history, and a day of a small fleet.

``python -m tests.bench.memory PATH NODES SEED SECONDS TELL_EVERY`` watches and records nodes for so many
seconds of a clock that goes as fast as this machine does, in a process of its own, and prints its memory.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gswarm_agent.frame import TABLES, Frame, Hello
from gswarm_agent.server import make_hello
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_tui.fleet.events import FrameArrived, LinkChanged, NodeIntroduced, Phase, RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.launch.simulated import simulated_names
from gswarm_tui.link.hub import Hub
from gswarm_tui.run.lifetime import delay_garbage_collection
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from tests.bench.figures import BenchOptions, Figure, number
from tests.bench.processes import as_of_a_head, rss_mib

GPUS = 8
RECORDED, READINGS = 16, 30
"""Nodes and samples that are simulated; other nodes and later times repeat them."""
TOGETHER = 10
"""Seconds in one transaction: this bench doesn't measure the cost of transactions."""
HOUR = 3600
FULL_S = 300
"""Twice the length of the history of 8,192 GPUs."""


def run(options: BenchOptions) -> Iterator[Figure]:
    """Measure the head without a screen; the screen's bench measures its share."""
    nodes = options.count(1024, 4)
    memory_mib = _watched(
        options.folder / "full.duckdb", nodes, options.seed, options.count(FULL_S, 20), options.count(60, 10)
    )
    yield Figure(
        f"hub + recorder, {nodes * GPUS:,} GPUs with all history", max(memory_mib), "MiB", 400 / 1.048576
    )  # fmt: skip
    hour = options.count(HOUR, 2)
    memory_mib = _watched(options.folder / "day.duckdb", 8, options.seed, 24 * hour, max(1, hour // 4))
    quarter = len(memory_mib) // 4
    early, late = (
        statistics.median(memory_mib[quarter : 2 * quarter]),
        statistics.median(memory_mib[-quarter:]),
    )
    print(f"hub + recorder, day of 64 GPUs, MiB by hour: {_by_hour(memory_mib)}", file=sys.stderr)
    yield Figure(
        "hub + recorder, day of 64 GPUs, median of the last 6 hours", late, "MiB", 1.02 * early,
        limit="the median from the 6th to the 12th hour", beside=early,
    )  # fmt: skip


def _by_hour(memory_mib: Sequence[float]) -> str:
    return " ".join(number(one) for one in memory_mib[:: max(1, len(memory_mib) // 24)])


def _watched(path: Path, nodes: int, seed: int, seconds: int, report_every: int) -> list[float]:
    """Return the memory [MiB] of a process that monitors nodes, at each line that it prints."""
    words = map(str, (path, nodes, seed, seconds, report_every))
    command = [sys.executable, "-m", "tests.bench.memory", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=as_of_a_head()
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        memory_mib = []
        for _line in process.stdout:
            memory_mib.append(rss_mib(process.pid))
            process.stdin.write("\n")
            process.stdin.flush()
    if process.returncode:
        raise RuntimeError("the measured process failed")
    return memory_mib


class _RepeatingNode:
    """Node that sends the same frames again and again, at later times."""

    def __init__(self, name: str, hello: Hello, frames: Sequence[Frame], first: int) -> None:
        self.name, self._hello = name, hello
        self._frames = itertools.islice(itertools.cycle(frames), first, None)

    def begin(self, at: float) -> list[NodeIntroduced | LinkChanged]:
        """Return its hello and the start of its link."""
        live = LinkChanged(self.name, at, Phase.LIVE)
        return [NodeIntroduced(self.name, at, self._hello, False), live]

    def frame(self, seq: int, at: float) -> FrameArrived:
        """Return its frame of a second."""
        frame = replace(next(self._frames), seq=seq, ts_ns=round(at * 1e9))
        return FrameArrived(self.name, at, at, self._hello.life, frame)


def repeating_fleet(names: Sequence[str], seed: int) -> Iterator[_RepeatingNode]:
    """Yield simulated nodes, of which only ``RECORDED`` are simulated and the others send the same."""
    recorded = []
    for index, name in enumerate(names):
        node = SimulatedNode(Simulation(name, index, len(names), GPUS, seed, 0))
        hello = make_hello(node, 1000, f"life-{name}", {})
        if index < RECORDED:
            readings = [node.read((60 + n) * 10**9) for n in range(READINGS)]
            recorded.append(
                [
                    TABLES.frame(
                        1, 0, 0.1, 0, gpus=one.gpus, host=one.host, processes=one.processes, notes=one.notes
                    )
                    for one in readings
                ]
            )
        yield _RepeatingNode(name, hello, recorded[index % RECORDED], index // RECORDED)


def _watch(path: Path, nodes: int, seed: int, seconds: int, report_every: int) -> None:
    names, began, elapsed_s = simulated_names(nodes), 1.7e9, [0.0]
    hub = Hub(Fleet(names), clock=lambda: began + elapsed_s[0])

    def committed(_status: RecorderStatus) -> None:
        pass

    info = RecordingInfo(began, "bench", "bench", "bench", 1000, "bench")
    recorder = FileWriter(path, info, committed, commit_every_s=0.0)
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    delay_garbage_collection()
    fleet = list(repeating_fleet(names, seed))
    for node in fleet:
        for event in node.begin(began):
            hub.publish(event)
    for second in range(1, seconds + 1):
        elapsed_s[0] = float(second)
        for node in fleet:
            hub.publish(node.frame(second, began + second))
        hub.flush()
        if second % TOGETHER == 0 or second % report_every == 0:
            while sum(recorder.status().committed.values()) < second * nodes:
                time.sleep(0.002)
        if second % report_every == 0:
            print(second, flush=True)
            sys.stdin.readline()
    recorder.close(hub.now(), 60)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), *map(int, sys.argv[2:]))
