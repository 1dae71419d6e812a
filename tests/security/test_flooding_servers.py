"""A node's SSH server that floods the head with packets of SSH itself, which no agent sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncssh
import pytest
from asyncssh.packet import Boolean, String

from gswarm_agent.wire import MAGIC
from gswarm_tui.launch.base import LaunchError, Retry
from gswarm_tui.launch.ssh import SshLauncher, SshSettings
from tests.integration.sshd import SshServer, new_key

IGNORE, GLOBAL_REQUEST = 2, 80
FLOODS: dict[str, tuple[int, bytes]] = {
    "ignored packets": (IGNORE, String(b"x")),
    "large ignored packets": (IGNORE, String(bytes(200_000))),
    "requests": (GLOBAL_REQUEST, String("nothing@example.org") + Boolean(False)),
}
Process = asyncssh.SSHServerProcess[bytes]


class Flooding(asyncssh.SSHServer):
    """A server that accepts every user and sends a packet over and over as soon as it may."""

    def __init__(self, packet: tuple[int, bytes] | None) -> None:
        self._packet = packet

    def begin_auth(self, username: str) -> bool:
        return False

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        if self._packet is not None:
            kind, body = self._packet
            self._task = asyncio.create_task(flood(conn, lambda: conn.send_packet(kind, body)))


async def flood(conn: asyncssh.SSHServerConnection, send: Callable[[], None]) -> None:
    """Send packets after the login until the client closes the connection."""
    while conn.get_extra_info("username") is None:
        await asyncio.sleep(0.01)
    while not conn.is_closed():
        for _ in range(100):
            send()
        await asyncio.sleep(0)


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


async def outcome(
    server: SshServer, process: Callable[[Process], None], packet: tuple[int, bytes] | None = None
) -> LaunchError | None:
    """Launch an agent on this node; return the error, None if the agent speaks."""
    listening = await asyncssh.listen(
        "127.0.0.1",
        server.port,
        server_factory=lambda: Flooding(packet),
        server_host_keys=[str(server.folder / "host")],
        process_factory=process,
        encoding=None,
    )
    launcher = SshLauncher(SshSettings(config=server.config()))
    async with listening, asyncio.timeout(60):
        try:
            channel = await launcher.open("gpu01")
        except LaunchError as error:
            return error
        finally:
            await launcher.close()
        await channel.close()
    return None


def silent(_process: Process) -> None:
    """Run no agent."""


@pytest.mark.parametrize("kind", FLOODS)
async def test_server_that_floods_the_head_with_packets_is_cut_off(server: SshServer, kind: str) -> None:
    error = await outcome(server, silent, FLOODS[kind])
    assert str(error) == "its SSH server sent too much besides the agent's data"
    assert error is not None
    assert error.retry is Retry.CUT_OFF


async def test_setup_may_print_much_before_the_agent_speaks(server: SshServer) -> None:
    def print_much(process: Process) -> None:
        for _ in range(30):
            process.stderr.write(bytes(30_000))
        process.stdout.write(MAGIC)

    assert await outcome(server, print_much) is None
