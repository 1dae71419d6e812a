"""The turns of the event loop: where events come thick, one turn serves those of many nodes."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

RATE = 100.0
"""So many waits a second go on; each beyond them begins up to 1 / RATE later."""
BURST = 32.0
"""So many come at once without delay: a key, a person's command, all of a handshake."""

T = TypeVar("T")


class Gathering(selectors.DefaultSelector):
    """A selector that looks for events ``RATE`` times a second at most, on average.

    A thousand nodes read their GPUs at the same moment, and their frames come one by one: to fall asleep and
    wake up for each costs as much as to take it in. An event waits 10 ms for others at most, and none where
    fewer than ``BURST`` came just before.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        super().__init__()
        self._clock = clock
        self._sleep = sleep
        self._left = BURST
        self._looked_at = clock()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready, after ``timeout`` seconds at the latest; None waits without end."""
        if timeout is None or timeout > 0:
            pause = self._pause()
            if pause > 0:
                if timeout is not None:
                    pause = min(pause, timeout)
                    timeout -= pause
                self._sleep(pause)
        return super().select(timeout)

    def _pause(self) -> float:
        """Seconds that this wait has to begin later."""
        now = self._clock()
        self._left = max(-1.0, min(BURST, self._left + (now - self._looked_at) * RATE) - 1)
        self._looked_at = now
        return -self._left / RATE


def run(main: Coroutine[object, object, T]) -> T:
    """Run ``main`` as ``asyncio.run`` does, in a loop that gathers events."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Gathering())) as runner:
        return runner.run(main)
