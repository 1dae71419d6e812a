"""A link: one node's life, from connecting through frames to losing it and trying again, as events."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import (
    FRAMES_REMAIN,
    MAGIC,
    SENT_ALL,
    TAKEN_OVER,
    Ack,
    Bye,
    Decoder,
    JobEnds,
    Lost,
    Message,
    Pong,
    SetInterval,
    Start,
    Stop,
    encode,
)
from gswarm_agent.wire_values import MAX_LIVES, WireError
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    FramesLost,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    weight,
)
from gswarm_tui.launch.base import Channel, Launcher, LaunchError, Retry, clean, each, reach
from gswarm_tui.link.backoff import ATTEMPTS_PER_S, LONGEST_WAIT_S, MOST_WAITING, Backoff, Gate, Haste
from gswarm_tui.link.clock import NodeClock, Placed
from gswarm_tui.link.limits import Introductions

LOOK_EVERY_S = 10.0
LOOK_SOON_S = 1.0
"""Until an agent is there. Then its clock is asked for, which tells more than while all nodes start."""
SELDOM = 3
"""A clock that is well known is asked for at every third look: crystals run apart by 1.5 ms meanwhile."""
SILENT_S = 2.5
"""An agent that was silent for so long is asked at every look: where its GPUs don't answer, it still does."""
QUIET_S = 15.0
QUIET_INTERVALS = 10
HELLO_S = 60.0
LAST_WORDS_S = 12.0
"""An agent that was asked to stop waits ten seconds for its last frames to be on disk."""
PATIENCE_S = 5.0
"""So long a node isn't read from while its frames wait. Where the disk is full, the screen goes on then."""


@dataclass(frozen=True)
class Times:
    """The clocks of the head, in seconds, and how to wait; tests bring their own."""

    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep


