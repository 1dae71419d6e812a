"""The link publishes one node's life as events; the agent and the clocks are fakes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import pytest

from gswarm_agent.frame import TABLES, ClockExchange, Hello, HostFacts
from gswarm_agent.metrics import DEFAULT_GROUPS
from gswarm_agent.wire import (
    FRAMES_REMAIN,
    MAGIC,
    TAKEN_OVER,
    Ack,
    Bye,
    Configure,
    Decoder,
    Message,
    Ping,
    Pong,
    Start,
    Stop,
    encode,
)
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
)
from gswarm_tui.launch.base import Channel, Launcher, LaunchError, Retry
from gswarm_tui.link.clock import ClockOffset
from gswarm_tui.link.link import Clocks, Link

E = TypeVar("E", bound=Event)

BEGIN = 1_700_000_000.0
SECOND_NS = 1_000_000_000
NOW = ClockExchange(*(3 * [round(BEGIN * SECOND_NS)]))
HELLO = Hello("1", "life1", 1000, False, HostFacts("gpu01", "b"), (), {}, NOW)
FORMER = replace(HELLO, life="life0", clock=None)
FRAME = TABLES.frame(1, round(BEGIN * SECOND_NS), 0.0, 0, gpus=(), host=None)


class ManualClock:
    """Clocks that advance only on request; sleepers wake in order."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.number = itertools.count()
        self.clocks = Clocks(lambda: BEGIN + self.passed, lambda: self.passed, self.sleep)

    async def sleep(self, seconds: float) -> None:
        waiting = asyncio.get_running_loop().create_future()
        heapq.heappush(self.sleepers, (self.passed + seconds, next(self.number), waiting))
        await waiting

    async def advance(self, seconds: float) -> None:
        """Advance the time and run everything that is due meanwhile."""
        end = self.passed + seconds
        await settle()
        while self.sleepers and self.sleepers[0][0] <= end:
            due, _, waiting = heapq.heappop(self.sleepers)
            self.passed = max(self.passed, due)
            if not waiting.done():
                waiting.set_result(None)
            await settle()
        self.passed = max(self.passed, end)


async def settle() -> None:
    """Run every task until it waits for new input."""
    for _ in range(30):
        await asyncio.sleep(0)


