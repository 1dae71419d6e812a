"""What many connections need at the same time, made once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Makes a thing for each key once, however many ask meanwhile, and keeps the ``most`` newest of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._made: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The thing of a key; a failure is told to all who wait for it, and who asks later tries again."""
        made = self._made.get(key)
        if made is not None and made.done() and not made.cancelled() and made.exception() is None:
            return made.result()
        if made is None:
            made = self._made[key] = asyncio.ensure_future(make())
            while len(self._made) > self._most:
                del self._made[next(iter(self._made))]
        try:
            return await asyncio.shield(made)
        finally:
            if made.done() and (made.cancelled() or made.exception()) and self._made.get(key) is made:
                del self._made[key]
