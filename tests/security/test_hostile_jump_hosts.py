"""Jump hosts and nodes that accept the user and then hang, send garbage or close the connection."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import asyncssh
import pytest

from gswarm_tui.launch.base import LaunchError
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from tests.integration.sshd import SshServer, new_key

Reader = asyncssh.SSHReader[bytes]
Writer = asyncssh.SSHWriter[bytes]
Handler = Callable[[Reader, Writer], Awaitable[None]]
LIMIT_S = 1.0
PATIENCE_S = 20.0


async def say_nothing(_reader: Reader, _writer: Writer) -> None:
    await asyncio.Event().wait()


async def send_garbage(_reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + os.urandom(1000))


async def send_garbage_without_end(_reader: Reader, writer: Writer) -> None:
    while True:
        writer.write(os.urandom(32_000))
        await writer.drain()


async def send_garbage_after_the_version(_reader: Reader, writer: Writer) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n" + os.urandom(100_000))
    await asyncio.Event().wait()


async def close_at_once(_reader: Reader, writer: Writer) -> None:
    writer.close()


async def close_in_the_midst(_reader: Reader, writer: Writer) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
    await writer.drain()
    writer.close()


async def never() -> asyncssh.SSHTCPSession[bytes]:
    """Neither accept nor refuse a connection."""
    await asyncio.Event().wait()
    raise AssertionError


class HostileJumpHost(asyncssh.SSHServer):
    """A server that accepts every user and treats forwarded connections in one of these ways."""

    def __init__(self, handler: Handler | None) -> None:
        self._handler = handler

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Handler | Awaitable[asyncssh.SSHTCPSession[bytes]]:
        return self._handler or never()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshServer:
    """Return the client's settings for a server that the test starts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server = SshServer(tmp_path)
    new_key(server.user_key)
    new_key(tmp_path / "host")
    server.trust()
    return server


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up sooner than with a real cluster."""
    monkeypatch.setattr("gswarm_tui.launch.ssh.launcher.CONNECT_S", LIMIT_S)
    monkeypatch.setattr("gswarm_tui.launch.ssh.launcher.LOGIN_S", LIMIT_S)


async def outcome(
    server: SshServer, made: Callable[[], asyncssh.SSHServer], jump: str = "gpujump"
) -> LaunchError:
    """Reach a node through this jump host, or without one the node itself; return why that fails."""
    listening = await asyncssh.listen(
        "127.0.0.1",
        server.port,
        server_factory=made,
        server_host_keys=[str(server.folder / "host")],
        encoding=None,
    )
    launcher = SshLauncher(SshSettings(config=server.config(), jump=jump))
    async with listening, asyncio.timeout(PATIENCE_S):
        try:
            with pytest.raises(LaunchError) as caught:
                await launcher.open("gpu01")
        finally:
            await launcher.close()
    return caught.value


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (None, "it did not answer in time"),
        (say_nothing, "it did not answer in time"),
        (send_garbage, "it did not answer in time"),
        (send_garbage_without_end, "the connection broke"),
        (send_garbage_after_the_version, "the connection broke: Max packet size exceeded"),
        (close_at_once, "the connection broke"),
        (close_in_the_midst, "the connection broke"),
    ],
)
async def test_hostile_jump_host_ends_the_attempt_with_a_sentence(
    server: SshServer, handler: Handler | None, reason: str
) -> None:
    error = await outcome(server, lambda: HostileJumpHost(handler))
    assert error.reason.startswith(reason)


class HangingNode(asyncssh.SSHServer):
    """A server that accepts every user and never answers the request for a command."""

    def begin_auth(self, username: str) -> bool:
        return False

    def session_requested(self) -> Awaitable[asyncssh.SSHServerSession[bytes]]:
        return asyncio.get_running_loop().create_future()


async def test_node_that_starts_no_command_is_given_up(server: SshServer) -> None:
    error = await outcome(server, HangingNode, jump="")
    assert error.reason == "its SSH server ran no command: no answer within 1 s"
