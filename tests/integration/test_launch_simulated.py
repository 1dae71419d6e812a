"""Local and simulated launchers with real agent processes, for few and for many nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gswarm_agent.metrics import ALL_GROUPS, HOST_COLUMNS
from gswarm_tui.fleet.events import Event, FrameArrived, LinkChanged, LinkMeasured, NodeIntroduced, Phase
from gswarm_tui.launch.base import Launcher, LaunchError, Retry
from gswarm_tui.launch.local import LocalLauncher
from gswarm_tui.launch.process import ProcessChannel
from gswarm_tui.launch.simulated import SimulatedLauncher, simulated_names
from gswarm_tui.link.link import Link
from tests.block_rows import rows_of

PATIENCE_S = 60.0
LOAD = HOST_COLUMNS.index("load_1m")


class LinkedHead:
    """Links to some nodes, and the events that they published."""

    def __init__(self, launcher: Launcher, nodes: list[str]) -> None:
        self.events: list[Event] = []
        self.links = {node: Link(node, launcher, 100, self.events.append) for node in nodes}

    def frames(self, node: str) -> list[FrameArrived]:
        return [e for e in self.events if isinstance(e, FrameArrived) and e.node == node]

    def phases(self, node: str) -> list[Phase]:
        return [e.phase for e in self.events if isinstance(e, LinkChanged) and e.node == node]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.02)

    async def until_all_have(self, frames: int) -> None:
        await self.until(lambda: all(len(self.frames(node)) >= frames for node in self.links))


@asynccontextmanager
async def head(launcher: Launcher, *nodes: str) -> AsyncIterator[LinkedHead]:
    head = LinkedHead(launcher, list(nodes))
    running = [asyncio.create_task(link.run()) for link in head.links.values()]
    try:
        yield head
    finally:
        await asyncio.gather(*(link.stop() for link in head.links.values()))
        await asyncio.gather(*running)
        await launcher.close()


def agents_of(pid: int) -> set[int]:
    """Return the running agent processes that a process started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if "gswarm_agent" in command_of(int(child))}


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except FileNotFoundError:
        return ""


async def test_many_cores_get_few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    nodes = simulated_names(32)
    async with head(SimulatedLauncher(len(nodes), 1), *nodes) as demo:
        await demo.until_all_have(1)
        assert len(agents_of(os.getpid())) == 8


async def test_local_launcher_runs_an_agent_on_this_machine() -> None:
    async with head(LocalLauncher(), "here") as here:
        await here.until_all_have(3)
        (hello,) = [e.hello for e in here.events if isinstance(e, NodeIntroduced)]
        assert hello.host.hostname == os.uname().nodename
        assert not hello.simulated
        assert all(abs(e.at - e.ts) < 5 for e in here.frames("here"))
    assert here.phases("here") == [Phase.CONNECTING, Phase.LIVE, Phase.ENDED]
    assert agents_of(os.getpid()) == set()


@pytest.mark.parametrize("nodes", [1, 20])
async def test_simulated_nodes_share_one_process_per_core(nodes: int) -> None:
    names = simulated_names(nodes)
    async with head(SimulatedLauncher(nodes, gpus=2), *names) as here:
        await here.until_all_have(3)
        assert len(agents_of(os.getpid())) == min(nodes, os.cpu_count() or 1)
        hellos = {e.node: e.hello for e in here.events if isinstance(e, NodeIntroduced)}
        assert {node: hello.host.hostname for node, hello in hellos.items()} == {n: n for n in names}
        assert all(hello.simulated and len(hello.gpus) == 2 for hello in hellos.values())
        measured = {e.node for e in here.events if isinstance(e, LinkMeasured)}
        assert measured == set(names)
        for node in names:
            seqs = [e.frame.seq for e in here.frames(node)]
            assert seqs == list(range(1, len(seqs) + 1))
    assert {tuple(here.phases(node)) for node in names} == {(Phase.CONNECTING, Phase.LIVE, Phase.ENDED)}
    assert agents_of(os.getpid()) == set()


