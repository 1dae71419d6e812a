"""A channel over an SSH connection."""

from __future__ import annotations

import asyncio
import contextlib

import asyncssh

from gswarm_tui.launch.process import describe_end, describe_status

_CHUNK = 256 * 1024
_STDERR_KEPT = 8 * 1024
_PATIENCE_S = 2.0


class SshChannel:
    """One agent over one SSH connection; see ``Channel``."""

    def __init__(
        self, connection: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]
    ) -> None:
        self._connection = connection
        self._process = process
        self._stderr = bytearray()
        self._reading_stderr = asyncio.create_task(self._read_stderr())

    async def read(self) -> bytes:
        """The next bytes of the agent's stdout, empty at the end."""
        try:
            return await self._process.stdout.read(_CHUNK)
        except (asyncssh.Error, OSError) as error:
            raise ConnectionError(str(error)) from None

    def write(self, data: bytes) -> None:
        """Send bytes to the agent's stdin."""
        with contextlib.suppress(OSError):
            self._process.stdin.write(data)

    def stderr(self) -> bytes:
        """The end of what was written to stderr so far."""
        return bytes(self._stderr)

    async def explain_end(self) -> str:
        """How the agent or the connection ended."""
        with contextlib.suppress(TimeoutError, asyncssh.Error, OSError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._process.wait_closed()
                await asyncio.shield(self._reading_stderr)
        if self._process.exit_signal:
            return describe_end(f"was ended by SIG{self._process.exit_signal[0]}", self.stderr())
        if self._process.exit_status is None:
            return describe_end("broke off with the connection", self.stderr())
        return describe_end(describe_status(self._process.exit_status), self.stderr())

    async def close(self) -> None:
        """Close the connection; the agent sees the end of its input."""
        self._reading_stderr.cancel()
        self._connection.close()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._connection.wait_closed()
        except TimeoutError:
            self._connection.abort()
        await asyncio.wait([self._reading_stderr])

    async def _read_stderr(self) -> None:
        with contextlib.suppress(asyncssh.Error, OSError):
            while data := await self._process.stderr.read(_CHUNK):
                self._stderr += data
                del self._stderr[:-_STDERR_KEPT]
