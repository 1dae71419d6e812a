"""One node's link: connects, receives frames and reconnects, and publishes all of it as events."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gswarm_agent import wire
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_agent.wire_payload import MAX_LIVES, TRACE_PART, WireError
from gswarm_tui.fleet import events
from gswarm_tui.launch.base import Channel, Launcher, LaunchError, Retry, clean
from gswarm_tui.launch.inbox import MIN_CHUNK_BYTES
from gswarm_tui.link.clock import NodeClock, TimedSample
from gswarm_tui.link.limits import (
    MAX_AHEAD_S,
    MAX_FORMER_LIVES,
    MAX_UNACKNOWLEDGED_BYTES,
    MAX_UNACKNOWLEDGED_OF_NODE,
    Allowance,
    Backlog,
    check_times,
)

MIN_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
RECONNECTS_PER_S = 125
"""Approximate rate at which the links of a fleet reconnect if all were lost at once."""
CHECK_EVERY_S = 10.0
CHECK_NEW_EVERY_S = 1.0
"""Interval of checks before the hello; pings wait for it, as round trips are slow while all nodes start."""
IDLE_TIMEOUT_S = 15.0
IDLE_TIMEOUT_INTERVALS = 10
HELLO_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 12.0
"""A stopping agent waits ten seconds for the acknowledgement of its last frames."""
MAX_PAUSE_S = 5.0
"""A full backlog pauses reading for no longer, so that the screen keeps updating when the disk is full."""
MAX_PART_BYTES = 2 * TRACE_PART
"""Bytes that a requested part of a trace may count for, with its message."""

TraceMessage = wire.TraceReport | wire.TracePart


@dataclass(frozen=True)
class Clocks:
    """The recorder's clocks, in seconds, and its sleep; tests replace them."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


class Backoff:
    """Exponential backoff with jitter: from 1 s to 60 s, a quarter shorter or longer.

    ``spread_s`` adds jitter, up to a minute in all, so that links lost at once don't reconnect at once.
    """

    def __init__(self, rng: random.Random, spread_s: float = 0.0) -> None:
        self._rng = rng
        self._spread_s = spread_s
        self._failures = 0

    def reset(self) -> None:
        """Start from the shortest delay again."""
        self._failures = 0

    def next(self, retry: Retry) -> float:
        """Return the seconds to wait after one more failure."""
        slowly = retry is Retry.SLOWLY
        plain = MAX_BACKOFF_S if slowly else min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2**self._failures)
        self._failures = min(self._failures + 1, 10)
        longest = min(MAX_BACKOFF_S, 1.25 * plain + self._spread_s)
        return self._rng.uniform(max(MIN_BACKOFF_S, 0.75 * plain), longest)


