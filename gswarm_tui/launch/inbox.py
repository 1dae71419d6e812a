"""Channels fed by callbacks: bytes go to the waiting reader at once, or are held until they are read.

Waking a task for each chunk costs three times as much as a call, which counts with a thousand nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from gswarm_tui.launch.base import Channel, LaunchError, Retry

MOST_HELD_BYTES = 256 * 1024
MOST_STDERR_BYTES = 2 * 1024 * 1024
"""Modules loaded by a verbose --setup print a fraction of it; an agent prints next to nothing."""
MIN_CHUNK_BYTES = 256
"""Smaller chunks count as this many bytes, because a chunk of one byte takes as long as a larger one."""
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
        self._stderr_left = MOST_STDERR_BYTES

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
        self._held.insert(0, data)
        self._size += len(data)

    def received(self, data: bytes) -> None:
        """Pass on a chunk, or hold it."""
        if self._take is None or self._taken is None or self._taken.done():
            self._held.append(data)
            self._size += len(data)
            if self._size >= MOST_HELD_BYTES and not self._paused and self.source is not None:
                self._paused = True
                self.source.pause_reading()
            return
        try:
            if self._take(data):
                self._taken.set_result(True)
        except Exception as error:  # for the task that reads
            self._taken.set_exception(error)

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
        if isinstance(self._problem, LaunchError):
            raise self._problem
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
