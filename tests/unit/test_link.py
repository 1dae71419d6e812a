"""One node's life as events, against an agent and clocks that the test moves."""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import math
import random
import weakref
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TypeVar
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import ClockExchange, Hello, HostFacts
from gswarm_agent.wire import (
    FRAMES_REMAIN,
    MAGIC,
    TAKEN_OVER,
    Ack,
    Bye,
    Decoder,
    Lost,
    Message,
    Ping,
    Pong,
    SetInterval,
    Start,
    Stop,
    encode,
)
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    FramesLost,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
)
from gswarm_tui.launch.base import LaunchError, Retry
from gswarm_tui.link.clock import DRIFT, Offset
from gswarm_tui.link.link import Link, Times

E = TypeVar("E", bound=Event)

BEGIN = 1_700_000_000.0
SECOND_NS = 1_000_000_000
NOW = ClockExchange(*(3 * [round(BEGIN * SECOND_NS)]))
HELLO = Hello("1", "life1", 1000, False, HostFacts("gpu01", "b"), (), {}, (), (), (), NOW)
FORMER = replace(HELLO, life="life0", clock=None)
FRAME = HELLO.tables.frame(1, round(BEGIN * SECOND_NS), 0.0, 0, gpus=(), host=None)


class Hands:
    """Clocks that a test turns by hand; sleepers wake in order as time passes."""

    def __init__(self) -> None:
        self.passed = 0.0
        self.sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self.number = itertools.count()
        self.times = Times(lambda: BEGIN + self.passed, lambda: self.passed, self.sleep)

    async def sleep(self, seconds: float) -> None:
        waiting = asyncio.get_running_loop().create_future()
        heapq.heappush(self.sleepers, (self.passed + seconds, next(self.number), waiting))
        await waiting

    async def turn(self, seconds: float) -> None:
        """Let time pass, and let everything that happens meanwhile happen."""
        end = self.passed + seconds
        await settle()
        while self.sleepers and self.sleepers[0][0] <= end:
            self.passed, _, waiting = heapq.heappop(self.sleepers)
            if not waiting.done():
                waiting.set_result(None)
            await settle()
        self.passed = end


async def settle() -> None:
    """Let every task go as far as it can without anything new from outside."""
    for _ in range(30):
        await asyncio.sleep(0)


