"""Limits on what one node may send: unacknowledged frames, the frame rate, hellos and losses.

A node that sends without end must not take the head's memory or keep other nodes' frames away.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import replace

from gswarm_agent.frame import Hello
from gswarm_agent.wire import Ping
from gswarm_agent.wire_payload import WireError

MAX_UNACKNOWLEDGED_BYTES = 192 * 1024 * 1024
"""Limit for all nodes together; a recorder queues more."""
BURST_FRAMES = 100
MAX_RATE = 5
"""Multiple of the configured sampling rate."""
MAX_FORMER_LIVES = 64
"""Limit for one connection. Once their frames are on disk, the next connection no longer announces them."""
MAX_HELLOS = 32
MAX_LOSSES = 1000


class Backlog:
    """A node's frames that aren't acknowledged yet; above the high-water mark the link stops reading."""

    def __init__(self, high_water_bytes: int) -> None:
        self._high_water_bytes = high_water_bytes
        self._bytes = 0
        self._frames: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._has_room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether the high-water mark is reached."""
        return self._bytes >= self._high_water_bytes

    def add(self, life: str, seq: int, size: int) -> None:
        """Add a frame of about ``size`` bytes."""
        self._frames[life].append((seq, size))
        self._bytes += size
        if self.is_full:
            self._has_room.clear()

    def acknowledge(self, life: str, seq: int) -> None:
        """Remove the frames of a life up to ``seq``."""
        frames = self._frames.get(life)
        while frames and frames[0][0] <= seq:
            self._bytes -= frames.popleft()[1]
        if not self.is_full:
            self._has_room.set()

    def clear(self) -> None:
        """Remove all frames."""
        self._bytes = 0
        self._frames.clear()
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Wait until the backlog is below the high-water mark."""
        await self._has_room.wait()


class RateLimit:
    """Detects an agent that sends more frames than it can have sampled since its link is live.

    Frames sampled before may arrive at any rate. ``start_ns`` is the node's time at the start, ``at`` the
    head's in seconds.
    """

    def __init__(self, start_ns: int, at: float, interval_ms: int) -> None:
        self._start_ns = start_ns
        self._at = at
        self._shortest_ms = interval_ms
        self._frames = 0

    def set_interval(self, interval_ms: int) -> None:
        """Note a new sampling interval; the shortest one counts."""
        self._shortest_ms = min(self._shortest_ms, interval_ms)

    def check(self, ts_ns: int, at: float) -> str:
        """Count a frame sampled at ``ts_ns`` that arrived ``at``; return the violation, mostly none."""
        if ts_ns <= self._start_ns:
            return ""
        self._frames += 1
        elapsed_s = max(0.0, at - self._at)
        if self._frames <= BURST_FRAMES + MAX_RATE * 1000 * elapsed_s / self._shortest_ms:
            return ""
        expected = f"expected one every {self._shortest_ms / 1000:g} s"
        return f"it sent {self._frames:,} frames within {elapsed_s:.0f} s, {expected}"


class HandshakeLimits:
    """Checks one connection's hellos, losses and pongs.

    An agent first announces its former lives, each once, then its present one, whose hello it may repeat.
    ``add_hello`` and ``add_loss`` raise WireError for too many or contradictory messages.
    """

    def __init__(self) -> None:
        self._lives: set[str] = set()
        self._hello: Hello | None = None
        self._repeated_hellos = 0
        self._losses = 0
        self._unanswered_pings = 1  # an agent with former lives answers the start with a pong

    def add_hello(self, hello: Hello, *, is_live: bool) -> None:
        """Check a hello; ``is_live`` if the present life has sent one already."""
        if is_live and self._hello is not None:
            self._repeated_hellos += 1
            if not _same_agent(self._hello, hello):
                raise WireError("its second hello describes another agent")
        elif hello.life in self._lives:
            raise WireError("it announced one life twice")
        self._hello = hello
        self._lives.add(hello.life)
        if len(self._lives) > MAX_FORMER_LIVES + 1:
            raise WireError(f"it announced more than {MAX_FORMER_LIVES} former lives")
        if self._repeated_hellos > MAX_HELLOS:
            raise WireError(f"it repeated its hello more than {MAX_HELLOS} times")

    def add_loss(self) -> None:
        """Count a report of lost frames."""
        self._losses += 1
        if self._losses > MAX_LOSSES:
            raise WireError(f"it reported lost frames more than {MAX_LOSSES} times")

    def ping(self, now_ns: int) -> Ping:
        """Return a ping sent at a time (Unix nanoseconds)."""
        self._unanswered_pings += 1
        return Ping(now_ns)

    def accept_pong(self) -> bool:
        """Return whether a pong answers a ping; others would grow the recording without end."""
        accepted = self._unanswered_pings > 0
        self._unanswered_pings -= accepted
        return accepted


def _same_agent(before: Hello, now: Hello) -> bool:
    """Compare hellos, except for what may change during an agent's life."""
    return now == replace(before, capabilities=now.capabilities, interval_ms=now.interval_ms, clock=now.clock)