async def test_an_agent_ended_by_a_signal_names_it() -> None:
    async with head(LocalLauncher(), "here") as here:
        await here.until_all_have(1)
        (agent,) = agents_of(os.getpid())
        os.kill(agent, signal.SIGTERM)
        await here.until(lambda: Phase.LOST in here.phases("here"))
        lost = next(e for e in here.events if isinstance(e, LinkChanged) and e.phase is Phase.LOST)
        assert lost.reason == "the agent was ended by SIGTERM"


async def test_a_new_interval_reaches_nodes_that_share_a_process() -> None:
    names = simulated_names(17)
    launcher = SimulatedLauncher(len(names), gpus=1)
    links = LinkedHead(launcher, names)
    for link in links.links.values():
        link.set_interval(60_000)
    running = [asyncio.create_task(link.run()) for link in links.links.values()]
    try:
        await links.until_all_have(1)
        links.links["sim01"].set_interval(100)
        await links.until(lambda: len(links.frames("sim01")) > 3)
        assert len(links.frames("sim02")) == 1
    finally:
        await asyncio.gather(*(link.stop() for link in links.links.values()))
        await asyncio.gather(*running)
        await launcher.close()


@pytest.mark.parametrize("node", ["here", *simulated_names(1)])
async def test_switched_metric_groups_reach_the_agent(node: str) -> None:
    launcher = LocalLauncher() if node == "here" else SimulatedLauncher(1, gpus=1)

    def loads() -> list[object]:
        return [rows_of(frame.frame.host)[0][LOAD] for frame in here.frames(node)]

    async with head(launcher, node) as here:
        here.links[node].set_metrics(("core",))
        await here.until(lambda: len(loads()) > 2)
        assert set(loads()) == {None}
        here.links[node].set_metrics(ALL_GROUPS)
        await here.until(lambda: loads()[-1] is not None)


async def test_a_node_outside_the_fleet_is_refused_for_good() -> None:
    with pytest.raises(LaunchError) as caught:
        await SimulatedLauncher(2, gpus=1).open("sim03")
    assert caught.value.retry is Retry.NEVER


HEAD_THAT_DIES = """
import asyncio, os, signal, sys
from gswarm_tui.launch.simulated import SimulatedLauncher, simulated_names
from gswarm_tui.link.link import Link

async def main():
    names = simulated_names(int(sys.argv[1]))
    launcher = SimulatedLauncher(len(names), 1)
    frames = set()
    def publish(event):
        if type(event).__name__ == "FrameArrived":
            frames.add(event.node)
        if len(frames) == len(names):
            children = open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read()
            print(children, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.gather(*(Link(n, launcher, 100, publish).run() for n in names))

asyncio.run(main())
"""


@pytest.mark.parametrize("nodes", [1, 17])
def test_a_head_that_is_killed_leaves_no_agent_behind(nodes: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HEAD_THAT_DIES, str(nodes)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    agents = [int(pid) for pid in done.stdout.split()]
    assert agents
    deadline = time.monotonic() + PATIENCE_S
    while any("gswarm_agent" in command_of(pid) for pid in agents):
        assert time.monotonic() < deadline, "agents outlive their head"
        time.sleep(0.02)


async def test_a_missing_program_is_reported() -> None:
    with pytest.raises(LaunchError) as caught:
        await ProcessChannel.start(["/nowhere/srun"])
    assert caught.value.reason == "/nowhere/srun can't be run: No such file or directory"


async def test_a_child_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "pids"
    script = f"trap '' TERM; (trap '' TERM; sleep 1000) & echo $$ $! > {started}; wait; sleep 1000"
    channel = await ProcessChannel.start(["sh", "-c", script])
    async with asyncio.timeout(PATIENCE_S):
        while not started.exists() or len(started.read_text().split()) < 2:
            await asyncio.sleep(0.01)
    await channel.close()
    for pid in map(int, started.read_text().split()):
        assert "sleep" not in command_of(pid)
