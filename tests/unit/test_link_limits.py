"""Backoff of many links, and limits on nodes that send too much or too fast."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent.frame import TABLES, Frame
from gswarm_agent.wire import MAGIC, encode
from gswarm_tui.fleet.events import FrameArrived, Phase, RecorderStatus, weight
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.hub import Hub
from gswarm_tui.launch.base import Launcher, LaunchError, Retry
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.srun import STEPS_AT_ONCE, SrunLauncher
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.ssh.launcher import HANDSHAKES_AT_ONCE
from gswarm_tui.link import link
from gswarm_tui.link.limits import Backlog
from gswarm_tui.link.link import Backoff, Link
from gswarm_tui.store.recording.recorder import Recorder
from tests.unit.store_recording import INFO, gpu_row, hello, host_row, query
from tests.unit.test_link import (
    BEGIN,
    FRAME,
    NOW,
    SECOND_NS,
    FakeAgent,
    FakeLauncher,
    LinkTest,
    ManualClock,
    running_link,
    settle,
)

NODES = 1000


@given(
    seed=st.integers(),
    spread_s=st.floats(0, 100),
    steps=st.lists(st.sampled_from([Retry.SOON, Retry.SLOWLY, None]), max_size=40),
)
def test_backoff_stays_between_a_second_and_a_minute(
    seed: int, spread_s: float, steps: list[Retry | None]
) -> None:
    backoff = Backoff(random.Random(seed), spread_s)
    for step in steps:
        if step is None:
            backoff.reset()
            continue
        wait = backoff.next(step)
        assert 1 <= wait <= 60
        assert step is Retry.SOON or wait >= 45


def test_backoff_differs_from_node_to_node() -> None:
    waits = {Backoff(random.Random(seed)).next(Retry.SLOWLY) for seed in range(20)}
    assert len(waits) > 10


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

    monkeypatch.setattr(asyncssh, "connect", connect)
    launcher = SshLauncher(SshSettings(config="/dev/null"))
    refused = await asyncio.gather(*(launcher.open(f"n{n}") for n in range(200)), return_exceptions=True)
    assert {str(error) for error in refused} == {"it refuses connections: nothing listens on its SSH port"}
    assert most == HANDSHAKES_AT_ONCE


async def test_srun_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most = 0, 0

    async def begin(_command: Sequence[str]) -> ProcessChannel:
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


@pytest.mark.usefixtures("ten")
async def test_backlog_bounds_each_tick_without_a_recording() -> None:
    agent, hub = FakeAgent(), Hub(Fleet(["gpu01"]), clock=lambda: BEGIN)
    hub.links["gpu01"] = one = Link(
        "gpu01", FakeLauncher(agent), 1000, hub.publish, clocks=ManualClock().clocks
    )
    running = asyncio.create_task(one.run())
    try:
        await settle()
        agent.greet()
        agent.send(*frames(1, 35))
        for taken in (10, 20, 30, 35):
            await settle()
            hub.flush()
            assert hub.fleet.nodes["gpu01"].frames == taken
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


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


async def test_agent_above_the_rate_limit_loses_its_link() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        await test.clock.advance(10)
        agent.send(*frames(1, 1000, since_s=0, every_s=0.001))
        await settle()
        assert len(seqs(test)) == 150
        lost = test.last_change()
        assert lost.phase is Phase.LOST
        assert lost.reason == "it sent 151 frames within 10 s, expected one every 1 s"
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


async def test_rate_limit_ignores_spooled_frames_and_the_heads_sleep() -> None:
    agent = FakeAgent()
    async with running_link(agent) as test:
        agent.greet()
        agent.send(*frames(1, 5000))
        await settle()
        test.link.set_interval(100)
        test.link.set_interval(5000)
        test.clock.passed += 600  # asleep: time passes, and nothing is done in it
        agent.send(*frames(5001, 6000, since_s=-500))
        await settle()
        assert len(seqs(test)) == 11_000
        assert test.phases()[-1] is Phase.LIVE


class Flooding(FakeAgent):
    """Agent that sends up to ``most`` large frames as fast as they are read."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.sent, self.most = 0, most

    async def read(self) -> bytes:
        if self.sent == 0:
            self.sent = 1
            return MAGIC + encode(replace(hello("flood", gpus=8), clock=NOW))
        await asyncio.sleep(0)
        if self.sent > self.most:
            await asyncio.get_running_loop().create_future()
        made = frames_of_gpus(self.sent, 50, 8)
        self.sent += len(made)
        return b"".join(map(encode, made))


def frames_of_gpus(first: int, count: int, gpus: int) -> list[Frame]:
    row, host = gpu_row(util_pct=50, power_w=300), host_row(cpu_pct=10)
    made = TABLES.gpus.pack_rows(gpus * (row,)), TABLES.host.pack_rows([host])
    return [replace(frame, gpus=made[0], host=made[1]) for frame in frames(first, count)]


class FakeFleet(Launcher):
    """Launcher of one fake agent for each node."""

    def __init__(self, agents: dict[str, FakeAgent]) -> None:
        self.agents = agents
        self.opened = Counter[str]()

    async def open(self, node: str, *arguments: str) -> FakeAgent:
        self.opened[node] += 1
        return self.agents[node]

    async def close(self) -> None:
        pass


async def test_flooding_node_costs_no_other_nodes_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recorder has little memory; an unbounded backlog would fill it within a tick."""
    (large,) = frames_of_gpus(1, 1, 8)
    keep_bytes = 400 * weight(FrameArrived("flood", 0, 0, "life1", large))
    monkeypatch.setattr(link, "MAX_UNACKNOWLEDGED_BYTES", keep_bytes * 3 // 4)
    path, loop, refused = tmp_path / "flood.duckdb", asyncio.get_running_loop(), set[str]()
    hub = Hub(Fleet(["calm", "flood"], 100), clock=time.time)

    def recorded(status: RecorderStatus) -> None:
        refused.update(status.refused)
        loop.call_soon_threadsafe(hub.recorded, status)

    recorder = Recorder(path, INFO, recorded, commit_every_s=0.05, keep_bytes=keep_bytes)
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    flood, calm = Flooding(2000), FakeAgent()
    launcher = FakeFleet({"flood": flood, "calm": calm})
    for node in hub.fleet.nodes:
        hub.links[node] = Link(node, launcher, 100, hub.publish, of_nodes=2)
    running = asyncio.create_task(hub.run())
    try:
        calm.greet(replace(hello("calm", gpus=1), clock=NOW))
        for frame in frames_of_gpus(1, 30, 1):
            calm.send(frame)
            await on_disk(hub, "calm", frame.seq)
        await on_disk(hub, "flood", 2000)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert recorder.close(None).error == ""
    assert refused == set()
    assert launcher.opened == {"calm": 1, "flood": 1}
    found = query(
        path, "SELECT node, frames, last_seq, lost_frames FROM links JOIN nodes USING (node_id) ORDER BY 1"
    )
    assert found == [("calm", 30, 30, 0), ("flood", 2000, 2000, 0)]


async def on_disk(hub: Hub, node: str, seq: int) -> None:
    deadline = time.monotonic() + 60
    while hub.recorder is None or hub.recorder.committed.get((node, "life1"), 0) < seq:
        assert time.monotonic() < deadline, f"never on disk: frame {seq} of {node}"
        await asyncio.sleep(0.01)
