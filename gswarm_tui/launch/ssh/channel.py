"""Channels over an SSH connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import asyncssh

from gswarm_tui.launch.inbox import Inbox
from gswarm_tui.launch.process import describe_end, describe_status

_STDERR_KEPT = 8 * 1024
_PATIENCE_S = 2.0
_ASKING_S = 10.0
_Session = asyncssh.SSHClientChannel[bytes] | asyncssh.SSHUNIXChannel[bytes]


class _Channel(Inbox):
    """One agent over one SSH connection; see ``Channel``.

    It is the session itself, whose bytes asyncssh hands over as they come: its streams would cost a
    task, locks and a queue for each node, and again for each frame.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        super().__init__()
        self._connection = connection
        self._session: _Session | None = None
        self._stderr = bytearray()

    def connection_made(self, chan: _Session) -> None:
        """The session is open."""
        self.source = self._session = chan

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """The agent said something, or wrote to stderr."""
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]
        else:
            self.came(data)

    def eof_received(self) -> bool:
        """The agent says no more; how it ended comes after that."""
        self.ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The session is closed."""
        self.ended(exc)

    def write(self, data: bytes) -> None:
        """Send bytes to the agent."""
        if self._session is not None:
            with contextlib.suppress(OSError):
                self._session.write(data)

    def stderr(self) -> bytes:
        """The end of what was written to stderr so far."""
        return bytes(self._stderr)

    async def close(self) -> None:
        """Close the connection; the agent sees the end of its input."""
        self._connection.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()


class CommandChannel(_Channel, asyncssh.SSHClientSession[bytes]):
    """What a command on the node reads and writes."""

    async def explain_end(self) -> str:
        """How the agent or the connection ended."""
        session = self._session
        if not isinstance(session, asyncssh.SSHClientChannel):
            return describe_end(describe_status(None), b"")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await session.wait_closed()
        if signal := session.get_exit_signal():
            return describe_end(f"was ended by SIG{signal[0]}", self.stderr())
        if (status := session.get_exit_status()) is None:
            return describe_end("broke off with the connection", self.stderr())
        return describe_end(describe_status(status), self.stderr())


class SocketChannel(_Channel, asyncssh.SSHUNIXSession[bytes]):
    """The agent's own socket, to which the SSH server connects; ``ask`` finds out how the agent ended."""

    def __init__(self, connection: asyncssh.SSHClientConnection, ask: Callable[[], Awaitable[str]]) -> None:
        super().__init__(connection)
        self._ask = ask

    async def open(self, path: str) -> None:
        """Have the server connect to a socket on its machine. Raises asyncssh.ChannelOpenError."""
        await self._connection.create_unix_connection(lambda: self, path)

    def leave(self) -> None:
        """Let go of the socket, but not of the connection."""
        if self._session is not None:
            self._session.abort()

    async def explain_end(self) -> str:
        """How the agent or the connection ended."""
        if self._connection.is_closed():
            return describe_end("broke off with the connection", b"")
        try:
            async with asyncio.timeout(_ASKING_S):
                return await self._ask()
        except TimeoutError:
            return describe_end("ended, and its node doesn't say how", b"")
