"""Runs commands on a login node, which is the jump host of the nodes behind it."""

from __future__ import annotations

import asyncio
import contextlib

import asyncssh

from gswarm_tui.launch.base import LaunchError, Step, clean
from gswarm_tui.launch.ssh.channel import CommandChannel
from gswarm_tui.launch.ssh.launcher import LOGIN_S, SshLauncher, SshSettings

_END_S = 60.0
"""Longest wait for the end of a command whose input has ended: Slurm kills a step's processes by then."""


class LoginNode:
    """A login node that is reached as jump host: ``settings.jump`` is its name, as for ``ssh -J``."""

    def __init__(self, settings: SshSettings) -> None:
        self.settings = settings
        self._launcher = SshLauncher(settings)

    async def run(self, line: str) -> LoginConnection:
        """Start a command there, in its user's shell. Raises LaunchError."""
        connection = await self._launcher.connect_to_jump_host()
        channel = LoginConnection(connection)
        try:
            async with asyncio.timeout(LOGIN_S):
                await connection.create_session(lambda: channel, line, encoding=None, request_pty=False)
        except (asyncssh.Error, OSError, TimeoutError) as error:
            reason = clean(f"its SSH server started no command: {error}")
            raise LaunchError(reason, step=Step.COMMAND) from None
        return channel

    async def close(self) -> None:
        """Disconnect."""
        await self._launcher.close()


class LoginConnection(CommandChannel):
    """One command on a login node; ``errors`` has what it writes to standard error."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        super().__init__(connection)
        self.errors = asyncio.StreamReader()

    def received_stderr(self, data: bytes) -> None:
        """Hold what the command prints, all of it."""
        self.errors.feed_data(data)

    def eof_received(self) -> bool:
        """Note the end of its output."""
        self.errors.feed_eof()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the session is closed."""
        self.errors.feed_eof()
        super().connection_lost(exc)

    async def status(self) -> int:
        """Wait for its end and return its exit status. Raises ConnectionError if the connection broke."""
        session = self._session
        if not isinstance(session, asyncssh.SSHClientChannel):
            raise ConnectionError("no command was started")
        await session.wait_closed()
        if (status := session.get_exit_status()) is None:
            raise ConnectionError("the connection broke")
        return status if status >= 0 else 128 - status

    async def end(self) -> None:
        """End its input, and wait for the end that this causes; other commands keep the connection."""
        session = self._session
        if isinstance(session, asyncssh.SSHClientChannel) and not self._connection.is_closed():
            with contextlib.suppress(OSError):
                session.write_eof()
            session.resume_reading()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await session.wait_closed()
            session.abort()