class FakeAgent:
    """The other end of a channel."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.decoder = Decoder()
        self.heard: list[Message] = []
        self.closed = False

    def say(self, *messages: Message) -> None:
        self.outgoing.put_nowait(b"".join(map(encode, messages)))

    def greet(self, hello: Hello = HELLO) -> None:
        self.outgoing.put_nowait(MAGIC + encode(hello))

    async def read(self) -> bytes:
        data = await self.outgoing.get()
        if isinstance(data, Exception):
            raise type(data)(*data.args)  # one that has a name here would keep all of this
        return data

    def write(self, data: bytes) -> None:
        self.heard += self.decoder.feed(data)

    def stderr(self) -> bytes:
        return b""

    async def explain_end(self) -> str:
        return "the agent ended with exit status 1: out of luck"

    async def close(self) -> None:
        self.closed = True


class FakeLauncher:
    """Answers each attempt with what comes next: an agent, an error, or nothing for ever."""

    def __init__(self, *answers: FakeAgent | LaunchError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.joined: list[set[str]] = []

    async def join(self, node: str, lives: Collection[str]) -> FakeAgent:
        self.joined.append(set(lives))
        return await self.open(node)

    async def open(self, node: str) -> FakeAgent:
        self.asked.append(node)
        if not self.answers:
            await asyncio.get_running_loop().create_future()
        answer = self.answers.pop(0)
        if isinstance(answer, LaunchError):
            raise answer
        return answer

    async def close(self) -> None:
        pass


class Scene:
    """A running link and what it published."""

    def __init__(self, *answers: FakeAgent | LaunchError) -> None:
        self.hands = Hands()
        self.launcher = FakeLauncher(*answers)
        self.events: list[Event] = []
        self.link = Link(
            "gpu01", self.launcher, 1000, self.events.append, times=self.hands.times, rng=random.Random(1)
        )

    def phases(self) -> list[Phase]:
        return [event.phase for event in self.events if isinstance(event, LinkChanged)]

    def last_change(self) -> LinkChanged:
        return [event for event in self.events if isinstance(event, LinkChanged)][-1]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def scene(*answers: FakeAgent | LaunchError) -> AsyncIterator[Scene]:
    made = Scene(*answers)
    running = asyncio.create_task(made.link.run())
    try:
        await settle()
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_from_connecting_to_frames() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        assert agent.heard == [Start(1000, round(BEGIN * SECOND_NS))]
        agent.greet()
        agent.say(FRAME, replace(FRAME, seq=2))
        await settle()
    assert [type(event) for event in here.events] == [
        LinkChanged,
        NodeIntroduced,
        LinkMeasured,
        LinkChanged,
        FrameArrived,
        FrameArrived,
    ]
    assert here.phases() == [Phase.CONNECTING, Phase.LIVE]
    first, second = here.of(FrameArrived)
    assert (first.ts, first.life, first.frame) == (BEGIN, "life1", FRAME)
    assert second.frame.seq == 2
    assert agent.closed


async def test_frames_come_at_the_heads_time() -> None:
    agent = FakeAgent()
    ahead = round(7.5 * SECOND_NS)  # the node's clock is 7.5 s ahead
    now = round(BEGIN * SECOND_NS)
    async with scene(agent) as here:
        here.hands.passed = 0.010
        agent.greet(
            replace(HELLO, clock=ClockExchange(now, now + ahead + 4_000_000, now + ahead + 6_000_000))
        )
        agent.say(replace(FRAME, ts_ns=now + ahead + SECOND_NS))
        await settle()
    (measured,) = here.of(LinkMeasured)
    assert measured.offset_s == pytest.approx(7.5, abs=1e-6)
    assert measured.round_trip_s == pytest.approx(0.008, abs=1e-6)
    assert here.of(FrameArrived)[0].ts == pytest.approx(BEGIN + 1, abs=1e-6)


def asked(agent: FakeAgent) -> list[int]:
    """When an agent was asked for its clock, in seconds."""
    return [round(one.sent / SECOND_NS - BEGIN) for one in agent.heard if isinstance(one, Ping)]


async def pass_by(here: Scene, agent: FakeAgent, seconds: int) -> None:
    """Let time pass while the agent sends a frame a second."""
    for _ in range(seconds):
        agent.say(FRAME)
        await here.hands.turn(1)


async def test_the_clock_is_asked_for_soon_then_every_ten_seconds_and_when_well_known_every_thirty() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        here.hands.passed = 0.050  # so long was the first answer on its way
        agent.greet()
        await settle()
        await pass_by(here, agent, 45)
        assert asked(agent) == [1, 11, 21, 31, 41]
        now = round((BEGIN + here.hands.passed) * SECOND_NS)
        agent.say(Pong(ClockExchange(now - SECOND_NS // 100, now, now)))
        await pass_by(here, agent, 100)
        assert asked(agent) == [1, 11, 21, 31, 41, 61, 91, 121]
        assert len(here.of(LinkMeasured)) == 2


async def test_an_agent_whose_gpus_do_not_answer_is_asked_whether_it_is_there_and_stays() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        await pass_by(here, agent, 9)
        for at in range(10, 70):
            await here.hands.turn(1)
            if asked(agent)[-1] == at:
                agent.say(Pong(NOW))
        assert here.phases()[-1] is Phase.LIVE
        await here.hands.turn(asked(agent)[-1] + 15 - here.hands.passed)
        assert here.last_change().reason == "no data for 15 s"


async def test_an_agent_that_says_nothing_any_more_is_dropped_and_connected_to_again() -> None:
    silent, next_one = FakeAgent(), FakeAgent()
    async with scene(silent, next_one) as here:
        silent.greet()
        await here.hands.turn(14)
        assert here.phases()[-1] is Phase.LIVE
        await here.hands.turn(1)
        assert here.last_change().reason == "no data for 15 s"
        assert silent.closed
        assert here.last_change().retry_at is not None
        await here.hands.turn(2)
        next_one.greet()
        await settle()
        assert here.phases()[-3:] == [Phase.LOST, Phase.CONNECTING, Phase.LIVE]


async def test_silence_is_measured_in_intervals_when_they_are_long() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        await settle()
        here.link.set_interval(10_000)
        await here.hands.turn(95)
        assert here.phases()[-1] is Phase.LIVE
        await here.hands.turn(5)
        assert here.phases()[-1] is Phase.LOST


async def test_attempts_come_after_longer_and_longer_waits() -> None:
    async with scene(*(LaunchError(f"no {n}", "do this") for n in range(9))) as here:
        await here.hands.turn(600)
    lost = [event for event in here.of(LinkChanged) if event.phase is Phase.LOST]
    assert [event.reason for event in lost] == [f"no {n}" for n in range(9)]
    assert {event.remedy for event in lost} == {"do this"}
    waits = [event.retry_at - event.at for event in lost if event.retry_at is not None]
    assert len(waits) == 9
    for wait, plain in zip(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert max(1, 0.75 * plain) <= wait <= min(60, 1.25 * plain)


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """The head searches so seldom that what only a search finds counts as kept."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "end", [b"", ConnectionResetError("reset by peer"), MAGIC + b"\xff" * 9, encode(Bye(TAKEN_OVER)), None]
)
async def test_of_a_lost_connection_nothing_is_kept(end: bytes | Exception | None) -> None:
    kept: weakref.WeakSet[FakeAgent] = weakref.WeakSet()

    async def fresh(node: str) -> FakeAgent:
        kept.add(agent := FakeAgent())
        return agent

    async with scene(LaunchError("not yet")) as here:
        with no_search_for_garbage(), patch.object(here.launcher, "open", fresh):
            for _ in range(3):
                while here.last_change().phase is not Phase.CONNECTING:
                    await here.hands.turn(1)
                (agent,) = kept
                agent.greet()
                agent.say(FRAME)
                await settle()
                assert here.last_change().phase is Phase.LIVE
                if end is not None:
                    agent.outgoing.put_nowait(end)
                del agent
                while here.last_change().phase is not Phase.LOST:
                    await here.hands.turn(1)
                assert not kept


