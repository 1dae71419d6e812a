"""Event loop that batches wake-ups when many links are busy."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import TypeVar

from gswarm_tui.run.starter import ENDING

RATE = 100.0
"""Waits per second without delay; each further one starts up to 1 / RATE later."""
BURST = 32.0
"""Waits in a row without delay: a key press, a command, a whole handshake."""

T = TypeVar("T")


class BatchingSelector(selectors.DefaultSelector):
    """Event loop selector that batches wake-ups when many links are busy: ``RATE`` per second on average.

    A thousand nodes send their frames one by one at the same moment, and a wake-up for each costs as much
    as the frame itself. An event is delayed by 10 ms at most, and not at all after fewer than ``BURST``
    others. docs/decisions/007-event-loop-batching.md has the figures.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        super().__init__()
        self._clock = clock
        self._sleep = sleep
        self._left = BURST
        self._waited_at = clock()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready events within ``timeout`` seconds; None waits without end."""
        if timeout is None or timeout > 0:
            pause = self._pause()
            if pause > 0:
                if timeout is not None:
                    pause = min(pause, timeout)
                    timeout -= pause
                self._sleep(pause)
        return super().select(timeout)

    def _pause(self) -> float:
        """Return by how many seconds this wait starts later."""
        now = self._clock()
        self._left = max(-1.0, min(BURST, self._left + (now - self._waited_at) * RATE) - 1)
        self._waited_at = now
        return -self._left / RATE


def run(main: Coroutine[object, object, T]) -> T:
    """Run ``main`` like ``asyncio.run``, in a loop that batches events."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(BatchingSelector())) as runner:
        return runner.run(main)


def call_at_signals(call: Callable[[], object]) -> None:
    """Have the running loop make this call at each signal that ends a program; cancel no task.

    Without it, Ctrl-C cancels all tasks, and Python can't end a process whose start is cancelled that way.
    """
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, call)
