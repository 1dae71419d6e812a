"""Queue of keys: a key waits until the one before it is handled, so typing ahead reaches a new dialog."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from textual.app import App
from textual.dom import DOMNode
from textual.events import Key, Paste

T = TypeVar("T")

EARLY_ENTER = "ctrl+j"
"""Key that a terminal sends for ⏎ before the program has set raw mode."""
LONGEST_WAIT_S = 2.0
"""Longest wait for the previous key: its handler may be gone, or slow."""


class KeyQueue:
    """Passes a key on when the previous one has had its effect: opened a screen, moved the focus.

    Textual sends a key to the widget that has the focus when it arrives, and runs its binding only after the
    key has bubbled up to the app. Without the queue, keys that arrive in between would go to the old screen.
    Pasted text keeps its position among the keys.
    """

    def __init__(self, app: App[T], pass_on: Callable[[Key | Paste], Awaitable[None]]) -> None:
        self._app = app
        self._pass_on = pass_on
        self._waiting: deque[Key | Paste] = deque()
        self._number = 0
        self._late: asyncio.TimerHandle | None = None

    async def take(self, key: Key | Paste) -> None:
        """Queue a key or pasted text; called on the app's task."""
        early = isinstance(key, Key) and key.key == EARLY_ENTER
        self._waiting.append(Key("enter", "\r") if early else key)
        if self._late is None:
            await self._next()

    async def _next(self) -> None:
        """Pass the next key on, and follow it with a marker on the same way."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if self._waiting:
            self._number += 1
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(LONGEST_WAIT_S, self._app.call_later, self._next)
            in_front = self._app.focused or self._app.screen
            await self._pass_on(self._waiting.popleft())
            self._follow(in_front, self._number, None)

    def _follow(self, node: DOMNode, number: int, before: DOMNode | None) -> None:
        """Send the marker from a node up to the app, each step after the node's earlier messages."""
        if node is self._app or not node.call_later(self._step, node, number, before):
            self._app.call_later(self._arrived, number, before)

    def _step(self, node: DOMNode, number: int, before: DOMNode | None) -> None:
        self._follow(node.parent or self._app, number, before)

    async def _arrived(self, number: int, before: DOMNode | None) -> None:
        """Continue if the focus stayed the same during another round; else follow again."""
        if number == self._number and self._late is not None:
            in_front = self._app.focused or self._app.screen
            if in_front is before:
                await self._next()
            else:
                self._follow(in_front, number, in_front)
