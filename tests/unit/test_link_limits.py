"""Backoff of many links, and limits on nodes that send too much or too fast."""

from __future__ import annotations

import asyncio
import errno
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import asyncssh
import pytest

from gswarm_agent.frame import TABLES, Frame, Note, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_agent.wire import MAGIC, Message, Pong, encode
from gswarm_tui.fleet.events import FrameArrived, LinkChanged, Phase, weight
from gswarm_tui.launch.base import Launcher, LaunchError
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.srun import STEPS_AT_ONCE, SrunLauncher
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.ssh.asyncssh_internals import read_options
from gswarm_tui.launch.ssh.configuration import SshConfiguration
from gswarm_tui.launch.ssh.launcher import HANDSHAKES_AT_ONCE
from gswarm_tui.link import limits, link
from gswarm_tui.link.limits import MIB, SPOOL_MEMORY_MIB, SPOOL_MIB, Allowance, Backlog
from gswarm_tui.link.link import Link
from tests.unit.store_recording import gpu_row, hello, host_row
from tests.unit.test_link import (
    BEGIN,
    FORMER,
    FRAME,
    HELLO,
    NOW,
    SECOND_NS,
    FakeAgent,
    LinkTest,
    ManualClock,
    running_link,
    settle,
)

NODES = 1000


class Refusing(Launcher):
    """Launcher whose nodes all refuse connections; ``attempts`` holds the times of the attempts."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.attempts: list[float] = []

    async def open(self, node: str, *arguments: str) -> FakeAgent:
        self.attempts.append(self.clock.passed)
        raise LaunchError("it refuses connections")

    async def close(self) -> None:
        pass


async def test_a_thousand_links_lost_at_once_reconnect_spread_out() -> None:
    clock, rng = ManualClock(), random.Random(7)
    launcher = Refusing(clock)
    links = [
        Link(f"n{n}", launcher, 1000, lambda _event: None, of_nodes=NODES, clocks=clock.clocks, rng=rng)
        for n in range(NODES)
    ]
    running = [asyncio.create_task(one.run()) for one in links]
    try:
        await settle()
        assert launcher.attempts == [0.0] * NODES  # the beginning; the launcher bounds how many go on at once
        await clock.advance(300)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    again = launcher.attempts[NODES:]
    assert min(again) >= 1
    assert max(bisect_left(again, at + 1) - index for index, at in enumerate(again)) <= 250
    assert sum(at >= 240 for at in again) <= 1.5 * NODES, "not much more than once a minute each"


async def test_ssh_handshakes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = 0, 0

    async def connect(*_words: object, **_options: object) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await settle()
        now -= 1
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    async def read(
        _self: SshConfiguration, host: str, _user: str, _port: int
    ) -> tuple[asyncssh.SSHClientConnectionOptions, str]:
        return read_options(host, []), ""

    monkeypatch.setattr(asyncssh, "connect", connect)
    monkeypatch.setattr(SshConfiguration, "read", read)  # which would call ssh for each host
    launcher = SshLauncher(SshSettings(config="/dev/null"))
    refused = await asyncio.gather(*(launcher.open(f"n{n}") for n in range(200)), return_exceptions=True)
    assert {str(error) for error in refused} == {"it refuses connections: nothing listens on its SSH port"}
    assert most == HANDSHAKES_AT_ONCE


async def test_srun_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = 0, 0

    async def begin(_command: Sequence[str], *, environ: Mapping[str, str]) -> ProcessChannel:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await settle()
        now -= 1
        raise LaunchError("srun can't be run")

    monkeypatch.setattr(ProcessChannel, "start", begin)
    launcher = SrunLauncher("4711")
    await asyncio.gather(*(launcher.open(f"n{n}") for n in range(100)), return_exceptions=True)
    assert most == STEPS_AT_ONCE


def frames(first: int, count: int, *, since_s: float = -100_000.0, every_s: float = 0.1) -> list[Frame]:
    """Frames from number ``first`` on; frame 0 was sampled ``since_s`` after the link began."""
    begin = round((BEGIN + since_s) * SECOND_NS)
    return [
        replace(FRAME, seq=n, ts_ns=begin + round(n * every_s * SECOND_NS))
        for n in range(first, first + count)
    ]


def seqs(test: LinkTest) -> list[int]:
    return [event.frame.seq for event in test.of(FrameArrived)]


@pytest.fixture
def ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the high-water mark to ten frames of one node."""
    size = weight(FrameArrived("n1", 0, 0, "life1", FRAME))
    monkeypatch.setattr(link, "MAX_UNACKNOWLEDGED_BYTES", 10 * size)


