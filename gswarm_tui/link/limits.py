"""Limits on what nodes may send: unacknowledged frames, messages, rows, bytes and hellos.

A node that sends without end must not take the head's memory, disk or time. docs/reference/security.md lists
the limits for users.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.metrics import MIN_INTERVAL_MS
from gswarm_agent.wire import Lost, Message, Ping
from gswarm_agent.wire_payload import WireError
from gswarm_tui.launch.base import LaunchError, Retry

MAX_UNACKNOWLEDGED_BYTES = 192 * 1024 * 1024
"""Limit for all nodes together; a recorder queues more."""
MAX_UNACKNOWLEDGED_OF_NODE = 32 * 1024 * 1024
"""The hub applies this many bytes of frames within about a second."""
MIB = 1024 * 1024
SPOOL_MIB, SPOOL_MEMORY_MIB = 256, 16
"""The agent's defaults: frames that wait on a node's disk, and in its memory."""
MAX_FORMER_LIVES = 64
"""Maximum former agent runs that a connection may announce; runs without waiting frames aren't announced."""

# In each interval an agent makes one frame; one of 8 GPUs and 8 processes has 17 rows and some 3 kB.
MESSAGES, ROWS, BYTES = 10, 500, 100_000
"""Average share of a node per interval. Compressed bytes count twice: as received and as unpacked."""
# One frame may have 256 GPUs and 4,096 processes.
RESERVE_ROWS, RESERVE_BYTES = 5_000, 1_000_000
"""What all nodes together may send above their shares, on average per interval."""
MAX_INTERVAL_S = 1.0
"""Longer intervals count as one second: replies to pings don't depend on the interval."""
EVENT_ROWS = 4
"""One event counts as this many rows."""
START_INTERVALS = 20
"""Allowance at the start of a run, in intervals."""
MIN_FRAME_BYTES, MIN_ROW_BYTES = 128, 32
"""Minimum size of a frame and a row in a spool; the most that can arrive at once is computed from it."""
HELLO_BYTES, HELLO_BYTES_PER_S = 2 * MIB, 2_000
"""A node's share of what the head keeps for good (nodes, GPUs, agent runs): at once, and per second."""
RESERVE_HELLO_BYTES = 64 * MIB
MEMORY_OF_HELLO, MEMORY_OF_GPU, MEMORY_OF_LINK = 2_000, 1_000, 500
"""Bytes that a hello, a GPU and a GPU link count for; a GPU link has 7 on the wire, and is a row on disk."""
MACHINES, MACHINES_PER_H = 32, 1
"""Different machines behind a node's name, by boot and GPUs: each is a row of the recording."""
GPUS, GPUS_PER_H = 512, 16
LIVES, LIVES_PER_H = 200, 60
MAX_AHEAD_S = 60.0
"""A sample's time is at most this many seconds after its arrival; a later time is reduced to that."""
LATEST_S = 7_258_118_400.0
"""The year 2200 in Unix seconds; no recording with later samples can be opened."""

MORE_THAN_KEPT = "its agent sent more frames than a node can keep"
"""Reason of a link that was to fetch only the frames left on its node."""


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


class TokenBucket:
    """Amount that may be used: ``left`` at time ``at``, growing by ``rate`` per second up to ``most``.

    What it lacks is taken from ``reserve``.
    """

    def __init__(
        self, rate: float, most: float, left: float, at: float, reserve: TokenBucket | None = None
    ) -> None:
        self._rate = rate
        self._most = most
        self._left = min(most, left)
        self._since = at
        self._reserve = reserve

    def take(self, amount: float, at: float) -> bool:
        """Use an amount at a time in seconds; return False, and use nothing, if less is left."""
        if amount > self._left:
            self._refill(at)
        lacking = amount - self._left
        if lacking > 0 and (self._reserve is None or not self._reserve.take(lacking, at)):
            return False
        self._left = max(0.0, -lacking)
        return True

    def grant(self, amount: float, at: float) -> None:
        """Add an amount, up to the most that the bucket holds."""
        self._refill(at)
        self._left = min(self._most, self._left + amount)

    def set_rate(self, rate: float, at: float) -> None:
        """Change the rate from now on."""
        self._refill(at)
        self._rate = rate

    def _refill(self, at: float) -> None:
        self._left = min(self._most, self._left + max(0.0, at - self._since) * self._rate)
        self._since = at


