"""Agents' streams with changed bytes, values and messages, sent through links into fleet and recording."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from gswarm_agent.wire import LENGTH, MAGIC
from gswarm_tui.fleet.events import Event, FrameArrived, LinkChanged, Phase, RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.launch.base import Channel, Launcher, LaunchError, Retry
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.link import Clocks, Link
from gswarm_tui.store.recording.recorder import FileWriter
from tests.bench.throughput import Committed, messages_of, recording_info

NODES, FRAMES = 8, 6
STRANGE: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, -(2**63), 1e308, float("nan"), float("-inf"), "", "x" * 5000,
    "\x1b[2J\u202e", b"", b"\xff" * 64, [], {}, [[]], {"": None},
]  # fmt: skip


def mutate(messages: list[bytes], rng: random.Random) -> bytes:
    """Return a stream in which a few bytes, values or messages of a valid one are changed."""
    messages = list(messages)
    for at in rng.sample(range(len(messages)), rng.randint(1, 3)):
        body = messages[at][LENGTH.size :]
        change = rng.random()
        if change < 0.25 and body:
            flipped = bytearray(body)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            messages[at] = LENGTH.pack(len(flipped)) + flipped
        elif change < 0.75:
            value = _changed(msgpack.unpackb(body, strict_map_key=False), rng)
            packed = msgpack.packb(value)
            messages[at] = LENGTH.pack(len(packed)) + packed
        elif change < 0.85:
            messages.append(messages[at])
        elif change < 0.95:
            messages[at] = b""
        else:
            messages[at] = messages[at][: rng.randrange(len(messages[at]))]
    return MAGIC + b"".join(messages)


def _changed(value: Any, rng: random.Random) -> Any:
    """Return the value with one part replaced, or itself replaced."""
    if isinstance(value, bytes) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return value[:at] + rng.randbytes(1) + value[at + 1 :]
    parts = (
        list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    )
    if parts and rng.random() < 0.85:
        copy, part = value.copy(), rng.choice(parts)
        copy[part] = _changed(value[part], rng)
        return copy
    return rng.choice(STRANGE)


class _Streams(Launcher):
    """Launcher whose nodes send one mutated stream per connection until all were sent."""

    def __init__(self, count: int, seed: int) -> None:
        self.left = count
        self._rng = random.Random(seed)
        self._valid = {
            f"n{index}": messages_of(f"n{index}", index, NODES, FRAMES, seed) for index in range(NODES)
        }

    async def open(self, node: str, *arguments: str) -> Channel:
        """Return a channel with the next stream. Raises LaunchError after the last."""
        if not self.left:
            raise LaunchError("all streams were sent", retry=Retry.NEVER)
        self.left -= 1
        life = f"l{self.left:06}".encode()  # as long as the one that it replaces
        messages = [message.replace(f"life-{node}".encode(), life) for message in self._valid[node]]
        stream = mutate(messages, self._rng)
        return _Stream(stream)

    async def close(self) -> None:
        """Do nothing: the launcher started no process."""


class _Stream(Channel):
    def __init__(self, stream: bytes) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        stream, self._stream = self._stream, b""
        return stream

    def write(self, data: bytes) -> None:
        pass

    async def explain_end(self) -> str:
        return "the stream is over"

    async def close(self) -> None:
        pass


class QuickClocks:
    """Clocks whose sleep moves the time instead of waiting, so that no time passes between connections."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.clocks = Clocks(
            lambda: time.time() + self._ahead, lambda: time.monotonic() + self._ahead, self._sleep
        )

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self._ahead += seconds


@dataclass
class Outcome:
    """Result of a run: the closed recording's status, and the numbers of streams, frames and internal errors.

    Fewer streams are sent if all nodes end their links for good, as an agent may.
    """

    status: RecorderStatus
    streams: int
    frames: int
    errors: list[str]


class _Seen:
    """Sink that counts frames, and collects nodes whose links ended and internal errors."""

    def __init__(self) -> None:
        self.frames = 0
        self.ended: set[str] = set()
        self.errors: list[str] = []

    def submit(self, events: Sequence[Event]) -> None:
        """Take in events."""
        self.frames += sum(isinstance(event, FrameArrived) for event in events)
        for event in events:
            if isinstance(event, LinkChanged) and event.phase is Phase.LOST and event.retry_at is None:
                self.ended.add(event.node)
                self.errors += [event.reason] if event.reason.startswith("internal error") else []


async def send(path: Path, count: int, seed: int) -> Outcome:
    """Record ``count`` mutated streams."""
    launcher = _Streams(count, seed)
    names = [f"n{index}" for index in range(NODES)]
    hub = Hub(Fleet(names))
    recorder = FileWriter(path, recording_info("mutated"), Committed(hub))
    recorder.open()
    seen = _Seen()
    hub.sinks += [recorder, seen]
    for name in names:
        clocks = QuickClocks().clocks
        hub.links[name] = Link(name, launcher, 1000, hub.publish, clocks=clocks, rng=random.Random(seed))
    running = asyncio.create_task(hub.run())
    while launcher.left and len(seen.ended) < NODES and not running.done():
        await asyncio.sleep(0.01)
    await hub.stop_links()
    hub.flush()
    if running.done():
        running.result()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    status = recorder.close(time.time(), 60)
    return Outcome(status, count - launcher.left, seen.frames, seen.errors)


def main() -> int:
    """Send streams until the number is reached; print the rate."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.mutated_streams", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    sent = 0
    while sent < options.count:
        at_once = min(10_000, options.count - sent)
        with tempfile.TemporaryDirectory(prefix="gswarm-tui-") as folder:
            done = asyncio.run(send(Path(folder) / "run.duckdb", at_once, options.seed + sent))
        sent += done.streams
        print(
            f"{sent:,} streams, seed {options.seed}: {done.frames:,} frames, {done.status.rows:,} rows",
            flush=True,
        )
        for error in (*done.errors, done.status.error):
            if error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
