"""Disk space per GPU sample while recording and afterwards.

Nodes are simulated second by second, four seconds a commit so that it ends some day. Power
has the noise of a real board, in NVML's milliwatts. Host and process rows are counted in.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from gswarm_agent.frame import TABLES, Hello
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_tui.fleet.events import Event, FrameArrived, NodeIntroduced, RecorderStatus
from gswarm_tui.launch.simulated import simulated_names
from gswarm_tui.store.recording.database import RecordingInfo
from gswarm_tui.store.recording.recorder import FileWriter
from tests.bench.figures import BenchOptions, Figure

GPUS = 8
A_COMMIT = 4
"""Seconds of samples in each commit; a live recording commits each second, with the same rows."""
BEGAN = 1_772_409_600
_POWER = GPU_COLUMNS.index("power_w")


def run(options: BenchOptions) -> Iterator[Figure]:
    """Record a working day of 64 GPUs."""
    nodes, seconds = options.count(8, 2), options.count(28_800, 60)
    last_status = _LastStatus()
    recorder = FileWriter(options.folder / "disk.duckdb", _INFO, last_status, commit_every_s=0)
    recorder.open()
    sizes = []
    waiting: list[Event] = []
    for second, events in enumerate(_seconds(nodes, seconds, options.seed), 1):
        waiting += events
        if second % A_COMMIT:
            continue
        recorder.submit(waiting)
        waiting = []
        status = last_status.wait(second * nodes)
        sizes.append(status.file_bytes / (second * nodes * GPUS))
    began = time.monotonic()
    closed = recorder.close(BEGAN + seconds, 60)
    close_s = time.monotonic() - began
    samples = nodes * GPUS * seconds
    running = sizes[len(sizes) // 2 :]
    hours = f"{seconds / 3600:.2g} h × {nodes * GPUS} GPUs"
    yield Figure(f"disk, a GPU-sample, closed, {hours}", closed.file_bytes / samples, "bytes", 26)
    yield Figure("disk, a GPU-sample, running, second half", median(running), "bytes", 45)
    yield Figure("disk, a GPU-sample, running, worst moment of that", max(running), "bytes", 45)
    yield Figure("writing the last frames and closing", close_s, "s")


_INFO = RecordingInfo(BEGAN, "bench", "bench", "disk", 1000, "bench")


class _LastStatus:
    """Waits for the recorder's commits."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._status: RecorderStatus | None = None

    def __call__(self, status: RecorderStatus) -> None:
        with self._changed:
            self._status = status
            self._changed.notify()

    def wait(self, frames: int) -> RecorderStatus:
        """Return the first status with this many frames on disk."""

        def on_disk() -> bool:
            return self._status is not None and sum(self._status.committed.values()) >= frames

        with self._changed:
            if not self._changed.wait_for(on_disk, 60) or self._status is None:
                raise TimeoutError(f"{frames} frames were not committed within a minute")
            return self._status


def _seconds(nodes: int, seconds: int, seed: int) -> Iterator[list[Event]]:
    """Yield the events of each second; the first second also holds the hellos."""
    noise = random.Random(seed)
    names = simulated_names(nodes)
    machines = [
        SimulatedNode(Simulation(name, place, nodes, GPUS, seed, 0)) for place, name in enumerate(names)
    ]
    events: list[Event] = []
    hellos: dict[str, Hello] = {}
    for name, machine in zip(names, machines, strict=True):
        host, gpus, capabilities = machine.facts()
        hello = Hello("bench", f"life-{name}", 1000, True, host, gpus, capabilities)
        hellos[name] = hello
        events.append(NodeIntroduced(name, BEGAN, hello))
    for second in range(seconds):
        for name, machine in zip(names, machines, strict=True):
            late_ms = noise.expovariate(1 / 0.15)
            at = BEGAN + second + late_ms / 1000
            reading = _noisy(machine.read(round((60 + second) * 1e9 + late_ms * 1e6)), noise)
            frame = TABLES.frame(
                second + 1,
                round(at * 1e9),
                late_ms,
                0,
                gpus=reading.gpus,
                host=reading.host,
                processes=reading.processes,
            )
            events.append(FrameArrived(name, at, BEGAN + second, f"life-{name}", frame))
        yield events
        events = []


def _noisy(reading: TickSamples, noise: random.Random) -> TickSamples:
    rows = []
    for row in reading.gpus:
        values = list(row or ())
        if (power := values[_POWER]) is not None:
            values[_POWER] = round(power + noise.gauss(0, 1.5), 3)
        rows.append(tuple(values))
    return replace(reading, gpus=tuple(rows))