class Link:
    """Keeps one node connected and publishes what happens on it.

    ``run`` returns after ``stop``, or when the launcher says that trying again is no use. All methods are
    called in the event loop's thread. What an agent run before the present one left is published as of its
    own life. After a reconnect, frames that weren't acknowledged come, and are published, again.

    ``of_nodes`` is how many nodes are watched in all: it is read no further while its share of what may wait
    to be acknowledged is used up, so that a node that sends without end keeps no other's frames away.
    """

    def __init__(
        self,
        node: str,
        launcher: Launcher,
        interval_ms: int,
        publish: Callable[[Event], None],
        *,
        of_nodes: int = 1,
        times: Times | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.node = node
        self._launcher = launcher
        self._interval_ms = interval_ms
        self._publish = publish
        self._times = times or Times()
        self._backoff = Backoff(rng or random.Random(), of_nodes / ATTEMPTS_PER_S)  # noqa: S311
        self._gate = Gate(MOST_WAITING // of_nodes)
        self._haste: Haste | None = None
        self._stopping = asyncio.Event()
        self._again: asyncio.Future[None] | None = None
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._clock = NodeClock()
        self._heard: dict[str, int] = {}
        self._on_disk: dict[str, int] = {}
        self._speaks = False
        self._introductions = Introductions()
        self._said_bye = self._has_left = False
        self._heard_at = 0.0
        self._live_at = 0.0
        self._job_ends: float | None = None
        self._job_changed = asyncio.Event()
        self._running = False
        self._ended = asyncio.Event()

    def resume(
        self, life: str, seq: int, offset_s: float, round_trip_s: float, last: Placed | None = None
    ) -> None:
        """A recording goes on, which has a life's frames up to this one; oldest first, before ``run``."""
        self._on_disk[life] = seq
        self._clock.resume(life, offset_s, round_trip_s, last)

    def may_hold(self) -> bool:
        """Whether an agent was heard that wasn't seen to end with all of its frames on disk."""
        if not self._heard and not self._on_disk:
            return False
        behind = any(seq > self._on_disk.get(life, 0) for life, seq in self._heard.items())
        return behind or not self._said_bye

    def is_held_up(self) -> bool:
        """Whether no more is read of the node until more of it is acknowledged."""
        return self._gate.is_full

    async def stop(self) -> None:
        """Let the agent send its last frames and end; returns when ``run`` has."""
        self._stopping.set()
        self._send(Stop())
        if self._running:
            await self._ended.wait()

    def reconnect(self) -> None:
        """Connect anew, so that what isn't on disk comes again."""
        if self._again is not None and not self._again.done():
            self._again.set_result(None)

    def set_interval(self, interval_ms: int) -> None:
        """Sample every ``interval_ms`` from now on, also after a reconnect."""
        self._interval_ms = interval_ms
        if self._haste is not None:
            self._haste.set_interval(interval_ms / 1000)
        self._send(SetInterval(interval_ms))

    def set_job_end(self, at: float) -> None:
        """The node's job ends at the head's Unix time ``at``, infinite for never; its agent ends then."""
        self._job_ends = at
        self._job_changed.set()
        self._send(self._job_end(at))

    def _job_end(self, at: float) -> JobEnds:
        return JobEnds(None if math.isinf(at) else round(at * 1e9), self._wall_ns())

    def acknowledge(self, life: str, seq: int) -> None:
        """Tell the agent that the frames of ``life`` up to ``seq`` are on disk, now and after a reconnect."""
        self._on_disk.pop(life, None)
        self._on_disk[life] = seq
        self._gate.acknowledged(life, seq)
        self._send(Ack(life, seq))

    async def run(self) -> None:
        """Connect, and connect again, until stopped; then wait a while for the agent's last words."""
        self._running = True
        living = asyncio.create_task(self._live())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({living, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._channel is not None:
                await asyncio.wait({living}, timeout=LAST_WORDS_S)
        finally:
            await _end(living, stopping)
            self._running = False
            self._ended.set()
        if self._stopping.is_set():
            self._change(Phase.ENDED)

    async def _live(self) -> None:
        while not self._stopping.is_set():
            self._change(Phase.CONNECTING)
            try:
                await self._connect_once()
                return
            except LaunchError as error:  # its traceback would keep the connection until the next is lost
                failed = LaunchError(error.reason, error.remedy, error.retry)
            if self._stopping.is_set():
                return
            if failed.retry is Retry.NEVER:
                self._change(Phase.LOST, failed.reason, failed.remedy)
                return
            if self._job_is_over() and not self.may_hold():
                self._change(Phase.LOST, failed.reason, failed.remedy)
                await self._until_the_job_goes_on()
                continue
            wait = self._backoff.next(failed.retry)
            self._change(Phase.LOST, failed.reason, failed.remedy, self._times.wall() + wait)
            await self._times.sleep(wait)

    def _job_is_over(self) -> bool:
        return self._job_ends is not None and self._times.wall() >= self._job_ends

    async def _until_the_job_goes_on(self) -> None:
        while self._job_is_over():
            self._job_changed.clear()
            await self._job_changed.wait()

    async def _connect_once(self) -> None:
        """One connection, from its start to its end. Returns when asked to stop, else raises LaunchError."""
        channel = await reach(self._launcher, self.node, {*self._on_disk, *self._heard})
        self._channel, self._hello = channel, None
        self._clock.begin()
        self._speaks, self._introductions, self._haste = False, Introductions(), None
        self._gate.forget()
        self._again = again = asyncio.get_running_loop().create_future()
        tasks = list(map(asyncio.create_task, (self._read(channel), self._watch())))
        try:
            newest = tuple(reversed(self._on_disk.items()))[:MAX_LIVES]
            told: list[Message] = [Start(self._interval_ms, self._wall_ns(), newest)]
            if self._job_ends is not None:
                told.append(self._job_end(self._job_ends))
            # All in one, because each write is a packet, and wakes who hands it on.
            channel.write(MAGIC + b"".join(map(encode, told)))
            await asyncio.wait((*tasks, again), return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                raise LaunchError("frames that couldn't be recorded are fetched again")
            next(filter(asyncio.Task.done, tasks)).result()
        except WireError as error:
            raise LaunchError(clean(f"the agent can't be understood: {error}")) from None
        except ConnectionError as error:
            raise LaunchError(clean(f"the connection broke: {error}")) from None
        finally:
            self._channel = self._hello = None
            await _end(*tasks)
            tasks.clear()  # one holds the error, which holds this frame
            await channel.close()

    async def _read(self, channel: Channel) -> None:
        """Take in what the agent says. Returns when it ended because it was asked to."""
        decoder = Decoder()
        rest: Iterator[Message] = iter(())

        def hear(data: bytes) -> bool:
            nonlocal rest
            self._heard_at = self._times.monotonic()
            rest = decoder.feed(data)
            return self._take_all(rest)

        while await each(channel, hear):
            while not self._has_left:
                await self._wait_for_the_disk()
                if not self._take_all(rest):
                    break
            else:
                return
        if not self._stopping.is_set():
            raise LaunchError(await channel.explain_end())

    def _take_all(self, messages: Iterator[Message]) -> bool:
        """Take in messages up to the last that is of interest, or until no more may wait; whether so."""
        for message in messages:
            if isinstance(message, Bye):
                # Anything else is about this connection alone, and the agent goes on.
                ended = self._stopping.is_set() or message.reason.startswith("the agent ")
                self._said_bye = ended and not message.reason.endswith(FRAMES_REMAIN)
                if not self._stopping.is_set():
                    raise LaunchError(clean(message.reason), retry=_retry(message.reason))
                self._has_left = True
                return True
            self._take(message)
            if self._gate.is_full and not self._stopping.is_set():
                return True
        return False

    async def _wait_for_the_disk(self) -> None:
        """Read no further until what came is on disk; where that takes too long, for no longer."""
        waits = asyncio.create_task(self._gate.opened()), asyncio.ensure_future(self._times.sleep(PATIENCE_S))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(*waits)
        if self._gate.is_full:
            self._gate.forget()
        self._heard_at = self._times.monotonic()

    async def _watch(self) -> None:
        """Ping now and then, and give up an agent from which nothing comes."""
        self._heard_at = self._times.monotonic()
        looks = 0
        while True:
            longest = max(QUIET_S, QUIET_INTERVALS * self._interval_ms / 1000)
            limit = HELLO_S if self._hello is None else longest
            now = self._times.monotonic()
            quiet = now - self._heard_at
            if quiet >= limit:
                raise LaunchError(f"no data for {quiet:.0f} s")
            if self._hello is not None:
                if quiet >= SILENT_S or not self._clock.is_well_known or looks % SELDOM == 0:
                    self._send(self._introductions.ping(self._wall_ns()))
                looks += 1
                if now - self._live_at >= LONGEST_WAIT_S:
                    self._backoff.reset()
            rest = LOOK_SOON_S if self._hello is None else LOOK_EVERY_S
            await self._times.sleep(max(1.0, min(rest, limit - quiet)))

    def _take(self, message: Message) -> None:
        at = self._times.wall()
        if isinstance(message, Frame):
            if self._hello is not None:
                life = self._hello.life
                self._heard[life] = max(message.seq, self._heard.get(life, 0))
                if self._haste is not None and (reason := self._haste.sees(message.ts_ns, at)):
                    raise LaunchError(reason, "look at what runs there as gswarm-agent", Retry.SLOWLY)
                ts, offset_s = self._clock.place(life, message.ts_ns, message.late_ms)
                arrived = FrameArrived(self.node, at, ts, life, message, offset_s)
                self._gate.took(life, message.seq, weight(arrived))
                self._publish(arrived)
        elif isinstance(message, Hello):
            self._introductions.hello(message, speaks=self._speaks)
            self._hello = message
            # Once the life of now speaks, it may say hello again, and no former one follows.
            former = message.clock is None and not self._speaks
            self._publish(NodeIntroduced(self.node, at, message, former))
            if not former and not self._speaks:
                self._is_live(message, at)
        elif isinstance(message, Lost):
            self._take_loss(message, at)
        elif isinstance(message, Pong) and self._introductions.pong():
            found = self._clock.add(message.clock, at)
            if found is not None:
                self._publish(LinkMeasured(self.node, at, *found))

    def _take_loss(self, lost: Lost, at: float) -> None:
        self._introductions.loss()
        self._heard[lost.life] = max(lost.seq, self._heard.get(lost.life, 0))
        ts = lost.ts_ns / 1e9 - self._clock.offset_of(lost.life)
        self._publish(FramesLost(self.node, at, ts, lost.life, lost.seq, lost.reason))

    def _is_live(self, hello: Hello, at: float) -> None:
        """All of former lives has come, and this one speaks."""
        self._speaks, self._said_bye = True, False
        self._live_at = self._times.monotonic()
        if hello.clock is not None:
            self._haste = Haste(hello.clock.answered, at, self._interval_ms / 1000)
            self._publish(LinkMeasured(self.node, at, *self._clock.live(hello.life, hello.clock, at)))
        self._change(Phase.LIVE)

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.write(encode(message))

    def _change(
        self, phase: Phase, reason: str = "", remedy: str = "", retry_at: float | None = None
    ) -> None:
        self._publish(LinkChanged(self.node, self._times.wall(), phase, reason, remedy, retry_at))

    def _wall_ns(self) -> int:
        return round(self._times.wall() * 1e9)


def _retry(reason: str) -> Retry:
    """Whether it is of use to connect again after such a bye."""
    if reason.startswith(SENT_ALL) and not reason.endswith(FRAMES_REMAIN):
        return Retry.NEVER
    return Retry.SLOWLY if reason == TAKEN_OVER else Retry.SOON


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and see their end, whatever it is."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