class FakeAgent(Channel):
    """The agent's end of a channel."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.decoder = Decoder()
        self.received: list[Message] = []
        self.closed = False

    def send(self, *messages: Message) -> None:
        self.outgoing.put_nowait(b"".join(map(encode, messages)))

    def greet(self, hello: Hello = HELLO) -> None:
        self.outgoing.put_nowait(MAGIC + encode(hello))

    async def read(self) -> bytes:
        data = await self.outgoing.get()
        if isinstance(data, Exception):
            raise type(data)(*data.args)  # a variable for it would keep this frame alive
        return data

    def write(self, data: bytes) -> None:
        self.received += self.decoder.feed(data)

    async def explain_end(self) -> str:
        return "the agent ended with exit status 1: out of luck"

    async def close(self) -> None:
        self.closed = True


class FakeLauncher(Launcher):
    """Launcher that returns its agents and raises its errors in order, then hangs."""

    def __init__(self, *outcomes: FakeAgent | LaunchError) -> None:
        self.outcomes = list(outcomes)
        self.opened: list[str] = []

    async def open(self, node: str, *arguments: str) -> FakeAgent:
        self.opened.append(node)
        if not self.outcomes:
            await asyncio.get_running_loop().create_future()
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, LaunchError):
            raise outcome
        return outcome

    async def close(self) -> None:
        pass


class LinkTest:
    """A link with a fake launcher and clock, and the events that it published."""

    def __init__(self, *outcomes: FakeAgent | LaunchError) -> None:
        self.clock = ManualClock()
        self.launcher = FakeLauncher(*outcomes)
        self.events: list[Event] = []
        self.link = Link(
            "gpu01",
            self.launcher,
            1000,
            self.events.append,
            clocks=self.clock.clocks,
            rng=random.Random(1),
        )

    def phases(self) -> list[Phase]:
        return [event.phase for event in self.events if isinstance(event, LinkChanged)]

    def last_change(self) -> LinkChanged:
        return [event for event in self.events if isinstance(event, LinkChanged)][-1]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def running_link(*outcomes: FakeAgent | LaunchError) -> AsyncIterator[LinkTest]:
    made = LinkTest(*outcomes)
    running = asyncio.create_task(made.link.run())
    try:
        await settle()
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_link_publishes_connection_hello_and_frames() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        assert agent.received == [Start(1000, round(BEGIN * SECOND_NS))]
        agent.greet()
        agent.send(FRAME, replace(FRAME, seq=2))
        await settle()
    assert [type(event) for event in test.events] == [
        LinkChanged,
        NodeIntroduced,
        LinkMeasured,
        LinkChanged,
        FrameArrived,
        FrameArrived,
    ]
    assert test.phases() == [Phase.CONNECTING, Phase.LIVE]
    first, second = test.of(FrameArrived)
    assert (first.ts, first.life, first.frame) == (BEGIN, "life1", FRAME)
    assert second.frame.seq == 2
    assert agent.closed


async def test_frame_times_are_the_heads() -> None:
    agent = FakeAgent()
    ahead = round(7.5 * SECOND_NS)  # the node's clock is 7.5 s ahead
    now = round(BEGIN * SECOND_NS)
    async with running_link(agent) as test:
        test.clock.passed = 0.010
        agent.greet(
            replace(HELLO, clock=ClockExchange(now, now + ahead + 4_000_000, now + ahead + 6_000_000))
        )
        agent.send(replace(FRAME, ts_ns=now + ahead + SECOND_NS))
        await settle()
    (measured,) = test.of(LinkMeasured)
    assert measured.offset_s == pytest.approx(7.5, abs=1e-6)
    assert measured.round_trip_s == pytest.approx(0.008, abs=1e-6)
    assert test.of(FrameArrived)[0].ts == pytest.approx(BEGIN + 1, abs=1e-6)


def ping_times(agent: FakeAgent) -> list[int]:
    """Return the seconds at which an agent was pinged."""
    return [round(one.sent / SECOND_NS - BEGIN) for one in agent.received if isinstance(one, Ping)]


async def send_frames(test: LinkTest, agent: FakeAgent, seconds: int) -> None:
    """Advance the time while the agent sends a frame a second."""
    for _ in range(seconds):
        agent.send(FRAME)
        await test.clock.advance(1)


async def test_link_pings_every_10_s() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        test.clock.passed = 0.050  # so long was the first answer on its way
        agent.greet()
        await settle()
        await send_frames(test, agent, 45)
        assert ping_times(agent) == [1, 11, 21, 31, 41]
        now = round((BEGIN + test.clock.passed) * SECOND_NS)
        agent.send(Pong(ClockExchange(now - SECOND_NS // 100, now, now)))
        await send_frames(test, agent, 20)
        assert ping_times(agent) == [1, 11, 21, 31, 41, 51, 61]
        assert len(test.of(LinkMeasured)) == 2


async def test_agent_without_frames_stays_live_while_it_answers_pings() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        await send_frames(test, agent, 9)
        for at in range(10, 70):
            await test.clock.advance(1)
            if ping_times(agent)[-1] == at:
                agent.send(Pong(NOW))
        assert test.phases()[-1] is Phase.LIVE
        await test.clock.advance(ping_times(agent)[-1] + 15 - test.clock.passed)
        assert test.last_change().reason == "no data for 15 s"


async def test_link_reconnects_to_a_silent_agent() -> None:
    silent, next_one = FakeAgent(), FakeAgent()
    async with running_link(silent, next_one) as test:
        silent.greet()
        await test.clock.advance(14)
        assert test.phases()[-1] is Phase.LIVE
        await test.clock.advance(1)
        assert test.last_change().reason == "no data for 15 s"
        assert silent.closed
        assert test.last_change().retry_at is not None
        await test.clock.advance(2)
        next_one.greet()
        await settle()
        assert test.phases()[-3:] == [Phase.LOST, Phase.CONNECTING, Phase.LIVE]


async def test_link_reconnects_with_growing_backoff() -> None:
    async with running_link(*(LaunchError(f"no {n}", "do this") for n in range(9))) as test:
        await test.clock.advance(600)
    lost = [event for event in test.of(LinkChanged) if event.phase is Phase.LOST]
    assert [event.reason for event in lost] == [f"no {n}" for n in range(9)]
    assert {event.remedy for event in lost} == {"do this"}
    waits = [event.retry_at - event.at for event in lost if event.retry_at is not None]
    assert len(waits) == 9
    for wait, plain in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert max(1, 0.75 * plain) <= wait <= min(60, 1.25 * plain)


async def test_error_that_needs_the_user_is_retried_once_a_minute() -> None:
    async with running_link(LaunchError("its host key is unknown", "ssh gpu01", Retry.SLOWLY)) as test:
        lost = test.last_change()
        assert lost.phase is Phase.LOST
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


async def test_permanent_error_is_not_retried() -> None:
    async with running_link(LaunchError("no host name", "correct --nodes", Retry.NEVER)) as test:
        await test.clock.advance(1000)
        assert test.last_change() == LinkChanged(
            "gpu01", BEGIN, Phase.LOST, "no host name", "correct --nodes", None
        )
        assert len(test.launcher.opened) == 1


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"", "the agent ended with exit status 1: out of luck"),
        (encode(Bye("the agent was ended by SIGTERM")), "the agent was ended by SIGTERM"),
        (b"\xff\xff\xff\xff", "the agent sent an invalid message"),
        (ConnectionResetError("reset by\x1b[1m peer"), "the connection broke: reset by [1m peer"),
    ],
)
async def test_lost_link_reports_its_reason(end: bytes | Exception, reason: str) -> None:
    agent = FakeAgent()
    async with running_link(agent, FakeAgent()) as test:
        agent.greet()
        agent.send(FRAME)
        agent.outgoing.put_nowait(end)
        await settle()
        assert test.last_change().phase is Phase.LOST
        assert test.last_change().reason.startswith(reason)
        assert agent.closed
        await test.clock.advance(2)
        assert test.last_change().phase is Phase.CONNECTING


async def test_stop_waits_for_the_agents_last_frames() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        await settle()
        stopping = asyncio.create_task(test.link.stop())
        await settle()
        assert agent.received[-1] == Stop()
        assert not stopping.done()
        agent.send(FRAME, Bye("asked to stop"))
        await stopping
        assert len(test.of(FrameArrived)) == 1
        await settle()
        assert test.phases()[-1] is Phase.ENDED
        assert agent.closed


async def test_stop_reaches_an_agent_that_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = FakeAgent()
    test = LinkTest(agent)
    stopping: list[asyncio.Task[None]] = []

    async def start(node: str) -> FakeAgent:
        stopping.append(asyncio.create_task(test.link.stop()))
        await asyncio.sleep(0)
        return agent

    monkeypatch.setattr(test.launcher, "open", start)
    running = asyncio.create_task(test.link.run())
    await settle()
    assert agent.received[-1] == Stop()
    agent.greet()
    agent.send(Bye("asked to stop"))
    await asyncio.gather(running, *stopping)
    assert agent.closed


async def test_new_interval_is_sent_now_and_after_a_reconnect() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with running_link(first, second) as test:
        first.greet()
        await settle()
        test.link.set_interval(200)
        assert first.received[-1] == Configure(200, DEFAULT_GROUPS)
        first.outgoing.put_nowait(b"")
        await test.clock.advance(2)
        assert isinstance(second.received[0], Start)
        assert second.received[0].interval_ms == 200


async def test_reconnect_starts_at_once() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with running_link(first, second) as test:
        first.greet()
        await settle()
        test.link.reconnect()
        await test.clock.advance(2)
        assert first.closed
        second.greet()
        await settle()
        assert test.phases()[-3:] == [Phase.LOST, Phase.CONNECTING, Phase.LIVE]


async def test_former_lives_keep_their_times_and_precede_the_live_phase() -> None:
    agent, now = FakeAgent(), round(BEGIN * SECOND_NS)
    made = LinkTest(agent)
    made.link.resume("life0", 3, 100.0, 0.01)  # its clock was 100 s ahead
    running = asyncio.create_task(made.link.run())
    await settle()
    assert isinstance(agent.received[0], Start)
    assert agent.received[0].resume == (("life0", 3),)
    other = replace(FORMER, life="life-between")
    agent.outgoing.put_nowait(
        MAGIC + encode(Pong(ClockExchange(now, now + 7 * SECOND_NS, now + 7 * SECOND_NS)))
    )
    agent.send(FORMER, replace(FRAME, seq=4), other, FRAME)
    await settle()
    assert made.phases() == [Phase.CONNECTING]
    assert made.of(LinkMeasured) == []
    agent.send(HELLO, FRAME)
    await settle()
    assert made.phases()[-1] is Phase.LIVE
    assert [(e.hello.life, e.former) for e in made.of(NodeIntroduced)] == [
        ("life0", True),
        ("life-between", True),
        ("life1", False),
    ]
    found = [(event.life, round(event.ts - BEGIN)) for event in made.of(FrameArrived)]
    assert found == [("life0", -100), ("life-between", -7), ("life1", 0)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_link_retries_slowly_after_another_head_took_over() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        agent.send(Bye(TAKEN_OVER))
        await settle()
        lost = test.last_change()
        assert (lost.phase, lost.reason) == (Phase.LOST, "another head took over")
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


async def test_node_with_too_many_former_runs_loses_its_link() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.outgoing.put_nowait(MAGIC)
        agent.send(*(replace(FORMER, life=f"{n}") for n in range(66)), FRAME)
        await settle()
        reason = "it announced more than 64 former runs"
        assert test.last_change().reason == f"the agent sent an invalid message: {reason}"
        assert test.of(FrameArrived) == []


async def test_node_may_hold_frames_until_a_bye_with_all_acknowledged() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        assert not test.link.may_hold_frames()
        agent.greet()
        agent.send(FRAME)
        await settle()
        stopping = asyncio.create_task(test.link.stop())
        await settle()
        agent.send(replace(FRAME, seq=2))
        await settle()
        assert test.link.may_hold_frames()
        test.link.acknowledge("life1", 2)
        agent.send(Bye("asked to stop"))
        await stopping
        assert not test.link.may_hold_frames()


@pytest.mark.parametrize(
    ("reason", "holds"),
    [
        ("the agent was ended by SIGTERM", False),
        (f"the agent was ended by SIGTERM{FRAMES_REMAIN}", True),
        (TAKEN_OVER, True),
    ],
)
async def test_ended_agent_holds_no_frames_once_all_are_acknowledged(reason: str, holds: bool) -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        agent.send(FRAME)
        await settle()
        test.link.acknowledge("life1", 1)
        agent.send(Bye(reason))
        await settle()
        await test.link.stop()
        assert test.link.may_hold_frames() is holds


async def test_acknowledgements_name_their_life() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        await settle()
        test.link.acknowledge("an older life", 3)
        test.link.acknowledge("life1", 2)
    acks = [message for message in agent.received if isinstance(message, Ack)]
    assert acks == [Ack("an older life", 3), Ack("life1", 2)]


def exchange(
    sent: float, outbound: float, spent: float, back: float, offset: float
) -> tuple[ClockExchange, int]:
    """Return the exchange of a ping that took ``outbound`` and ``back``, with a clock ``offset`` ahead."""
    received = sent + outbound + offset
    clock = ClockExchange(*(round(t * SECOND_NS) for t in (sent, received, received + spent)))
    return clock, round((sent + outbound + spent + back) * SECOND_NS)


def test_offset_is_from_the_shortest_of_eight_round_trips() -> None:
    offset = ClockOffset()
    offset.add(*exchange(0, 0.001, 0.5, 0.001, 3.0))
    offset.add(*exchange(10, 0.9, 0, 0.1, 3.0))
    assert offset.offset_s == pytest.approx(3.0)
    assert offset.round_trip_s == pytest.approx(0.002)
    for n in range(8):
        offset.add(*exchange(20 + n, 0.2, 0, 0.1, 3.0))
    assert offset.offset_s == pytest.approx(3.05)
    assert offset.round_trip_s == pytest.approx(0.3)


def test_earlier_offset_is_kept_unless_the_clock_was_set() -> None:
    for known_s, found_s in ((3.0, 3.0), (3.4, 3.45), (9.0, 3.45)):
        offset = ClockOffset()
        offset.add(*exchange(0, 1.0, 0, 0.1, 3.0))  # a slow and lopsided one: 0.45 s off
        offset.add_earlier(known_s, 0.02)
        assert offset.offset_s == pytest.approx(found_s, abs=0.06)


class BrokenLauncher(Launcher):
    """Launcher with a mistake in it."""

    async def open(self, node: str, *arguments: str) -> Channel:
        raise ZeroDivisionError

    async def close(self) -> None:
        pass


async def test_internal_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await Link("gpu01", BrokenLauncher(), 1000, lambda _event: None).run()
