"""Channels fed by callbacks, whose bytes wait in a stream until they are read."""

from __future__ import annotations

import asyncio
from typing import cast

from gswarm_tui.launch.base import Channel, LaunchError, Retry

MOST_HELD_BYTES = 256 * 1024
MOST_STDERR_BYTES = 2 * 1024 * 1024
"""Modules loaded by a verbose --setup print a fraction of it; an agent prints next to nothing."""
MIN_CHUNK_BYTES = 256
"""Smaller chunks count as this many bytes, because a chunk of one byte takes as long as a larger one."""
_STDERR_KEPT = 8 * 1024


class Inbox(Channel):
    """The reading half of a channel; holds about ``MOST_HELD_BYTES`` of unread bytes."""

    def __init__(self) -> None:
        # A stream of asyncio pauses its source at twice the limit.
        self._stream = asyncio.StreamReader(MOST_HELD_BYTES // 2)
        self._put_back = b""
        self._ended = False
        self._problem: Exception | None = None
        self._stderr = bytearray()
        self._stderr_left = MOST_STDERR_BYTES

    def fed_by(self, source: object) -> None:
        """Set the origin of the bytes, which can pause: a transport of asyncio, or a channel of asyncssh."""
        self._stream.set_transport(cast(asyncio.ReadTransport, source))

    def received_stderr(self, data: bytes) -> None:
        """Keep the last of the agent's output on stderr; too much of it ends the stream."""
        self._stderr += data
        del self._stderr[:-_STDERR_KEPT]
        self._stderr_left -= max(len(data), MIN_CHUNK_BYTES)
        if self._stderr_left < 0:
            reason = f"its agent or login shell printed over {MOST_STDERR_BYTES // 1024**2} MiB on stderr"
            self.ended(LaunchError(reason, "check what it prints there", Retry.SLOWLY))

    def stderr(self) -> bytes:
        """Return the last output on stderr of the agent and of the programs that started it."""
        return bytes(self._stderr)

    def unread(self, data: bytes) -> None:
        """Put bytes back that were read too early."""
        self._put_back = data

    def received(self, data: bytes) -> None:
        """Hold a chunk until it is read."""
        if not self._ended:
            self._stream.feed_data(data)

    def ended(self, problem: Exception | None = None) -> None:
        """End the stream, because of a problem or because it is complete."""
        if not self._ended:
            self._ended, self._problem = True, problem
            self._stream.feed_eof()

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises ConnectionError if the connection broke."""
        data, self._put_back = self._put_back, b""
        data = data or await self._stream.read(MOST_HELD_BYTES)
        if data or self._problem is None:
            return data
        if isinstance(self._problem, LaunchError):
            raise self._problem
        raise ConnectionError(str(self._problem)) from None