async def test_what_only_a_person_can_mend_is_looked_at_once_a_minute() -> None:
    async with scene(LaunchError("its host key is unknown", "ssh gpu01", Retry.SLOWLY)) as here:
        lost = here.last_change()
        assert lost.phase is Phase.LOST
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


async def test_what_will_never_work_is_not_tried_again() -> None:
    async with scene(LaunchError("no host name", "correct --nodes", Retry.NEVER)) as here:
        await here.hands.turn(1000)
        assert here.last_change() == LinkChanged(
            "gpu01", BEGIN, Phase.LOST, "no host name", "correct --nodes", None
        )
        assert len(here.launcher.asked) == 1


async def test_a_link_that_was_good_for_a_minute_begins_with_a_short_wait() -> None:
    errors = [LaunchError("no") for _ in range(5)]
    agent = FakeAgent()
    async with scene(*errors, agent) as here:
        await here.hands.turn(60)
        agent.greet()
        for _ in range(14):
            await here.hands.turn(5)
            agent.say(FRAME)
        agent.outgoing.put_nowait(b"")
        await settle()
        lost = here.last_change()
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at < 1.3


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b"", "the agent ended with exit status 1: out of luck"),
        (encode(Bye("the agent was ended by SIGTERM")), "the agent was ended by SIGTERM"),
        (b"\xff\xff\xff\xff", "the agent can't be understood"),
        (encode(replace(HELLO, life="2")), "the agent can't be understood: it said hello a second time"),
        (ConnectionResetError("reset by\x1b[1m peer"), "the connection broke: reset by [1m peer"),
    ],
)
async def test_how_a_link_is_lost_is_told(end: bytes | Exception, reason: str) -> None:
    agent = FakeAgent()
    async with scene(agent, FakeAgent()) as here:
        agent.greet()
        agent.say(FRAME)
        agent.outgoing.put_nowait(end)
        await settle()
        assert here.last_change().phase is Phase.LOST
        assert here.last_change().reason.startswith(reason)
        assert agent.closed
        await here.hands.turn(2)
        assert here.last_change().phase is Phase.CONNECTING


async def test_stop_lets_the_agent_say_its_last_words() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        await settle()
        stopping = asyncio.create_task(here.link.stop())
        await settle()
        assert agent.heard[-1] == Stop()
        assert not stopping.done()
        agent.say(FRAME, Bye("asked to stop"))
        await stopping
        assert len(here.of(FrameArrived)) == 1
        await settle()
        assert here.phases()[-1] is Phase.ENDED
        assert agent.closed


async def test_stop_ends_what_is_not_yet_connected() -> None:
    async with scene() as here:
        await here.link.stop()
        await settle()
        assert here.phases() == [Phase.CONNECTING, Phase.ENDED]


