"""Agents that outlive their channels, started over SSH, locally and as a Slurm step."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gswarm_agent.attach import status
from gswarm_agent.folder import tops
from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Ack, Bye, Decoder, Message, Start, Stop, encode
from gswarm_tui.launch.agent_status import query_status
from gswarm_tui.launch.base import Channel, Launcher
from gswarm_tui.launch.bootstrap import Bootstrap, Serving
from gswarm_tui.launch.local import LocalLauncher
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from tests.integration.sshd import SSHD, SshServer, running
from tests.unit.store_recording import query


@pytest.fixture
def recording() -> Iterator[str]:
    """A recording's uid; its agents and folders are removed after the test."""
    uid = uuid.uuid4().hex
    yield uid
    remove_agents(uid)


def remove_agents(uid: str) -> None:
    for entry in status(uid):
        if entry["pid"]:
            os.kill(entry["pid"], signal.SIGKILL)
    for top in tops():
        for folder in Path(top).glob(f"{uid}@*"):
            shutil.rmtree(folder, ignore_errors=True)  # an agent that ends just now removes it, too


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SshServer]:
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
        self.stopping = False

    @classmethod
    async def on(cls, launcher: Launcher, node: str) -> Listener:
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
                        if self.stopping:
                            self._acknowledge()

    async def cut(self, server: SshServer) -> None:
        """Cut the connection at the node, after reading all its data."""
        for pid in server.sessions():
            os.kill(pid, signal.SIGKILL)
        with suppress(ConnectionError):
            while await self.channel.read():
                pass
        await self.channel.close()

    async def stop(self) -> None:
        self.stopping = True
        self.channel.write(encode(Stop()))
        self._acknowledge()
        await self.hear(Bye)
        await self.channel.close()

    def _acknowledge(self) -> None:
        if self.frames:
            self.channel.write(encode(Ack(self.lives[-1], self.frames[-1])))


async def rejoined(launcher: Launcher) -> Listener:
    """Connect to an agent a second time and wait for a frame."""
    first = await Listener.on(launcher, "gpu01")
    await first.hear(Frame)
    await first.channel.close()
    again = await Listener.on(launcher, "gpu01")
    await again.hear(Frame)
    assert again.lives == first.lives
    return again


async def goes_on(launcher: Launcher, recording: str, cut: Listener) -> None:
    """Assert that the agent of a cut channel is joined again with all its frames, and stops."""
    (life,) = cut.lives
    assert (await query_status(launcher, "gpu01", recording)).pid is not None
    again = await Listener.on(launcher, "gpu01")
    await again.hear(Frame, cut.frames[-1] + 3)
    assert again.lives == [life]
    assert again.frames == list(range(1, len(again.frames) + 1))
    await again.stop()


async def test_agent_outlives_its_ssh_connection(server: SshServer, recording: str) -> None:
    launcher = SshLauncher(SshSettings(config=server.config()), Bootstrap(serving=Serving(recording)))
    first = await Listener.on(launcher, "gpu01")
    await first.hear(Frame, 3)
    await first.cut(server)
    await goes_on(launcher, recording, first)
    await launcher.close()


def ssh(server: SshServer, recording: str, jump: str = "") -> SshLauncher:
    settings = SshSettings(config=server.config(), jump=jump)
    return SshLauncher(settings, Bootstrap(serving=Serving(recording)))


async def test_ctrl_c_while_an_agent_is_being_started_leaves_none_on_the_node(
    server: SshServer, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    script = [
        "#!/bin/sh",
        f"touch {tmp_path}/starts",
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done",
        f'{sys.executable} "$@"',
        f"touch {tmp_path}/started",
    ]
    python.write_text("\n".join(script))
    python.chmod(0o755)
    words = ["--nodes", "gpu01", "--ssh-config", server.config(), "--agent-python", str(python)]
    command = [sys.executable, "-m", "gswarm_tui", "record", "--db", "run.duckdb", *words]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "XDG_STATE_HOME": str(tmp_path)}) as head:
        await until((tmp_path / "starts").exists)
        head.send_signal(signal.SIGINT)
    ((uid,),) = query(tmp_path / "run.duckdb", "SELECT uid FROM recordings")
    assert not status(uid)
    (tmp_path / "go").touch()
    await until((tmp_path / "started").exists)
    try:
        async with asyncio.timeout(20):  # not the minute after which it ends by itself
            await until(lambda: not status(uid))
    finally:
        remove_agents(uid)


async def test_killed_agent_is_reported(server: SshServer, recording: str) -> None:
    launcher = ssh(server, recording)
    again = await rejoined(launcher)
    (pid,) = [entry["pid"] for entry in status(recording)]
    os.kill(pid, signal.SIGKILL)
    while await again.channel.read():
        pass
    words = "the agent ended with exit status 0: its process on the node was killed or failed"
    assert await again.channel.explain_end() == words
    await again.channel.close()
    other = await Listener.on(launcher, "gpu01")
    await other.hear(Frame)
    assert other.lives[-1] != again.lives[0]
    await other.channel.close()
    await launcher.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


async def test_each_name_of_one_machine_has_its_own_agent(recording: str) -> None:
    launcher = LocalLauncher(Serving(recording))
    both = [await Listener.on(launcher, node) for node in ("gpu01", "gpu02")]
    for listener in both:
        await listener.hear(Frame)
    assert both[0].lives != both[1].lives
    for listener in both:
        await listener.stop()


async def test_node_without_an_agent_reports_no_frames(recording: str) -> None:
    answer = await query_status(LocalLauncher(), "gpu01", recording)
    assert (answer.pid, answer.frames) == (None, 0)
