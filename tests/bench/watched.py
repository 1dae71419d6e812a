"""The app on the bench's nodes, with a journal of the age of samples when they reach hub and disk.

``python -m tests.bench.watched JOURNAL FOLDER LIVES SEED WORD …`` runs it with these words of a command line.
FOLDER has the sockets of the nodes, and links to them live for LIVES seconds on the average.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from unittest.mock import patch

from gswarm_tui import cli
from gswarm_tui.fleet.events import Event, FrameArrived, LinkChanged, Phase, RecorderStatus
from gswarm_tui.launch.base import Launcher
from gswarm_tui.link.hub import Hub
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan
from gswarm_tui.store.recording.recorder import Recorder
from tests.bench.nodes import ToNodes
from tests.bench.processes import as_of_a_head
from tests.terminal import InTerminal

PROBED = 16
"""Number of nodes, spread over the fleet, whose samples' ages are logged."""
PAUSE_S = 0.05
"""The paint of a tick has ended when nothing is written for this many seconds."""


@dataclass(frozen=True)
class BenchEntry:
    """A tick of the hub at a monotonic time, or a commit.

    ``frames`` came so far; ``ages_s`` are those of the probed nodes' readings when the screen is told of
    them, or when they are on disk.
    """

    at: float
    on_disk: bool
    frames: int
    ages_s: list[float]


class Journal:
    """A sink that logs the age of samples of a few nodes.

    Readings that waited on their node for a link are left out.
    """

    def __init__(self, path: Path, nodes: Sequence[str], now: Callable[[], float]) -> None:
        self._file = path.open("a", buffering=1)
        self._now = now
        self._unsaved: dict[str, deque[tuple[str, int, float]]] = {
            node: deque() for node in nodes[:: max(1, len(nodes) // PROBED)]
        }
        self._live_since: dict[str, float] = {}
        self._frames = 0

    def submit(self, events: Sequence[Event]) -> None:
        """Log a tick of the hub."""
        now, ages = self._now(), []
        for event in events:
            if isinstance(event, FrameArrived):
                self._frames += 1
                unsaved = self._unsaved.get(event.node)
                if unsaved is not None and event.ts >= self._live_since.get(event.node, math.inf):
                    unsaved.append((event.life, event.frame.seq, event.ts))
                    ages.append(now - event.ts)
            elif isinstance(event, LinkChanged) and event.phase is Phase.LIVE:
                self._live_since[event.node] = event.at
        self._write(ages, on_disk=False)

    def committed(self, status: RecorderStatus) -> None:
        """Log a commit of the recorder."""
        now, ages = self._now(), []
        for node, unsaved in self._unsaved.items():
            while unsaved and status.committed.get((node, unsaved[0][0]), 0) >= unsaved[0][1]:
                ages.append(now - unsaved.popleft()[2])
        self._write(ages, on_disk=True)

    def _write(self, ages: list[float], *, on_disk: bool) -> None:
        if ages:
            entry = BenchEntry(time.monotonic(), on_disk, self._frames, [round(age, 4) for age in ages])
            self._file.write(json.dumps(asdict(entry)) + "\n")


@dataclass(frozen=True)
class Lags:
    """Median times [s] from a sample to disk and to its paint, in one part of the journal.

    ``worst_on_disk_s`` is the longest, ``frames_a_s`` how many frames came. NaN where there was nothing.
    """

    on_disk_s: float
    worst_on_disk_s: float
    painted_s: float
    frames_a_s: float


class Reader:
    """Reads a journal while it is written; ``writes`` are the terminal's, with their times."""

    def __init__(self, path: Path, writes: Sequence[tuple[float, int]]) -> None:
        path.touch()
        self._file, self._writes = path.open(), writes
        self._part = ""
        self._last: list[BenchEntry] = []

    def read(self) -> list[BenchEntry]:
        """Return the entries written since the last call."""
        *lines, self._part = (self._part + self._file.read()).split("\n")
        return [BenchEntry(**json.loads(line)) for line in lines]

    def wait_for(self, frames: int, timeout_s: float = 120.0) -> None:
        """Wait until this many frames have arrived."""
        deadline = time.monotonic() + timeout_s
        while all(entry.frames < frames for entry in self.read()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all nodes sent a frame within {timeout_s:g} s")
            time.sleep(0.2)

    def lags(self) -> Lags:
        """Return the lags since the last call. A sample is painted when its tick's writes end."""
        entries = self.read()
        ticks = [*self._last, *(entry for entry in entries if not entry.on_disk)]
        self._last = ticks[-1:]
        painted = []
        for tick, after in itertools.pairwise(ticks):
            if (done := _paint_ends(self._writes, tick.at, after.at)) is not None:
                painted += [age + done - tick.at for age in tick.ages_s]
        kept = [age for entry in entries if entry.on_disk for age in entry.ages_s]
        span = ticks[-1].at - ticks[0].at if len(ticks) > 1 else 0.0
        rate = (ticks[-1].frames - ticks[0].frames) / span if span else 0.0
        return Lags(_median(kept), max(kept, default=math.nan), _median(painted), rate)


def _paint_ends(writes: Sequence[tuple[float, int]], since: float, until: float) -> float | None:
    """Return the end of the first burst of writes in a time range; None without writes."""
    index = bisect_left(writes, since, key=itemgetter(0))
    if index == len(writes) or writes[index][0] >= until:
        return None
    while index + 1 < len(writes) and writes[index + 1][0] < min(until, writes[index][0] + PAUSE_S):
        index += 1
    return writes[index][0]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def in_terminal(
    journal: Path, nodes: Path, words: Sequence[str], *, lives_s: float = math.inf, seed: int = 0
) -> InTerminal:
    """Run the app in a terminal of 200×60."""
    own = map(str, (journal, nodes, lives_s, seed))
    return InTerminal([sys.executable, "-m", "tests.bench.watched", *own, *words], env=as_of_a_head())


def main(journal: Path, nodes: Path, lives_s: float, seed: str, words: Sequence[str]) -> int:
    """Run the app."""
    add = build.add_links
    rng = random.Random(seed)

    def launcher(options: Options, plan: Plan, recording: str, *, only_left: bool = False) -> Launcher:
        return ToNodes(nodes, lives_s, rng)

    def add_links(hub: Hub, launcher: Launcher, options: Options, recorder: Recorder | None) -> None:
        add(hub, launcher, options, recorder)
        noted, recorded = Journal(journal, list(hub.fleet.nodes), hub.now), hub.recorded

        def told(status: RecorderStatus) -> None:
            noted.committed(status)
            recorded(status)

        hub.sinks.append(noted)
        patches.enter_context(patch.object(hub, "recorded", told))

    with ExitStack() as patches:
        patches.enter_context(patch.object(build, "build_launcher", launcher))
        patches.enter_context(patch.object(build, "add_links", add_links))
        return cli.main(words)


if __name__ == "__main__":
    _, to, sockets, lives, seeded, *rest = sys.argv
    sys.exit(main(Path(to), Path(sockets), float(lives), seeded, rest))