async def test_stop_before_the_wait_is_over() -> None:
    async with scene(LaunchError("no")) as here:
        await here.link.stop()
        await settle()
        assert here.phases() == [Phase.CONNECTING, Phase.LOST, Phase.ENDED]
        assert len(here.launcher.asked) == 1


async def test_a_new_interval_is_told_now_and_after_a_reconnect() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with scene(first, second) as here:
        first.greet()
        await settle()
        here.link.set_interval(200)
        assert first.heard[-1] == SetInterval(200)
        first.outgoing.put_nowait(b"")
        await here.hands.turn(2)
        assert isinstance(second.heard[0], Start)
        assert second.heard[0].interval_ms == 200


async def test_after_a_reconnect_the_agent_hears_what_is_on_disk_newest_life_first() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with scene(first, second) as here:
        first.greet()
        await settle()
        here.link.acknowledge("life0", 9)
        here.link.acknowledge("life1", 2)
        here.link.acknowledge("life0", 10)
        here.link.acknowledge("life1", 5)
        first.outgoing.put_nowait(b"")
        await here.hands.turn(2)
        start = second.heard[0]
        assert isinstance(start, Start)
        assert start.resume == (("life1", 5), ("life0", 10))


async def test_an_agent_is_joined_that_may_be_in_a_life_that_is_known() -> None:
    first, second, third = FakeAgent(), FakeAgent(), FakeAgent()
    async with scene(first, second, third) as here:
        assert here.launcher.joined == []
        first.greet()
        first.say(FRAME)
        await settle()
        first.outgoing.put_nowait(b"")
        await here.hands.turn(2)
        here.link.resume("life of before", 5, 0.0, 0.0)
        second.outgoing.put_nowait(b"")
        await here.hands.turn(4)
        assert here.launcher.joined == [{HELLO.life}, {HELLO.life, "life of before"}]


async def test_a_link_that_is_to_connect_anew_does_so_at_once() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with scene(first, second) as here:
        first.greet()
        await settle()
        here.link.reconnect()
        await here.hands.turn(2)
        assert first.closed
        second.greet()
        await settle()
        assert here.phases()[-3:] == [Phase.LOST, Phase.CONNECTING, Phase.LIVE]


async def test_what_a_former_life_left_comes_at_its_own_times_and_the_link_is_live_after_it() -> None:
    agent, now = FakeAgent(), round(BEGIN * SECOND_NS)
    made = Scene(agent)
    made.link.resume("life0", 3, 100.0, 0.01)  # its clock was 100 s ahead
    running = asyncio.create_task(made.link.run())
    await settle()
    assert isinstance(agent.heard[0], Start)
    assert agent.heard[0].resume == (("life0", 3),)
    other = replace(FORMER, life="life-between")
    agent.outgoing.put_nowait(
        MAGIC + encode(Pong(ClockExchange(now, now + 7 * SECOND_NS, now + 7 * SECOND_NS)))
    )
    agent.say(FORMER, replace(FRAME, seq=4), other, FRAME)
    await settle()
    assert made.phases() == [Phase.CONNECTING]
    assert made.of(LinkMeasured) == []
    agent.say(HELLO, FRAME)
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


async def test_another_head_that_took_over_is_not_fought_with() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(Bye(TAKEN_OVER))
        await settle()
        lost = here.last_change()
        assert (lost.phase, lost.reason) == (Phase.LOST, "another head took over")
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ([FORMER, FORMER], "it told of one life twice"),
        ([FORMER, replace(FORMER, life="other"), FORMER], "it told of one life twice"),
        ([FORMER, replace(HELLO, life=FORMER.life)], "it told of one life twice"),
        ([FORMER, HELLO, FORMER], "it said hello a second time, as another"),
        ([replace(FORMER, life=f"{n}") for n in range(66)], "it told of more than 64 former lives"),
        (
            [HELLO, *[replace(HELLO, interval_ms=n) for n in range(1, 35)]],
            "it said hello more than 32 times",
        ),
    ],
)
async def test_a_node_that_makes_up_lives_loses_its_link(said: list[Hello], reason: str) -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.outgoing.put_nowait(MAGIC)
        agent.say(*said, FRAME)
        await settle()
        assert here.last_change().reason == f"the agent can't be understood: {reason}"
        assert here.of(FrameArrived) == []


async def test_as_many_lives_as_a_node_may_have_left_are_heard() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.outgoing.put_nowait(MAGIC)
        agent.say(*[replace(FORMER, life=f"{n}") for n in range(64)], HELLO, FRAME)
        await settle()
        assert here.phases()[-1] is Phase.LIVE


