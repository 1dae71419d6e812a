"""What comes on a channel: handed over as it comes, or held until somebody wants it.

A task that is woken for each piece costs three times as much as a call, which a thousand nodes make felt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

MOST_HELD = 256 * 1024
"""So many bytes."""


class PausableSource(Protocol):
    """Where bytes come from: a transport of asyncio, or a channel of asyncssh."""

    def pause_reading(self) -> None:
        """Let no more come for now."""

    def resume_reading(self) -> None:
        """Let it come again."""


class Inbox:
    """The reading half of a channel; see ``Channel``. Of what nobody takes about ``MOST_HELD`` are held.

    ``source`` is to be set when it is known.
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

    def came(self, data: bytes) -> None:
        """A piece came."""
        if self._take is None or self._taken is None or self._taken.done():
            self._hold(data)
            return
        try:
            if self._take(data):
                self._taken.set_result(True)
        except Exception as error:  # whatever it is, it is for whoever takes
            self._taken.set_exception(error)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._size += len(data)
        if self._size >= MOST_HELD and not self._paused and self.source is not None:
            self._paused = True
            self.source.pause_reading()

    def ended(self, problem: Exception | None = None) -> None:
        """Nothing more comes, because of a problem or because that was all."""
        if self._ended:
            return
        self._ended, self._problem = True, problem
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(False)

    async def each(self, take: Callable[[bytes], bool]) -> bool:
        """Hand over what comes, as it comes; see ``launch.base.each``."""
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
        """The next bytes, empty at the end. Raises ConnectionError where it broke off."""
        came = b""

        def take(data: bytes) -> bool:
            nonlocal came
            came = data
            return True

        await self.each(take)
        return came