class Link:
    """One node's connection, kept up until stopped.

    ``run`` returns after ``stop``, or when retrying is useless. Call all methods in the event loop's thread.
    Frames left by an agent's former lives are published under those lives. After a reconnect, frames that
    weren't acknowledged arrive, and are published, again.

    ``metrics`` are the groups of metrics to measure.
    ``of_nodes`` is the number of nodes watched; each gets its share of ``MAX_UNACKNOWLEDGED_BYTES``.
    A node keeps ``spool_mib`` of frames on its disk, None for the agent's default.
    """

    def __init__(
        self,
        node: str,
        launcher: Launcher,
        interval_ms: int,
        publish: Callable[[events.Event], None],
        *,
        metrics: tuple[str, ...] = DEFAULT_GROUPS,
        of_nodes: int = 1,
        spool_mib: int | None = None,
        clocks: Clocks | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.node = node
        self._launcher = launcher
        self._interval_ms = interval_ms
        self._metrics = metrics
        self._publish = publish
        self._clocks = clocks or Clocks()
        self._backoff = Backoff(rng or random.Random(), of_nodes / RECONNECTS_PER_S)  # noqa: S311
        self._backlog = Backlog(min(MAX_UNACKNOWLEDGED_OF_NODE, MAX_UNACKNOWLEDGED_BYTES // of_nodes))
        self._allowance = Allowance(spool_mib, self._clocks.wall())
        self._stopping = asyncio.Event()
        self._reconnecting: asyncio.Future[None] | None = None
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._clock = NodeClock()
        self._received: dict[str, int] = {}
        self._on_disk: dict[str, int] = {}
        self._is_live = False
        self._announced: set[str] = set()
        self._unanswered_pings = 0
        self._ended_cleanly = self._said_bye = False
        self._received_at = 0.0
        self._live_at = 0.0
        self._job_ends: float | None = None
        self._job_changed = asyncio.Event()
        self._running = False
        self._ended = asyncio.Event()
        self._requested: wire.RequestTrace | None = None
        self.take_trace: Callable[[str, TraceMessage], None] = lambda _node, _message: None
        self.take_answer: Callable[[wire.Answer], None] = lambda _message: None

    def resume(
        self, life: str, seq: int, offset_s: float, round_trip_s: float, last: TimedSample | None = None
    ) -> None:
        """Resume a recording with a life's frames up to ``seq``; called before ``run``, oldest life first."""
        self._on_disk[life] = seq
        self._clock.resume(life, offset_s, round_trip_s, last)
        if last is not None:
            self._allowance.count_from(last[1])

    def may_hold_frames(self) -> bool:
        """Return whether the node may hold frames that aren't on disk here."""
        if not self._received and not self._on_disk:
            return False
        behind = any(seq > self._on_disk.get(life, 0) for life, seq in self._received.items())
        return behind or not self._ended_cleanly

    async def stop(self) -> None:
        """Stop the agent after its last frames; returns when ``run`` has."""
        self._stopping.set()
        self._send(wire.Stop())
        if self._running:
            await self._ended.wait()

    def reconnect(self) -> None:
        """Reconnect, so that the agent sends unacknowledged frames again."""
        if self._reconnecting is not None and not self._reconnecting.done():
            self._reconnecting.set_result(None)

    def set_interval(self, interval_ms: int) -> None:
        """Change the sampling interval, also for later connections."""
        self._interval_ms = interval_ms
        self._send(wire.Configure(interval_ms, self._metrics))

    def set_metrics(self, groups: tuple[str, ...]) -> None:
        """Switch groups of metrics on and off, also for later connections."""
        self._metrics = groups
        self._send(wire.Configure(self._interval_ms, groups))

    def read_energy(self) -> None:
        """Read the energy counters at the agent's next tick."""
        self._send(wire.ReadEnergy())

    def set_job_end(self, at: float) -> None:
        """Set when the node's job, and with it the agent, ends: the head's Unix time, infinite for never."""
        self._job_ends = at
        self._job_changed.set()
        self._send(self._job_end(at))

    def _job_end(self, at: float) -> wire.JobEnds:
        return wire.JobEnds(None if math.isinf(at) else round(at * 1e9), self._wall_ns())

    @property
    def is_live(self) -> bool:
        """Whether the agent is connected and sampling."""
        return self._is_live and self._channel is not None

    def request_trace(self, request: wire.RequestTrace, starts_at: float) -> None:
        """Request a trace that starts at the recorder's Unix time; its messages go to ``take_trace``."""
        offset_s = 0.0 if self._hello is None else self._clock.offset_of(self._hello.life)
        self._requested = replace(request, start_ns=round((starts_at + offset_s) * 1e9))
        self._send(self._requested)

    def fetch_trace(self, fetch: wire.FetchTrace) -> None:
        """Request a part of a trace."""
        self._allowance.grant(MAX_PART_BYTES)
        self._send(fetch)

    def ask(self, ask: wire.Ask) -> None:
        """Ask the node's ranks; the parts of the answer go to ``take_answer``."""
        # Each part of an answer counts for its message, too.
        self._allowance.grant(2 * ask.most + MAX_PART_BYTES)
        self._send(ask)

    def end_trace(self, end: wire.EndTrace) -> None:
        """Remove a trace from the node."""
        self._requested = None
        self._send(end)

    def acknowledge(self, life: str, seq: int) -> None:
        """Acknowledge the frames of ``life`` up to ``seq``, now and after a reconnect."""
        self._on_disk.pop(life, None)
        self._on_disk[life] = seq
        self._backlog.acknowledge(life, seq)
        self._send(wire.Ack(life, seq))

    async def run(self) -> None:
        """Keep the node connected until stopped; then wait a while for the agent's last frames."""
        self._running = True
        connecting = asyncio.create_task(self._keep_connected())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({connecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._channel is not None:
                await asyncio.wait({connecting}, timeout=STOP_TIMEOUT_S)
            if connecting.done():
                connecting.result()  # an internal error is for the caller
        finally:
            await _end(connecting, stopping)
            self._running = False
            self._ended.set()
        if self._stopping.is_set():
            self._publish_phase(events.Phase.ENDED)

    async def _keep_connected(self) -> None:
        while not self._stopping.is_set():
            self._publish_phase(events.Phase.CONNECTING)
            try:
                await self._connect_once()
                return
            except LaunchError as error:  # a copy, because the traceback would keep the connection alive
                failed = LaunchError(error.reason, error.remedy, error.retry)
            if self._stopping.is_set():
                return
            if failed.retry is Retry.NEVER:
                self._publish_phase(events.Phase.LOST, failed.reason, failed.remedy)
                return
            if self._job_is_over() and not self.may_hold_frames():
                self._publish_phase(events.Phase.LOST, failed.reason, failed.remedy)
                while self._job_is_over():  # until it ends later than was said
                    self._job_changed.clear()
                    await self._job_changed.wait()
                continue
            delay_s = self._backoff.next(failed.retry)
            self._publish_phase(
                events.Phase.LOST, failed.reason, failed.remedy, self._clocks.wall() + delay_s
            )
            await self._clocks.sleep(delay_s)

    def _job_is_over(self) -> bool:
        return self._job_ends is not None and self._clocks.wall() >= self._job_ends

    async def _connect_once(self) -> None:
        """Run one connection to its end. Returns after ``stop``, raises LaunchError when it is lost."""
        channel = await self._launcher.open(self.node)
        self._channel, self._hello = channel, None
        self._clock.start_connection()
        self._is_live = False
        self._announced.clear()
        self._backlog.clear()
        self._reconnecting = reconnecting = asyncio.get_running_loop().create_future()
        tasks = list(map(asyncio.create_task, (self._read(channel), self._ping())))
        try:
            self._unanswered_pings = 1  # an agent with former lives answers the start with a pong
            newest = tuple(reversed(self._on_disk.items()))[:MAX_LIVES]
            messages: list[wire.Message] = [
                wire.Start(self._interval_ms, self._wall_ns(), newest, self._metrics)
            ]
            if self._job_ends is not None:
                messages.append(self._job_end(self._job_ends))
            if self._requested is not None:
                messages.append(self._requested)
            if self._stopping.is_set():  # since the agent was being started
                messages.append(wire.Stop())
            # In one write: each is a packet and wakes every process on its way.
            channel.write(wire.MAGIC + b"".join(map(wire.encode, messages)))
            await asyncio.wait((*tasks, reconnecting), return_when=asyncio.FIRST_COMPLETED)
            if reconnecting.done():
                raise LaunchError("there is room again; reconnecting to fetch the frames kept on the node")
            next(filter(asyncio.Task.done, tasks)).result()
        except WireError as error:
            raise LaunchError(clean(f"the agent sent an invalid message: {error}")) from None
        except ConnectionError as error:
            raise LaunchError(clean(f"the connection broke: {error}")) from None
        finally:
            self._channel = self._hello = None
            await _end(*tasks)
            tasks.clear()  # the failed one refers to its error, and that to this function's frame
            await channel.close()

    async def _read(self, channel: Channel) -> None:
        """Handle the agent's messages. Returns when the agent ended after ``stop``."""
        decoder = wire.Decoder()
        while data := await channel.read():
            self._allowance.take(max(len(data), MIN_CHUNK_BYTES), self._clocks.wall())
            messages = decoder.feed(data)
            while self._handle_all(messages):
                if self._said_bye:
                    return
                await self._pause()
            if self._hello is not None:
                self._received_at = self._clocks.monotonic()
        if not self._stopping.is_set():
            raise LaunchError(await channel.explain_end())

    def _handle_all(self, messages: Iterator[wire.Message]) -> bool:
        """Handle messages; return True at the agent's bye or a full backlog."""
        for message in messages:
            if isinstance(message, wire.Bye):
                # With another reason only this connection ends.
                ended = self._stopping.is_set() or message.reason.startswith("the agent ")
                self._ended_cleanly = ended and not message.reason.endswith(wire.FRAMES_REMAIN)
                if not self._stopping.is_set():
                    raise LaunchError(clean(message.reason), retry=_retry(message.reason))
                self._said_bye = True
                return True
            at = self._clocks.wall()
            self._allowance.take_message(message, at)
            self._handle(message, at)
            if self._backlog.is_full:
                return True
        return False

    async def _pause(self) -> None:
        """Wait for acknowledgements of a full backlog, at most ``MAX_PAUSE_S``."""
        has_room = asyncio.create_task(self._backlog.wait_for_room())
        waits = has_room, asyncio.ensure_future(self._clocks.sleep(MAX_PAUSE_S))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(*waits)
        if self._backlog.is_full:
            self._backlog.clear()
        self._received_at = self._clocks.monotonic()

    async def _ping(self) -> None:
        """Ping the agent now and then; raise LaunchError when it has been idle for too long."""
        self._received_at = self._clocks.monotonic()
        while True:
            what, timeout = "complete message", HELLO_TIMEOUT_S
            if self._hello is not None:
                what, timeout = "data", max(IDLE_TIMEOUT_S, IDLE_TIMEOUT_INTERVALS * self._interval_ms / 1000)
            now = self._clocks.monotonic()
            idle = now - self._received_at
            if idle >= timeout:
                raise LaunchError(f"no {what} for {idle:.0f} s")
            if self._hello is not None:
                self._unanswered_pings += 1
                self._send(wire.Ping(self._wall_ns()))
                if self._is_live and now - self._live_at >= MAX_BACKOFF_S:
                    self._backoff.reset()
            pause = CHECK_NEW_EVERY_S if self._hello is None else CHECK_EVERY_S
            pause = max(1.0, min(pause, timeout - idle))
            await self._clocks.sleep(pause)
            # While the recorder itself was paused, nothing could arrive here.
            woke = self._clocks.monotonic()
            self._received_at = min(woke, self._received_at + max(0.0, woke - now - pause))

    def _handle(self, message: wire.Message, at: float) -> None:
        if isinstance(message, Frame):
            if self._hello is not None:
                life = self._hello.life
                self._received[life] = max(message.seq, self._received.get(life, 0))
                ts, offset_s = self._clock.timestamp(life, message.ts_ns, message.late_ms)
                check_times(message.ts_ns / 1e9, ts)
                for note in message.notes:
                    if note.ts_ns is not None:
                        check_times(note.ts_ns / 1e9, note.ts_ns / 1e9 - offset_s)
                arrived = events.FrameArrived(
                    self.node, at, min(ts, at + MAX_AHEAD_S), life, message, offset_s
                )
                self._backlog.add(life, message.seq, events.weight(arrived))
                self._publish(arrived)
        elif isinstance(message, Hello):
            self._announce(message.life)
            self._hello = message
            # After the present life's first hello, no former life follows.
            former = message.clock is None and not self._is_live
            self._publish(events.NodeIntroduced(self.node, at, message, former))
            if not former and not self._is_live:
                self._is_live, self._ended_cleanly = True, False
                self._live_at = self._clocks.monotonic()
                if message.clock is not None:
                    measurement = self._clock.start_life(message.life, message.clock, at)
                    self._publish(events.LinkMeasured(self.node, at, *measurement))
                self._publish_phase(events.Phase.LIVE)
        elif isinstance(message, wire.Lost):
            self._announce(message.life)
            self._received[message.life] = max(message.seq, self._received.get(message.life, 0))
            ts = message.ts_ns / 1e9 - self._clock.offset_of(message.life)
            check_times(message.ts_ns / 1e9, ts)
            lost = events.FramesLost(self.node, at, min(ts, at), message.life, message.seq, message.reason)
            self._publish(lost)
        elif isinstance(message, TraceMessage):
            if self._requested is not None:
                self.take_trace(self.node, message)
        elif isinstance(message, wire.Answer):
            self.take_answer(message)
        elif isinstance(message, wire.Pong) and self._unanswered_pings:
            self._unanswered_pings -= 1
            if (measured := self._clock.add(message.clock, at)) is not None:
                self._publish(events.LinkMeasured(self.node, at, *measured))

    def _announce(self, life: str) -> None:
        """Note an agent run of this connection. Raises WireError for too many."""
        self._announced.add(life)
        if len(self._announced) > MAX_FORMER_LIVES + 1:
            raise WireError(f"it announced more than {MAX_FORMER_LIVES} former runs")

    def _send(self, message: wire.Message) -> None:
        if self._channel is not None:
            self._channel.write(wire.encode(message))

    def _publish_phase(
        self, phase: events.Phase, reason: str = "", remedy: str = "", retry_at: float | None = None
    ) -> None:
        self._publish(events.LinkChanged(self.node, self._clocks.wall(), phase, reason, remedy, retry_at))

    def _wall_ns(self) -> int:
        return round(self._clocks.wall() * 1e9)


def _retry(reason: str) -> Retry:
    """Return when to reconnect after a bye with this reason."""
    if reason.startswith(wire.SENT_ALL) and not reason.endswith(wire.FRAMES_REMAIN):
        return Retry.NEVER
    return Retry.SLOWLY if reason == wire.TAKEN_OVER else Retry.SOON


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