async def test_a_life_that_says_hello_again_is_no_former_one_and_no_reconnect() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(replace(HELLO, clock=None, capabilities={"gpu1": "it is gone"}))
        await settle()
    assert [event.former for event in here.of(NodeIntroduced)] == [False, False]
    assert here.phases() == [Phase.CONNECTING, Phase.LIVE]


async def test_a_node_may_hold_frames_until_its_agent_said_bye_with_all_of_them_on_disk() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        assert not here.link.may_hold()
        agent.greet()
        agent.say(FRAME)
        await settle()
        stopping = asyncio.create_task(here.link.stop())
        await settle()
        agent.say(replace(FRAME, seq=2))
        await settle()
        assert here.link.may_hold()
        here.link.acknowledge("life1", 2)
        agent.say(Bye("asked to stop"))
        await stopping
        assert not here.link.may_hold()


@pytest.mark.parametrize(
    ("reason", "holds"),
    [
        ("the agent was ended by SIGTERM", False),
        (f"the agent was ended by SIGTERM{FRAMES_REMAIN}", True),
        (TAKEN_OVER, True),
    ],
)
async def test_an_agent_that_ended_by_itself_holds_nothing_when_all_is_on_disk(
    reason: str, holds: bool
) -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(FRAME)
        await settle()
        here.link.acknowledge("life1", 1)
        agent.say(Bye(reason))
        await settle()
        await here.link.stop()
        assert here.link.may_hold() is holds


@pytest.mark.parametrize("end", [b"", encode(Bye("asked to stop"))])
async def test_a_node_holds_what_was_not_acknowledged(end: bytes) -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(FRAME, replace(FRAME, seq=2))
        await settle()
        here.link.acknowledge("life1", 1)
        stopping = asyncio.create_task(here.link.stop())
        await settle()
        agent.outgoing.put_nowait(end)
        await stopping
        assert here.link.may_hold()
        assert here.phases()[-1] is Phase.ENDED


async def test_acknowledgements_name_the_life_that_they_are_for() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        await settle()
        here.link.acknowledge("an older life", 3)
        here.link.acknowledge("life1", 2)
    acks = [message for message in agent.heard if isinstance(message, Ack)]
    assert acks == [Ack("an older life", 3), Ack("life1", 2)]


def exchange(
    sent: float, there: float, spent: float, back: float, offset: float
) -> tuple[ClockExchange, int]:
    """The times of a ping that took ``there`` and ``back`` to a node that is ``offset`` ahead."""
    received = sent + there + offset
    clock = ClockExchange(*(round(t * SECOND_NS) for t in (sent, received, received + spent)))
    return clock, round((sent + there + spent + back) * SECOND_NS)


def test_the_shortest_round_trip_of_the_last_eight_counts() -> None:
    offset = Offset()
    offset.add(*exchange(0, 0.001, 0.5, 0.001, 3.0))
    offset.add(*exchange(10, 0.9, 0, 0.1, 3.0))
    assert offset.offset_s == pytest.approx(3.0)
    assert offset.round_trip_s == pytest.approx(0.002)
    for n in range(8):
        offset.add(*exchange(20 + n, 0.2, 0, 0.1, 3.0))
    assert offset.offset_s == pytest.approx(3.05)
    assert offset.round_trip_s == pytest.approx(0.3)


def test_a_clock_that_was_set_is_known_from_the_next_exchange_however_slow() -> None:
    offset = Offset()
    offset.add(*exchange(0, 0.001, 0, 0.001, 3.0))
    offset.add(*exchange(30, 0.2, 0, 0.2, 4.0))
    assert (offset.offset_s, offset.round_trip_s) == pytest.approx((4.0, 0.4))


@given(st.floats(-DRIFT, DRIFT), st.lists(st.tuples(*2 * [st.floats(0, 0.05)]), min_size=1, max_size=8))
def test_clocks_that_drift_are_known_to_half_the_shortest_way_and_what_they_drift_in_half_a_minute(
    drift: float, ways: list[tuple[float, float]]
) -> None:
    offset, shortest = Offset(), math.inf
    for n, (there, back) in enumerate(ways):
        at = 30.0 * n
        offset.add(*exchange(at, there, 0, back, 3.0 + drift * at))
        shortest = min(there + back, shortest + 2 * 30 * DRIFT)
        assert abs(offset.offset_s - (3.0 + drift * at)) <= shortest / 2 + 1e-4


