"""Keys are dealt with one by one: what is typed ahead of a question's opening is for the question."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste

T = TypeVar("T")

AS_ENTER = "ctrl+j"
"""What a terminal makes of ⏎ that is typed before the program has it in raw mode."""
WAITS_S = 2.0
"""A key waits no longer for the one before it: what that did may be gone, or take long."""


class KeyQueue:
    """Lets a key through when the one before it has done what it does: opened a screen, moved the focus.

    Textual hands a key to what has the focus when it comes, and asks what it does when it has gone from there
    up to the app. Keys that come meanwhile would still go to the screen behind. What is pasted keeps its
    place among them.
    """

    def __init__(self, app: App[T], let_through: Callable[[Key | Paste], Awaitable[None]]) -> None:
        self._app = app
        self._let_through = let_through
        self._waiting: deque[Key | Paste] = deque()
        self._under_way = 0
        self._late: asyncio.TimerHandle | None = None

    async def take(self, key: Key | Paste) -> None:
        """A key was pressed, or a text pasted; called on the app's own task."""
        early = isinstance(key, Key) and key.key == AS_ENTER
        self._waiting.append(Key("enter", "\r") if early else key)
        if self._late is None:
            await self._next()

    async def _next(self) -> None:
        """Let the next key through, and something after it that goes the same way."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._waiting:
            self._under_way += 1
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(WAITS_S, self._app.call_later, self._next)
            in_front = self._app.focused or self._app.screen
            await self._let_through(self._waiting.popleft())
            self._follow(in_front, self._under_way, None)

    def _follow(self, node: DOMNode, number: int, before: DOMNode | None) -> None:
        """Go up from a node to the app, each step when the node has done what came before it."""
        if node is self._app or not node.call_later(self._step, node, number, before):
            self._app.call_later(self._arrived, number, before)

    def _step(self, node: DOMNode, number: int, before: DOMNode | None) -> None:
        self._follow(node.parent or self._app, number, before)

    async def _arrived(self, number: int, before: DOMNode | None) -> None:
        """The key has done what it does when what is in front stays there for as long as this takes."""
        if number == self._under_way and self._late is not None:
            in_front = self._app.focused or self._app.screen
            if in_front is before:
                await self._next()
            else:
                self._follow(in_front, number, in_front)
