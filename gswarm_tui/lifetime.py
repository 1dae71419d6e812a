"""From the first link to the closed recording: the order in which a run ends, whatever ended it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import termios
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.hub import Hub

SCREEN_ENDS_S = 5.0
LINKS_END_S = 5.0
LAST_RESORT_S = 40

_LOG = logging.getLogger(__name__)


class Closable(Protocol):
    """What is needed of a launcher here."""

    async def close(self) -> None:
        """Let go of what is shared."""


class Recording(Protocol):
    """What is needed of a recorder here."""

    def close(self, ended_at: float) -> RecorderStatus:
        """Write what waits and close the file; may take seconds."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: ``problem`` says what went wrong, if anything; ``status`` is the recording's."""

    problem: str
    status: RecorderStatus | None


class Lifetime:
    """Runs hub and screen together and ends them in order: sessions, agents, recording.

    SIGTERM, SIGINT and SIGHUP (the terminal was closed, or salloc's job ended) end a run like a quit does.
    Then nothing may be written to a terminal that is gone, and nothing may hang: as a last resort an alarm
    ends the process.
    """

    def __init__(
        self,
        hub: Hub,
        launcher: Closable,
        recording: Recording | None,
        request_quit: Callable[[str], None],
    ) -> None:
        self._hub = hub
        self._launcher = launcher
        self._recording = recording
        self._request_quit = request_quit
        self._asked = asyncio.Event()

    async def run(self, screen: Coroutine[Any, Any, object]) -> Ended:
        """Run until the screen ends or a signal comes; then end all of it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_end, number)
        feeding = asyncio.create_task(self._hub.run(), name="hub")
        showing = asyncio.create_task(screen, name="screen")
        asking = asyncio.create_task(self._asked.wait(), name="signals")
        await asyncio.wait({feeding, showing, asking}, return_when=asyncio.FIRST_COMPLETED)
        problem = ""
        if feeding.done():
            problem = "gswarm-tui failed inside and ended the recording; the log tells more"
            _LOG.error("the hub failed", exc_info=feeding.exception())
        if not showing.done():
            self._request_quit("ended")
            await asyncio.wait({showing}, timeout=SCREEN_ENDS_S)
        ended = Ended(problem or _failure(showing), await self._close(feeding, showing, asking))
        signal.alarm(0)
        return ended

    def _asked_to_end(self, number: signal.Signals) -> None:
        signal.alarm(LAST_RESORT_S)
        if number == signal.SIGHUP and _terminal_is_gone():
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)
        self._asked.set()

    async def _close(self, *tasks: asyncio.Task[Any]) -> RecorderStatus | None:
        self._hub.stop_all_sessions()
        try:
            async with asyncio.timeout(LINKS_END_S):
                await self._hub.stop_links()
        except TimeoutError:
            _LOG.warning("not all agents ended in %s s", LINKS_END_S)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=SCREEN_ENDS_S)
        self._hub.flush()
        await self._launcher.close()
        if self._recording is None:
            return None
        return await asyncio.to_thread(self._recording.close, self._hub.now())


def _terminal_is_gone() -> bool:
    """Whether standard output was hung up; one that is still there has to be put in order again."""
    try:
        termios.tcgetattr(1)
    except termios.error:
        return True
    return False


def _failure(task: asyncio.Task[Any]) -> str:
    """What the screen's task failed with, if it did; its traceback goes to the log."""
    if not task.done() or task.cancelled() or (error := task.exception()) is None:
        return ""
    _LOG.error("the screen failed", exc_info=error)
    return f"the screen failed: {error}; the log tells more"
