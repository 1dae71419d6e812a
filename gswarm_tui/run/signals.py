"""Signals that end a screen, a server or a look at the nodes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals at which the screen ends, and the recorder that it started closes the recording."""


def call_at_signals(call: Callable[[], object]) -> None:
    """Have the running loop make this call at each signal that ends a program; cancel no task.

    Without it, Ctrl-C cancels all tasks, and Python can't end a process whose start is cancelled that way.
    """
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, call)
