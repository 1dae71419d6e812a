"""Hostile agent on standard streams: `python -m tests.security.hostile_node ATTACK`.

It takes an agent's place on a node, speaks the wire, and sends until the head closes the connection.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

from gswarm_agent.frame import TABLES, ClockExchange, Frame, GpuFacts, Hello, HostFacts, Note
from gswarm_agent.metrics import HOST_COLUMNS
from gswarm_agent.wire import MAGIC, Decoder, Pong, Stop, encode
from gswarm_agent.wire_payload import MAX_GPUS

SECOND_NS = 1_000_000_000


def hello(life: str, gpus: int = 0, *, live: bool = False) -> Hello:
    """Return a hello with GPUs of this life alone; only that of a live agent has a clock."""
    now = time.time_ns()
    facts = tuple(GpuFacts(n, f"GPU-{life}-{n}", "NVIDIA H100", None, n, 81_559) for n in range(gpus))
    host = HostFacts("gpu66", "boot")
    clock = ClockExchange(now, now, now) if live else None
    return Hello("0.1.0", life, 1000, False, host, facts, {}, clock)


def frame(seq: int, ts_ns: int, notes: tuple[Note, ...] = ()) -> Frame:
    """Return a small frame without GPUs."""
    return TABLES.frame(seq, ts_ns, 0.0, 0, gpus=(), host=(1.0,) * len(HOST_COLUMNS), notes=notes)


def backdated() -> Iterator[bytes]:
    """Frames of a former life, sampled in the past, a thousand at once."""
    since = time.time_ns() - 10**15
    yield encode(hello("former"))
    for first in count(1, 1000):
        frames = (frame(seq, since + seq * SECOND_NS) for seq in range(first, first + 1000))
        yield b"".join(map(encode, frames))


def lives() -> Iterator[bytes]:
    """Sixty former lives with other GPUs each, on every connection."""
    for _ in range(60):
        yield encode(hello(os.urandom(8).hex(), MAX_GPUS))


def events() -> Iterator[bytes]:
    """Frames of the present life with a thousand long events each."""
    yield encode(hello("live", live=True))
    notes = tuple(Note("xid", "error", f"{n} " + "x" * 4000) for n in range(1000))
    for seq in count(1):
        yield encode(frame(seq, time.time_ns(), notes))


def replies() -> Iterator[bytes]:
    """Replies to pings that were never sent."""
    yield encode(hello("live", live=True))
    pong = encode(Pong(ClockExchange(1, 1, 1)))
    while True:
        yield pong * 1000


def when_stopped() -> Iterator[bytes]:
    """Backdated frames, but only once the head ends."""
    yield encode(hello("live", live=True))
    yield encode(frame(1, time.time_ns()))
    decoder = Decoder()
    while received := os.read(0, 65536):
        if any(isinstance(message, Stop) for message in decoder.feed(received)):
            break
    for seq in count(2):
        yield encode(replace(frame(seq, seq * SECOND_NS)))


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    attack.__name__: attack for attack in (backdated, lives, events, replies, when_stopped)
}


def main(attack: str) -> None:
    """Attack until the head closes the connection."""
    os.write(1, MAGIC)
    for data in ATTACKS[attack]():
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main(sys.argv[1])
