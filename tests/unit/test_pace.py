"""How fast links go: attempts that spread, and nodes that send too much or too fast to nobody's harm."""

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
from gswarm_tui.launch.base import LaunchError, Retry
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.srun import STEPS_AT_ONCE, SrunLauncher
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.ssh.launcher import HANDSHAKES_AT_ONCE
from gswarm_tui.link import link
from gswarm_tui.link.backoff import Backoff, Gate
from gswarm_tui.link.link import Link
from gswarm_tui.store.recording.recorder import Recorder
from tests.unit.store_recording import INFO, gpu_row, hello, host_row, query
from tests.unit.test_link import (
    BEGIN,
    FRAME,
    NOW,
    SECOND_NS,
    FakeAgent,
    FakeLauncher,
    Hands,
    Scene,
    scene,
    settle,
)

NODES = 1000


@given(
    seed=st.integers(),
    spread_s=st.floats(0, 100),
    steps=st.lists(st.sampled_from([Retry.SOON, Retry.SLOWLY, None]), max_size=40),
)
def test_waits_stay_between_a_second_and_a_minute(
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


def test_waits_differ_from_node_to_node() -> None:
    waits = {Backoff(random.Random(seed)).next(Retry.SLOWLY) for seed in range(20)}
    assert len(waits) > 10


class Refusing:
    """A launcher of a fleet whose nodes are all away; notes when each is asked for, by the fake clock."""

    def __init__(self, hands: Hands) -> None:
        self.hands = hands
        self.attempts: list[float] = []

    async def open(self, node: str) -> FakeAgent:
        self.attempts.append(self.hands.passed)
        raise LaunchError("it refuses connections")

    async def close(self) -> None:
        pass


async def test_a_thousand_links_that_are_lost_at_once_come_back_one_after_the_other() -> None:
    hands, rng = Hands(), random.Random(7)
    launcher = Refusing(hands)
    links = [
        Link(f"n{n}", launcher, 1000, lambda _event: None, of_nodes=NODES, times=hands.times, rng=rng)
        for n in range(NODES)
    ]
    running = [asyncio.create_task(one.run()) for one in links]
    try:
        await settle()
        assert launcher.attempts == [0.0] * NODES  # the beginning; the launcher bounds how many go on at once
        await hands.turn(300)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    again = launcher.attempts[NODES:]
    assert min(again) >= 1
    assert max(bisect_left(again, at + 1) - index for index, at in enumerate(again)) <= 250
    assert sum(at >= 240 for at in again) <= 1.5 * NODES, "not much more than once a minute each"


async def test_connections_are_opened_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_steps_of_a_job_are_started_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """A life's frames from number ``first`` on; frame 0 was sampled so long after the link began."""
    begin = round((BEGIN + since_s) * SECOND_NS)
    return [
        replace(FRAME, seq=n, ts_ns=begin + round(n * every_s * SECOND_NS))
        for n in range(first, first + count)
    ]


def seqs(here: Scene) -> list[int]:
    return [event.frame.seq for event in here.of(FrameArrived)]


@pytest.fixture
def ten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for ten of these frames of one node."""
    size = weight(FrameArrived("n1", 0, 0, "life1", FRAME))
    monkeypatch.setattr(link, "MOST_WAITING", 10 * size)


@pytest.mark.usefixtures("ten")
async def test_a_link_reads_no_further_until_what_came_is_on_disk() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(*frames(1, 25))
        await settle()
        assert seqs(here) == list(range(1, 11))
        here.link.acknowledge("another life", 10)
        await settle()
        assert len(seqs(here)) == 10
        here.link.acknowledge("life1", 4)
        await settle()
        assert len(seqs(here)) == 14
        here.link.acknowledge("life1", 14)
        await settle()
        here.link.acknowledge("life1", 24)
        await settle()
        assert seqs(here) == list(range(1, 26))


@pytest.mark.usefixtures("ten")
async def test_where_nothing_gets_on_disk_the_link_goes_on_after_a_while_and_is_not_taken_for_quiet() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(*frames(1, 300))
        await settle()
        for pauses in range(1, 21):
            assert len(seqs(here)) == 10 * pauses
            await here.hands.turn(5)
        assert here.phases() == [Phase.CONNECTING, Phase.LIVE]


@pytest.mark.usefixtures("ten")
async def test_a_connection_begins_with_all_of_its_room() -> None:
    first, second = FakeAgent(), FakeAgent()
    async with scene(first, second) as here:
        for agent in (first, second):
            agent.greet()
        first.say(*frames(1, 25))
        await settle()
        here.link.reconnect()
        second.say(*frames(11, 10))
        await here.hands.turn(2)
        assert seqs(here) == list(range(1, 21))


@pytest.mark.usefixtures("ten")
async def test_without_a_recording_so_much_is_taken_in_a_tick_and_no_more() -> None:
    agent, hub = FakeAgent(), Hub(Fleet(["gpu01"]), clock=lambda: BEGIN)
    hub.links["gpu01"] = one = Link("gpu01", FakeLauncher(agent), 1000, hub.publish, times=Hands().times)
    running = asyncio.create_task(one.run())
    try:
        await settle()
        agent.greet()
        agent.say(*frames(1, 35))
        for taken in (10, 20, 30, 35):
            await settle()
            hub.flush()
            assert hub.fleet.nodes["gpu01"].frames == taken
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_what_waits_of_one_life_is_not_freed_by_another() -> None:
    gate, full = Gate(30), list[bool]()
    gate.took("old", 7, 10)
    gate.took("new", 1, 10)
    full.append(gate.is_full)
    gate.took("new", 2, 10)
    full.append(gate.is_full)
    gate.acknowledged("other", 9)
    full.append(gate.is_full)
    gate.acknowledged("new", 1)
    full.append(gate.is_full)
    assert full == [False, True, True, False]


async def test_an_agent_that_sends_more_than_it_was_asked_for_loses_its_link() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        await here.hands.turn(10)
        agent.say(*frames(1, 1000, since_s=0, every_s=0.001))
        await settle()
        assert len(seqs(here)) == 150
        lost = here.last_change()
        assert lost.phase is Phase.LOST
        assert lost.reason == "it sent 151 frames within 10 s, but was asked for one every 1 s"
        assert lost.retry_at is not None
        assert lost.retry_at - lost.at >= 45


async def test_what_an_agent_kept_may_come_at_any_pace_and_so_may_what_came_while_the_head_slept() -> None:
    agent = FakeAgent()
    async with scene(agent) as here:
        agent.greet()
        agent.say(*frames(1, 5000))
        await settle()
        here.link.set_interval(100)
        here.link.set_interval(5000)
        here.hands.passed += 600  # asleep: time passes, and nothing is done in it
        agent.say(*frames(5001, 6000, since_s=-500))
        await settle()
        assert len(seqs(here)) == 11_000
        assert here.phases()[-1] is Phase.LIVE


class Flooding(FakeAgent):
    """An agent that has frames for ever, each as large as a frame of eight GPUs."""

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


class Both:
    """A launcher of both nodes."""

    def __init__(self, agents: dict[str, FakeAgent]) -> None:
        self.agents = agents
        self.opened = Counter[str]()

    async def open(self, node: str) -> FakeAgent:
        self.opened[node] += 1
        return self.agents[node]

    async def close(self) -> None:
        pass


async def test_a_node_that_floods_makes_the_recorder_refuse_no_other_nodes_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a recorder of little memory; without its bound the flood would have it full within a tick."""
    (large,) = frames_of_gpus(1, 1, 8)
    keep_bytes = 400 * weight(FrameArrived("flood", 0, 0, "life1", large))
    monkeypatch.setattr(link, "MOST_WAITING", keep_bytes * 3 // 4)
    path, loop, refused = tmp_path / "flood.duckdb", asyncio.get_running_loop(), set[str]()
    hub = Hub(Fleet(["calm", "flood"], 0.1), clock=time.time)

    def told(status: RecorderStatus) -> None:
        refused.update(status.behind)
        loop.call_soon_threadsafe(hub.recorded, status)

    recorder = Recorder(path, INFO, told, lasting=True, commit_every_s=0.05, keep_bytes=keep_bytes)
    recorder.open()
    hub.recorder = recorder.status()
    hub.sinks.append(recorder)
    flood, calm = Flooding(2000), FakeAgent()
    launcher = Both({"flood": flood, "calm": calm})
    for node in hub.fleet.nodes:
        hub.links[node] = Link(node, launcher, 100, hub.publish, of_nodes=2)
    running = asyncio.create_task(hub.run())
    try:
        calm.greet(replace(hello("calm", gpus=1), clock=NOW))
        for frame in frames_of_gpus(1, 30, 1):
            calm.say(frame)
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
