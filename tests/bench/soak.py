"""The app for an hour with links failing at random: what it costs must not grow.

``python -m tests.bench soak`` watches it from outside; run by itself, this module is the app that is
watched, with the simulated nodes' connections cut by chance.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gswarm_tui import cli, parts
from gswarm_tui.arguments import Options
from gswarm_tui.launch.base import Channel, Launcher
from gswarm_tui.plan import Plan
from tests.bench.figures import Figure, Form
from tests.bench.processes import InTerminal, cpu_s, rss_mib
from tests.bench.screen import key_to_paint

NODES, GPUS = 64, 8
CUT_EVERY_S = 20.0
"""Each connection lives for so long on the average."""


@dataclass(frozen=True)
class Minute:
    """What a stretch of the run cost: percent of a core, MiB, bytes of the file, ms from key to paint."""

    cpu_pct: float
    rss_mib: float
    file_bytes: int
    key_ms: float


def run(form: Form) -> Iterator[Figure]:
    """First and last quarter of the run beside each other."""
    minutes, stretch_s = form.count(60, 4), 60.0 if not form.smoke else 1.0
    path = form.folder / "soak.duckdb"
    size = f"{form.count(NODES, 2)}x{GPUS}"
    words = [sys.executable, "-m", "tests.bench.soak", str(form.seed), size, str(path)]
    with InTerminal(words) as app:
        app.wait_for("sim")
        time.sleep(form.seconds(60))
        seen = list(_watch(app, path, minutes, stretch_s))
    quarter = max(1, len(seen) // 4)
    first, last = seen[:quarter], seen[-quarter:]
    shown = (
        ("CPU", "% of a core", "cpu_pct"),
        ("memory", "MiB", "rss_mib"),
        ("key to paint", "ms", "key_ms"),
    )
    for what, unit, name in shown:
        begin, end = (float(np.mean([getattr(m, name) for m in part])) for part in (first, last))
        yield Figure(f"soak of {minutes} min, {what} in its last quarter", end, unit, 1.1 * begin,
                     limit="first quarter", beside=begin)  # fmt: skip
    growth = np.diff([minute.file_bytes for minute in seen])
    half = len(growth) // 2
    early, late = float(np.mean(growth[:half])), float(np.mean(growth[half:]))
    yield Figure(
        f"soak of {minutes} min, file a minute in its second half", late / 1e6, "MB", 1.1 * early / 1e6,
        limit="first half", beside=early / 1e6,
    )  # fmt: skip


def _watch(app: InTerminal, path: Path, minutes: int, stretch_s: float) -> Iterator[Minute]:
    for number in range(minutes):
        began, before = time.monotonic(), cpu_s(app.pid)
        keys = [1000 * key_to_paint(app, key) for key in range(4)]
        time.sleep(max(0.0, began + stretch_s - time.monotonic()))
        cpu = 100 * (cpu_s(app.pid) - before) / (time.monotonic() - began)
        held = sum(part.stat().st_size for part in path.parent.glob(path.name + "*"))
        minute = Minute(cpu, rss_mib(app.pid), held, float(np.median(keys)))
        print(
            f"{number + 1:3d} min  {minute.cpu_pct:5.1f} %  {minute.rss_mib:6.1f} MiB  "
            f"{minute.file_bytes / 1e6:7.1f} MB  {minute.key_ms:5.1f} ms",
            file=sys.stderr,
        )
        yield minute


class Cutting:
    """A launcher whose connections break by chance; the nodes behind it go on."""

    def __init__(self, launcher: Launcher, rng: random.Random) -> None:
        self._launcher, self._rng = launcher, rng

    async def open(self, node: str) -> Channel:
        """A connection that will break."""
        return Cut(await self._launcher.open(node), self._rng.expovariate(1 / CUT_EVERY_S))

    async def close(self) -> None:
        """End what was started."""
        await self._launcher.close()


class Cut:
    """A channel that ends after a while."""

    def __init__(self, channel: Channel, lives_s: float) -> None:
        self._channel = channel
        self._until = time.monotonic() + lives_s

    async def read(self) -> bytes:
        """What comes, until it is cut."""
        try:
            async with asyncio.timeout(max(0.0, self._until - time.monotonic())):
                return await self._channel.read()
        except TimeoutError:
            return b""

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._channel.write(data)

    def stderr(self) -> bytes:
        """What the agent complained of."""
        return self._channel.stderr()

    async def explain_end(self) -> str:
        """Why it ended."""
        return "the bench cut the connection"

    async def close(self) -> None:
        """End it."""
        await self._channel.close()


def app(seed: str, size: str, path: str) -> int:
    """The app as people run it, but for the cuts."""
    make = parts.make_launcher
    rng = random.Random(seed)

    def cutting(options: Options, plan: Plan, recording: str, *, only_left: bool = False) -> Launcher:
        return Cutting(make(options, plan, recording, only_left=only_left), rng)

    parts.make_launcher = cutting
    words: Sequence[str] = ["--demo", size, "--db", path]
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(app(*sys.argv[1:]))