@pytest.mark.usefixtures("ten")
async def test_link_stops_reading_at_the_high_water_mark() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        agent.send(*frames(1, 25))
        await settle()
        assert seqs(test) == list(range(1, 11))
        test.link.acknowledge("another life", 10)
        await settle()
        assert len(seqs(test)) == 10
        test.link.acknowledge("life1", 4)
        await settle()
        assert len(seqs(test)) == 14
        test.link.acknowledge("life1", 14)
        await settle()
        test.link.acknowledge("life1", 24)
        await settle()
        assert seqs(test) == list(range(1, 26))


@pytest.mark.usefixtures("ten")
async def test_link_without_acknowledgements_reads_on_every_5_s_and_stays_live() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        agent.send(*frames(1, 300))
        await settle()
        for pauses in range(1, 21):
            assert len(seqs(test)) == 10 * pauses
            await test.clock.advance(5)
        assert test.phases() == [Phase.CONNECTING, Phase.LIVE]


@pytest.mark.usefixtures("ten")
async def test_new_connection_has_an_empty_backlog() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with running_link(first, second) as test:
        for agent in (first, second):
            agent.greet()
        first.send(*frames(1, 25))
        await settle()
        test.link.reconnect()
        second.send(*frames(11, 10))
        await test.clock.advance(2)
        assert seqs(test) == list(range(1, 21))


def test_acknowledgement_frees_only_its_own_life() -> None:
    backlog, full = Backlog(30), list[bool]()
    backlog.add("old", 7, 10)
    backlog.add("new", 1, 10)
    full.append(backlog.is_full)
    backlog.add("new", 2, 10)
    full.append(backlog.is_full)
    backlog.acknowledge("other", 9)
    full.append(backlog.is_full)
    backlog.acknowledge("new", 1)
    full.append(backlog.is_full)
    assert full == [False, True, True, False]


@dataclass(frozen=True)
class Honest:
    """Samples of an honest node in each interval, and the durations of its disconnections."""

    interval_ms: int
    gpus: int
    processes: int
    command: str
    cuts_s: tuple[int, ...]

    def frame(self) -> Frame:
        unmeasured = (None,) * len(PROCESS_COLUMNS)
        processes = [
            ProcessSample(n % self.gpus, 1000 + n, "alice", self.command, n, n, unmeasured)
            for n in range(self.processes)
        ]
        rows = [gpu_row(util_pct=50)] * self.gpus
        return TABLES.frame(
            1, NOW.sent, 0.0, 0, gpus=rows, host=host_row(cpu_pct=1), processes=processes or None
        )


SHORT_CUTS, DAY = (5, 60, 1, 1, 600), 86_400