def test_what_was_known_of_a_clock_is_believed_unless_it_was_set() -> None:
    for known_s, found_s in ((3.0, 3.0), (3.4, 3.45), (9.0, 3.45)):
        offset = Offset()
        offset.add(*exchange(0, 1.0, 0, 0.1, 3.0))  # a slow and lopsided one: 0.45 s off
        offset.join(known_s, 0.02)
        assert offset.offset_s == pytest.approx(found_s, abs=0.06)


async def test_after_a_reconnect_a_slow_exchange_does_not_shift_what_waited() -> None:
    """The node's clock is 7 s ahead; the second connection's first answer takes 2 s, all on the way there."""
    first, second = FakeAgent(), FakeAgent()
    ahead, now = 7 * SECOND_NS, round(BEGIN * SECOND_NS)
    async with scene(first, second) as here:
        first.greet(replace(HELLO, clock=ClockExchange(now, now + ahead, now + ahead)))
        await settle()
        first.outgoing.put_nowait(b"")
        await here.hands.turn(2)
        sent = round((BEGIN + here.hands.passed) * SECOND_NS)
        here.hands.passed += 2
        late = sent + 2 * SECOND_NS + ahead
        second.greet(replace(HELLO, clock=ClockExchange(sent, late, late)))
        second.say(replace(FRAME, ts_ns=now + ahead + SECOND_NS))
        await settle()
    assert here.of(FrameArrived)[0].ts == pytest.approx(BEGIN + 1, abs=0.01)
    assert here.of(LinkMeasured)[-1].offset_s == pytest.approx(7)


async def test_a_better_offset_does_not_put_readings_before_those_that_came() -> None:
    """The first answer was 0.3 s on its way back; the next tells that the clock is 0.15 s further ahead."""
    agent = FakeAgent()
    ahead, now = 7 * SECOND_NS, round(BEGIN * SECOND_NS)
    async with scene(agent) as here:
        here.hands.passed = 0.3
        agent.greet(replace(HELLO, clock=ClockExchange(now, now + ahead, now + ahead)))
        await settle()
        for seq in range(1, 25):
            if seq == 4:
                now = round((BEGIN + here.hands.passed) * SECOND_NS)
                agent.say(Pong(ClockExchange(now, now + ahead, now + ahead)))
            ts_ns = round((BEGIN + 0.3 + seq / 10) * SECOND_NS) + ahead
            agent.say(replace(FRAME, seq=seq, ts_ns=ts_ns))
        await settle()
    assert here.of(LinkMeasured)[-1].offset_s == 7
    times = [event.ts - BEGIN for event in here.of(FrameArrived)]
    assert times[:3] == pytest.approx([0.55, 0.65, 0.75])
    assert min(after - before for before, after in itertools.pairwise(times)) == pytest.approx(0.09, abs=1e-3)
    assert times[-1] == pytest.approx(2.7)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_clocks_that_agree_have_no_offset_however_lopsided_the_way(
    there: float, spent: float, back: float
) -> None:
    offset = Offset()
    offset.add(*exchange(100, there, spent, back, 0.0))
    assert abs(offset.offset_s) <= 1e-8


async def test_what_is_lost_for_good_has_the_time_of_its_own_life() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        here.link.resume("life0", 3, 2.0, 0.01)
        agent.outgoing.put_nowait(MAGIC)
        agent.say(Lost("life0", 9, round((BEGIN - 5) * SECOND_NS), "it was killed"))
        agent.say(HELLO, FRAME)
        await settle()
        assert here.of(FramesLost) == [
            FramesLost("gpu01", BEGIN, BEGIN - 7, "life0", 9, "it was killed"),
        ]
        assert here.phases()[-1] is Phase.LIVE
        assert here.link.may_hold()
        here.link.acknowledge("life0", 9)
        assert Ack("life0", 9) in agent.heard


async def test_what_an_agent_tells_of_its_clock_unasked_counts_for_nothing() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(*(Pong(ClockExchange(n, n, n)) for n in range(100)))
        agent.say(FRAME)
        await settle()
        assert len(here.of(FrameArrived)) == 1
        assert 0 < len(here.of(LinkMeasured)) < 10


async def test_an_agent_that_loses_without_end_is_left() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(*(Lost(f"life{n}", 1, 1, "x") for n in range(1_001)))
        await settle()
        assert here.last_change().reason == (
            "the agent can't be understood: it told more than 1000 times that frames are lost"
        )
