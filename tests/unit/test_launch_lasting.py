"""Agents that outlive their channels, started as a head does it: over SSH, on this machine, as a step."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gswarm_agent.folder import tops
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.status import status
from gswarm_agent.wire import MAGIC, Ack, Bye, Decoder, Message, Start, Stop, encode
from gswarm_tui.launch.base import Asking, Channel
from gswarm_tui.launch.bootstrap import Bootstrap, Serving
from gswarm_tui.launch.local import LocalLauncher
from gswarm_tui.launch.srun import SrunLauncher
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from gswarm_tui.launch.waiting import ask_status
from tests.unit.sshd import SSHD, Server, running


@pytest.fixture
def recording() -> Iterator[str]:
    """A recording's uid; its agents and their folders end with the test."""
    uid = uuid.uuid4().hex
    yield uid
    for entry in status(uid):
        if entry["pid"]:
            os.kill(entry["pid"], signal.SIGKILL)
    for top in tops():
        for folder in Path(top).glob(f"{uid}@*"):
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    if SSHD is None:
        pytest.skip("no sshd on this machine")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with running(tmp_path) as server:
        server.trust()
        yield server


class Listener:
    """The head's end of a channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.decoder = Decoder()
        self.lives: list[str] = []
        self.frames: list[int] = []

    @classmethod
    async def on(cls, launcher: Asking, node: str) -> Listener:
        listener = cls(await launcher.open(node))
        listener.channel.write(MAGIC + encode(Start(100, 1)))
        return listener

    async def hear(self, kind: type[Message], count: int = 1) -> None:
        async with asyncio.timeout(60):
            while count > 0:
                data = await self.channel.read()
                assert data, await self.channel.explain_end()
                for message in self.decoder.feed(data):
                    count -= isinstance(message, kind)
                    if isinstance(message, Hello):
                        self.lives.append(message.life)
                    elif isinstance(message, Frame):
                        self.frames.append(message.seq)

    async def stop(self) -> None:
        self.channel.write(encode(Stop()) + encode(Ack(self.lives[-1], 10**9)))
        await self.hear(Bye)
        await self.channel.close()


async def goes_on(launcher: Asking, recording: str, cut: Listener) -> None:
    """The agent of a cut channel is found again, with what it measured meanwhile, and ends when asked to."""
    (life,) = cut.lives
    assert (await ask_status(launcher, "gpu01", recording)).pid is not None
    again = await Listener.on(launcher, "gpu01")
    await again.hear(Frame, cut.frames[-1] + 3)
    assert again.lives == [life]
    assert again.frames == list(range(1, len(again.frames) + 1))
    await again.stop()


async def test_an_agent_outlives_the_connection_that_started_it(server: Server, recording: str) -> None:
    launcher = SshLauncher(SshSettings(config=server.config()), Bootstrap(serving=Serving(recording)))
    first = await Listener.on(launcher, "gpu01")
    await first.hear(Frame, 3)
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    with suppress(ConnectionError):
        while await first.channel.read():
            pass
    await first.channel.close()
    await goes_on(launcher, recording, first)
    await launcher.close()


async def test_an_agent_on_this_machine_outlives_its_channel(recording: str) -> None:
    launcher = LocalLauncher(Serving(recording))
    first = await Listener.on(launcher, "gpu01")
    await first.hear(Frame, 3)
    await first.channel.close()
    await goes_on(launcher, recording, first)


async def test_names_of_one_machine_have_an_agent_each(recording: str) -> None:
    launcher = LocalLauncher(Serving(recording))
    both = [await Listener.on(launcher, node) for node in ("gpu01", "gpu02")]
    for listener in both:
        await listener.hear(Frame)
    assert both[0].lives != both[1].lives
    for listener in both:
        await listener.stop()


async def test_a_node_that_keeps_nothing_says_so(recording: str) -> None:
    answer = await ask_status(LocalLauncher(), "gpu01", recording)
    assert (answer.pid, answer.frames) == (None, 0)


def test_a_step_stays_as_long_as_the_agent_that_it_started() -> None:
    lasting = SrunLauncher("7", Bootstrap(serving=Serving("abc")))
    assert lasting.command("gpu01")[-6:] == ["attach", "--recording", "abc", "--node", "gpu01", "--hold"]
    assert lasting.command("gpu01", "status")[-1] == "status"
    bounded = SrunLauncher("7", Bootstrap(serving=Serving("abc", 7200, 512, only_left=True)))
    assert bounded.command("gpu01")[-6:] == [
        "--linger",
        "7200",
        "--spool-mib",
        "512",
        "--only-left",
        "--hold",
    ]
    assert SrunLauncher("7").command("gpu01")[-1] == "stream"
