"""A link's pace: when it connects again, how much of it may wait to be on disk, and what is too fast."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque

from gswarm_tui.launch.base import Retry

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
ATTEMPTS_PER_S = 125
"""About so many links of a fleet that was lost at once begin to connect again in a second."""
MOST_WAITING = 192 * 1024 * 1024
"""So many bytes of all nodes together may wait to be on disk; less than a recorder keeps."""
MOST_AT_ONCE = 100
MOST_TIMES_AS_FAST = 5


class Backoff:
    """How long to wait before the next attempt: doubling from 1 s to 60 s, by chance a quarter off.

    ``spread_s`` is added by chance, too, within the minute, so that many links that were lost at once don't
    come back at once.
    """

    def __init__(self, rng: random.Random, spread_s: float = 0.0) -> None:
        self._rng = rng
        self._spread_s = spread_s
        self._failures = 0

    def reset(self) -> None:
        """The link was good for a while: begin with the shortest wait again."""
        self._failures = 0

    def next(self, retry: Retry) -> float:
        """Seconds to wait after one more failure."""
        slowly = retry is Retry.SLOWLY
        plain = LONGEST_WAIT_S if slowly else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        longest = min(LONGEST_WAIT_S, 1.25 * plain + self._spread_s)
        return self._rng.uniform(max(FIRST_WAIT_S, 0.75 * plain), longest)


class Gate:
    """What came of a node and isn't known to be on disk: beyond ``most_bytes`` no more is to be read."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._frames: defaultdict[str, deque[tuple[int, int]]] = defaultdict(deque)
        self._opened = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether to wait before more is read."""
        return self._bytes >= self._most_bytes

    def took(self, life: str, seq: int, size: int) -> None:
        """A frame of about so many bytes came."""
        self._frames[life].append((seq, size))
        self._bytes += size
        if self.is_full:
            self._opened.clear()

    def acknowledged(self, life: str, seq: int) -> None:
        """The frames of a life up to this one are on disk."""
        frames = self._frames.get(life)
        while frames and frames[0][0] <= seq:
            self._bytes -= frames.popleft()[1]
        if not self.is_full:
            self._opened.set()

    def forget(self) -> None:
        """Begin anew, as with a connection."""
        self._bytes = 0
        self._frames.clear()
        self._opened.set()

    async def opened(self) -> None:
        """Return when it isn't full any more."""
        await self._opened.wait()


class Haste:
    """Whether an agent sends more frames than it can have sampled since its link is up.

    What it had sampled before may come as fast as it likes. ``began_ns`` is the node's time at the beginning,
    ``at`` the head's in seconds.
    """

    def __init__(self, began_ns: int, at: float, interval_s: float) -> None:
        self._began_ns = began_ns
        self._at = at
        self._shortest_s = interval_s
        self._frames = 0

    def set_interval(self, interval_s: float) -> None:
        """The agent is asked for another interval; the shortest of all is what counts."""
        self._shortest_s = min(self._shortest_s, interval_s)

    def sees(self, ts_ns: int, at: float) -> str:
        """Take in a frame of the node's time ``ts_ns``, which came ``at``; what is wrong, mostly nothing."""
        if ts_ns <= self._began_ns:
            return ""
        self._frames += 1
        elapsed_s = max(0.0, at - self._at)
        if self._frames <= MOST_AT_ONCE + MOST_TIMES_AS_FAST * elapsed_s / self._shortest_s:
            return ""
        asked = f"but was asked for one every {self._shortest_s:g} s"
        return f"it sent {self._frames:,} frames within {elapsed_s:.0f} s, {asked}"
