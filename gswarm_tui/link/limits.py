"""Limits on what a node may send: bytes per second, agent runs, and frames that aren't acknowledged yet.

A node that sends without end must not take the head's memory, disk or time. docs/reference/security.md lists
the limits for users.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import Message
from gswarm_agent.wire_payload import WireError
from gswarm_tui.launch.base import LaunchError, Retry

MAX_UNACKNOWLEDGED_BYTES = 192 * 1024 * 1024
"""Limit for all nodes together; a recorder queues more."""
MAX_UNACKNOWLEDGED_OF_NODE = 32 * 1024 * 1024
"""The hub applies this many bytes of frames within about a second."""
MIB = 1024 * 1024
BYTES_PER_S = 4_000_000
"""A node's average; 4,000 processes with long command lines need 1.3 MB/s."""
START_BYTES = 8_000_000
SPOOL_MIB, SPOOL_MEMORY_MIB = 256, 16
"""The agent's defaults: frames that wait on a node's disk, and in its memory."""
MESSAGE_BYTES, ROW_BYTES = 2_000, 1_000
"""Bytes charged for each message beside its size, and for each event, GPU and GPU link in a hello."""
MAX_FORMER_LIVES = 64
"""Maximum former agent runs that a connection may announce; runs without waiting frames aren't announced."""
MAX_AHEAD_S = 60.0
"""A sample's time is at most this many seconds after its arrival; a later time is reduced to that."""
LATEST_S = 7_258_118_400.0
"""The year 2200 in Unix seconds; no recording with later samples can be opened."""
TOO_MUCH = "its agent sent too much"


def check_times(*times: float) -> None:
    """Raise WireError for a sample's time [Unix seconds] that no clock shows."""
    if not all(0 <= at <= LATEST_S for at in times):
        raise WireError("malformed time of a sample")


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


class Allowance:
    """Bytes that one node may still send, for the whole run and all its connections.

    It grows with time, also while a node is out of reach, up to what a spool of ``spool_mib`` holds (None for
    the agent's default). So frames that waited on a node may arrive at any rate.
    """

    def __init__(self, spool_mib: int | None, at: float) -> None:
        self._most = 2 * (SPOOL_MEMORY_MIB + (spool_mib or SPOOL_MIB)) * MIB
        self._left: float = START_BYTES
        self._at = at

    def count_from(self, at: float) -> None:
        """Let it grow from an earlier time [Unix seconds] on, since when frames may wait on the node."""
        self._at = min(self._at, at)

    def grant(self, size: int) -> None:
        """Allow bytes that the recorder has requested beside samples."""
        self._left += size

    def take(self, size: int, at: float) -> None:
        """Count bytes that arrived at a time. Raises LaunchError for too many."""
        self._left = max(self._left, min(self._most, self._left + max(0.0, at - self._at) * BYTES_PER_S))
        self._at = at
        if size > self._left:
            rate = f"over {BYTES_PER_S / 1e6:g} MB per second on average"
            remedy = "check the gswarm-agent process on that node"
            raise LaunchError(f"{TOO_MUCH}: {rate}", remedy, Retry.SLOWLY)
        self._left -= size

    def take_message(self, message: Message, at: float) -> None:
        """Count a message beside its bytes. Raises LaunchError for too much."""
        rows = 0
        if isinstance(message, Frame):
            rows = len(message.notes)
        elif isinstance(message, Hello):
            rows = len(message.gpus) + len(message.links)
        self.take(MESSAGE_BYTES + rows * ROW_BYTES, at)