class Reserve:
    """Allowance of all nodes of a run together for what they send above their shares.

    Then many hostile nodes bring little more than their shares, and the loudest ones are cut off.
    """

    def __init__(
        self,
        interval_ms: int,
        at: float,
        *,
        spool_mib: int | None = None,
        resumed: bool = False,
        only_left: bool = False,
    ) -> None:
        """Begin a run at a time in seconds.

        A node keeps ``spool_mib`` of frames on its disk, None for the agent's default; those of a ``resumed``
        recording may wait already. With ``only_left`` nothing else is to come.
        """
        fastest_s = MIN_INTERVAL_MS / 1000 if resumed else interval_ms / 1000
        self.interval_s = min(MAX_INTERVAL_S, fastest_s)
        self.spool_bytes = (SPOOL_MEMORY_MIB + (spool_mib or SPOOL_MIB)) * MIB
        self.only_left = only_left
        self._resumed = resumed
        self.rows = self.bucket(RESERVE_ROWS, self.spool_bytes // MIN_ROW_BYTES, at)
        self.bytes = self.bucket(RESERVE_BYTES, 2 * self.spool_bytes, at)
        self.hellos = TokenBucket(HELLO_BYTES_PER_S, RESERVE_HELLO_BYTES, RESERVE_HELLO_BYTES, at)

    def bucket(self, each: int, most: int, at: float, reserve: TokenBucket | None = None) -> TokenBucket:
        """Return a bucket that gets ``each`` in an interval, up to ``most``; a resumed one begins full."""
        begun = most if self._resumed else START_INTERVALS * each
        return TokenBucket(self._rate(each), most, begun, at, reserve)

    def set_interval(self, interval_ms: int, at: float, buckets: Sequence[tuple[TokenBucket, int]]) -> None:
        """Adapt the reserve, and a node's ``buckets`` with the amount that each gets, to a new interval.

        The shortest one counts, as a node out of reach keeps it.
        """
        self.interval_s = min(self.interval_s, interval_ms / 1000)
        for bucket, each in (*buckets, (self.rows, RESERVE_ROWS), (self.bytes, RESERVE_BYTES)):
            bucket.set_rate(self._rate(each), at)

    def _rate(self, each: int) -> float:
        return 0.0 if self.only_left else each / self.interval_s


class Allowance:
    """Allowance of one node for the whole run, shared by all its connections.

    It grows while a node is out of reach, up to what a full spool holds, so frames that waited on a node may
    arrive at any rate. Rows and bytes above it count for the ``reserve``.
    """

    def __init__(self, reserve: Reserve, at: float) -> None:
        self._reserve = reserve
        self._messages = reserve.bucket(MESSAGES, reserve.spool_bytes // MIN_FRAME_BYTES, at)
        self._rows = reserve.bucket(ROWS, reserve.spool_bytes // MIN_ROW_BYTES, at, reserve.rows)
        self._bytes = reserve.bucket(BYTES, 2 * reserve.spool_bytes, at, reserve.bytes)
        self._hellos = TokenBucket(HELLO_BYTES_PER_S, HELLO_BYTES, HELLO_BYTES, at, reserve.hellos)
        self._machines = TokenBucket(MACHINES_PER_H / 3600, MACHINES, MACHINES, at)
        self._gpus = TokenBucket(GPUS_PER_H / 3600, GPUS, GPUS, at)
        self._lives = TokenBucket(LIVES_PER_H / 3600, LIVES, LIVES, at)
        self._known: set[object] = set()

    def set_interval(self, interval_ms: int, at: float) -> None:
        """Note a new sampling interval."""
        buckets = (self._messages, MESSAGES), (self._rows, ROWS), (self._bytes, BYTES)
        self._reserve.set_interval(interval_ms, at, buckets)

    def grant(self, messages: int, size: int, at: float) -> None:
        """Allow messages and bytes that the head has requested beside samples."""
        self._messages.grant(messages, at)
        self._bytes.grant(size, at)

    def take_bytes(self, size: int, at: float) -> None:
        """Count bytes that arrived. Raises LaunchError for too many."""
        if not self._bytes.take(size, at):
            raise self._exceeded(BYTES, "bytes")

    def take(self, message: Message, size: int, at: float) -> None:
        """Count a message of ``size`` bytes unpacked. Raises LaunchError for too much."""
        self.take_bytes(size, at)
        if not self._messages.take(1, at):
            raise self._exceeded(MESSAGES, "messages")
        if isinstance(message, Frame):
            rows = 1 + message.gpus.count
            if message.processes is not None:
                rows += len(message.processes)
            if message.notes:
                rows += EVENT_ROWS * len(message.notes)
            if not self._rows.take(rows, at):
                raise self._exceeded(ROWS, "rows")
        elif isinstance(message, Hello | Lost):
            amount = size + MEMORY_OF_HELLO
            if isinstance(message, Hello):
                amount += MEMORY_OF_GPU * len(message.gpus) + MEMORY_OF_LINK * len(message.links)
            if not (self._hellos.take(amount, at) and self._take_new(message, at)):
                raise _cut_off("its agent announced too many agent runs, GPUs, GPU links or losses")

    def _take_new(self, message: Hello | Lost, at: float) -> bool:
        """Count an agent run and a machine that are new; return False for too many."""
        fits = self._is_known(message.life) or self._lives.take(1, at)
        if isinstance(message, Hello):
            machine = message.host.boot_id, tuple(gpu.uuid for gpu in message.gpus)
            if not self._is_known(machine):
                fits = fits and self._machines.take(1, at) and self._gpus.take(len(message.gpus), at)
        return fits

    def _is_known(self, key: object) -> bool:
        known = key in self._known
        self._known.add(key)
        return known

    def _exceeded(self, each: int, what: str) -> LaunchError:
        if self._reserve.only_left:
            return _cut_off(MORE_THAN_KEPT)
        rate = f"over {each / self._reserve.interval_s:,.0f} {what} per second on average"
        used_up = "" if each == MESSAGES else ", and the allowance shared by all nodes is used up"
        return _cut_off(f"its agent sent too much: {rate}{used_up}")


def _cut_off(reason: str) -> LaunchError:
    return LaunchError(reason, "check the gswarm-agent process on that node", Retry.CUT_OFF)


class HandshakeLimits:
    """Checks one connection's hellos and pongs.

    An agent first announces its former lives, each once, then its present one, whose hello it may repeat.
    ``add_hello`` raises WireError for too many former lives or contradictory hellos.
    """

    def __init__(self) -> None:
        self._lives: set[str] = set()
        self._hello: Hello | None = None
        self._unanswered_pings = 1  # an agent with former lives answers the start with a pong

    def add_hello(self, hello: Hello, *, is_live: bool) -> None:
        """Check a hello; ``is_live`` if the present life has sent one already."""
        if is_live and self._hello is not None:
            if not _same_agent(self._hello, hello):
                raise WireError("its second hello describes another agent")
        elif hello.life in self._lives:
            raise WireError("it announced one run twice")
        self._hello = hello
        self._lives.add(hello.life)
        if len(self._lives) > MAX_FORMER_LIVES + 1:
            raise WireError(f"it announced more than {MAX_FORMER_LIVES} former runs")

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
    return now == replace(
        before,
        capabilities=now.capabilities,
        interval_ms=now.interval_ms,
        clock=now.clock,
        links=now.links,
    )