@pytest.mark.parametrize(
    "node",
    [
        Honest(1000, 8, 8, "python train.py", (*SHORT_CUTS, DAY, *SHORT_CUTS)),
        Honest(100, 16, 32, "python train.py --config large.yaml", (*SHORT_CUTS, 3600)),
        Honest(100, 16, 600, "python -m torch.distributed.run " * 8, (*SHORT_CUTS, 120)),
        Honest(1000, 8, 4000, "python train.py " * 8, (*SHORT_CUTS, 600)),
        Honest(60_000, 8, 8, "python train.py", (*SHORT_CUTS, DAY)),
    ],
)
def test_no_limit_is_reached_by_an_honest_node_that_delivers_its_spool_at_once(node: Honest) -> None:
    """After each cut, all waiting frames arrive, those of the last 5 s twice; then 10 normal seconds."""
    at = BEGIN
    spool, allowance = (SPOOL_MIB + SPOOL_MEMORY_MIB) * MIB, Allowance(None, at)
    introduction, frame = replace(hello(gpus=node.gpus), clock=NOW), node.frame()
    size, interval_s = len(encode(frame)), node.interval_ms / 1000

    def send(message: Message, length: int) -> None:
        allowance.take(length, at)
        allowance.take_message(message, at)

    for cut_s in (0, *node.cuts_s):
        at += cut_s
        send(introduction, len(encode(introduction)))
        for _ in range(int(min(cut_s / interval_s, spool / size) + min(cut_s, 5) / interval_s)):
            send(frame, size)
        for _ in range(round(10 / interval_s)):
            at += interval_s
            send(frame, size)
            send(Pong(NOW), 50)


async def test_node_above_the_limit_is_cut_off_again_after_a_reconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "BYTES_PER_S", 20_000)
    agents, note = (FakeAgent(), FakeAgent()), Note("mark", "info", "x" * 4000)
    async with running_link(*agents) as test:
        for agent in agents:
            while test.last_change().phase is not Phase.CONNECTING:
                await test.clock.advance(1)
            agent.greet()
            agent.send(*[replace(frame, notes=(note,) * 50) for frame in frames(1, 100)])
            while test.last_change().phase is not Phase.LOST:
                await settle()
        lost = [event for event in test.of(LinkChanged) if event.phase is Phase.LOST]
        assert len(seqs(test)) < 200
    assert {event.reason for event in lost} == {"its agent sent too much: over 0.02 MB per second on average"}
    pauses = [event.retry_at - event.at for event in lost if event.retry_at is not None]
    assert [pause >= 45 for pause in pauses] == [True, True]


async def test_frames_that_waited_for_hours_may_arrive_at_once() -> None:
    agent, late = FakeAgent(), FakeAgent()
    async with running_link(agent, *[LaunchError("no route to host") for _ in range(300)], late) as test:
        agent.greet()
        await settle()
        agent.outgoing.put_nowait(b"")
        while not late.received:
            await test.clock.advance(10)
        hours = test.clock.passed / 3600
        late.greet()
        late.send(*frames(1, round(test.clock.passed), since_s=0, every_s=1))
        while len(seqs(test)) < round(test.clock.passed):
            await settle()
            assert test.phases()[-1] is Phase.LIVE
    assert hours > 4


async def test_paused_head_loses_no_link() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        await settle()
        test.clock.passed += 36  # stopped: nothing runs meanwhile
        await test.clock.advance(10)
        agent.send(FRAME)
        await test.clock.advance(10)
        assert test.phases() == [Phase.CONNECTING, Phase.LIVE]
        await test.clock.advance(20)
    assert [one.reason for one in test.of(LinkChanged) if one.phase is Phase.LOST] == ["no data for 15 s"]


async def test_node_that_dribbles_its_hello_is_lost_after_a_minute() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        for byte in (MAGIC + encode(HELLO))[:60]:
            assert test.phases() == [Phase.CONNECTING]
            agent.outgoing.put_nowait(bytes([byte]))
            await test.clock.advance(1)
        assert test.last_change().reason == "no complete message for 60 s"


async def test_failures_before_the_live_phase_lengthen_the_pauses() -> None:
    """Each agent sends a former life's hello, stays connected for more than a minute, and ends."""
    agents = [FakeAgent() for _ in range(5)]
    async with running_link(*agents) as test:
        for agent in agents:
            agent.greet(FORMER)
            for _ in range(7):
                await test.clock.advance(10)
                agent.send(FRAME)
            agent.outgoing.put_nowait(b"")
            await settle()
            await test.clock.advance(25)
        lost = [event for event in test.of(LinkChanged) if event.phase is Phase.LOST]
    pauses = [event.retry_at - event.at for event in lost if event.retry_at is not None]
    assert pauses[4] > 10
