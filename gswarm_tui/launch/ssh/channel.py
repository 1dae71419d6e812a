"""Channels to an agent over an SSH connection: the input and output of a command."""

from __future__ import annotations

import asyncio
import contextlib

import asyncssh

from gswarm_tui.launch.inbox import Inbox
from gswarm_tui.launch.process import describe_end, describe_status

_CLOSE_TIMEOUT_S = 2.0


class CommandChannel(Inbox, asyncssh.SSHClientSession[bytes]):
    """Standard input and output of a command on a node, over one SSH connection; see ``Channel``.

    Uses asyncssh's callbacks: its streams would cost a task, locks and a queue for each node.
    """

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        super().__init__()
        self._connection = connection
        self._session: asyncssh.SSHClientChannel[bytes] | None = None

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Keep the session, which is open now."""
        self._session = chan
        self.fed_by(chan)

    def data_received(self, data: bytes, datatype: asyncssh.DataType) -> None:
        """Take in the agent's messages, or its output to stderr."""
        if datatype == asyncssh.EXTENDED_DATA_STDERR:
            self.received_stderr(data)
        else:
            self.received(data)

    def eof_received(self) -> bool:
        """Note the end of the agent's messages; its exit status comes later."""
        self.ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the session is closed."""
        self.ended(exc)

    def write(self, data: bytes) -> None:
        """Send bytes to the agent."""
        if self._session is not None:
            with contextlib.suppress(OSError):
                self._session.write(data)

    async def close(self) -> None:
        """Close the connection; the agent sees the end of its input."""
        self._connection.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()

    async def explain_end(self) -> str:
        """Explain how the agent or the connection ended, in one clause."""
        session = self._session
        if session is None:
            return describe_end(describe_status(None), b"")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await session.wait_closed()
        if signal := session.get_exit_signal():
            return describe_end(f"was ended by SIG{signal[0]}", self.stderr())
        if (status := session.get_exit_status()) is None:
            return describe_end("broke off with the connection", self.stderr())
        return describe_end(describe_status(status), self.stderr())
