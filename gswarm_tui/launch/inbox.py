"""Channels that get bytes by callbacks: they pass them on as they arrive, or hold them until they are read.

Waking a task for each chunk costs three times as much as a call, which counts with a thousand nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gswarm_tui.launch.base import Channel

MOST_HELD_BYTES = 256 * 1024
_STDERR_KEPT = 8 * 1024


class PausableSource(Protocol):
    """The origin of the bytes: a transport of asyncio, or a channel of asyncssh."""

    def pause_reading(self) -> None:
        """Stop reading for now."""

    def resume_reading(self) -> None:
        """Read again."""


class Inbox(Channel):
    """The reading half of a channel; holds about ``MOST_HELD_BYTES`` of unread bytes.

    Set ``source`` when it is known.
    """

    def __init__(self) -> None:
        self.source: PausableSource | None = None
        self._held: list[bytes] = []
        self._size = 0
        self._paused = False
        self._ended = False
        self._problem: Exception | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._taken: asyncio.Future[bool] | None = None
        self._stderr = bytearray()

    def received_stderr(self, data: bytes) -> None:
        """Keep the last of the agent's output on stderr."""
        self._stderr += data
        del self._stderr[:-_STDERR_KEPT]

    def stderr(self) -> bytes:
        """Return the last output on stderr; see ``Channel``."""
        return bytes(self._stderr)

    def unread(self, data: bytes) -> None:
        """Put bytes back that were read too early."""
        self._held.insert(0, data)
        self._size += len(data)

    def received(self, data: bytes) -> None:
        """Pass on a chunk, or hold it."""
        if self._take is None or self._taken is None or self._taken.done():
            self._hold(data)
            return
        try:
            if self._take(data):
                self._taken.set_result(True)
        except Exception as error:  # for the task that reads
            self._taken.set_exception(error)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= MOST_HELD_BYTES and not self._paused and self.source is not None:
            self._paused = True
            self.source.pause_reading()

    def ended(self, problem: Exception | None = None) -> None:
        """End the stream, because of a problem or because it is complete."""
        if self._ended:
            return
        self._ended, self._problem = True, problem
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(False)

    async def for_each_chunk(self, take: Callable[[bytes], bool]) -> bool:
        """Pass bytes on as they arrive; see ``Channel``."""
        while self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._size = 0
            if take(data):
                return True
        if not self._ended:
            self._take, self._taken = take, asyncio.get_running_loop().create_future()
            if self._paused and self.source is not None:
                self._paused = False
                self.source.resume_reading()
            try:
                if await self._taken:
                    return True
            finally:
                self._take = self._taken = None
        if self._problem is not None:
            raise ConnectionError(str(self._problem)) from None
        return False

    async def read(self) -> bytes:
        """Return the next bytes, empty at the end. Raises ConnectionError if the connection broke."""
        chunk = b""

        def take(data: bytes) -> bool:
            nonlocal chunk
            chunk = data
            return True

        await self.for_each_chunk(take)
        return chunk
