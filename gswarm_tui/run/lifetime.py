"""From the first link to the closed recording: the order in which a run ends, whatever ended it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import signal
import termios
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from gswarm_agent.frame import WARNING
from gswarm_tui.fleet.events import WAITING, EventLogged, RecorderStatus
from gswarm_tui.hub import Hub

FIRST_PAINT_S = 2.0
"""How long links wait for the screen at most: what starts agents would hold up what people look at."""
SCREEN_ENDS_S = 5.0
LINKS_END_S = 15.0
SOON_S = 1.5
LAST_RESORT_S = 40

_LOG = logging.getLogger(__name__)


class Closable(Protocol):
    """What is needed of a launcher here."""

    async def close(self) -> None:
        """Let go of what is shared."""


class Recording(Protocol):
    """What is needed of a recorder here."""

    def close(self, ended_at: float | None) -> RecorderStatus:
        """Write what waits and close the file; may take seconds. Without an end it can be gone on with."""


@dataclass(frozen=True)
class Ended:
    """How a run ended: ``problem`` says what went wrong, if anything; ``status`` is the recording's.

    ``holding`` are nodes that may keep frames which couldn't be fetched; the recording has no end then.
    """

    problem: str
    status: RecorderStatus | None
    holding: tuple[str, ...] = ()


class Lifetime:
    """Runs hub and screen together and ends them in order: sessions, agents, recording.

    SIGTERM, SIGINT and SIGHUP (the terminal was closed, or salloc's job ended) end a run like a quit does.
    Then nothing may be written to a terminal that is gone, and nothing may hang: as a last resort an alarm
    ends the process.

    ``lasting`` says that agents outlive their links and keep what isn't on disk; ``waiting`` is told nodes
    whose last frames take a while.
    """

    def __init__(
        self,
        hub: Hub,
        launcher: Closable,
        recording: Recording | None,
        request_quit: Callable[[str], None],
        *,
        lasting: bool = False,
        waiting: Callable[[Sequence[str]], None] = lambda _nodes: None,
    ) -> None:
        self._hub = hub
        self._launcher = launcher
        self._recording = recording
        self._request_quit = request_quit
        self._lasting = lasting
        self._waiting = waiting
        self._asked = asyncio.Event()

    async def run(self, screen: Coroutine[Any, Any, object], painted: asyncio.Event) -> Ended:
        """Start the links when the screen has ``painted``; when it ends or a signal comes, end all of it."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_end, number)
        feeding = asyncio.create_task(self._feed(painted), name="hub")
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
        ended = await self._close(problem or _failure(showing), feeding, showing, asking)
        signal.alarm(0)
        return ended

    async def _feed(self, painted: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(painted.wait(), FIRST_PAINT_S)
        spare_searches()
        await self._hub.run()

    def _asked_to_end(self, number: signal.Signals) -> None:
        signal.alarm(LAST_RESORT_S)
        if number == signal.SIGHUP and _terminal_is_gone():
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)
        self._asked.set()

    async def _close(self, problem: str, *tasks: asyncio.Task[Any]) -> Ended:
        self._hub.stop_all_sessions()
        await self._stop_links()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=SCREEN_ENDS_S)
        self._hub.flush()
        await self._launcher.close()
        if self._recording is None:
            return Ended(problem, None)
        holding = tuple(self._hub.holding()) if self._lasting else ()
        at, words = self._hub.now(), "it may hold frames that couldn't be fetched"
        for node in holding:
            self._hub.publish(EventLogged(at, WAITING, WARNING, words, node))
        self._hub.flush()
        status = await asyncio.to_thread(self._recording.close, None if holding else self._hub.now())
        return Ended(problem, status, holding)

    async def _stop_links(self) -> None:
        stopping = asyncio.create_task(self._hub.stop_links(), name="stopping")
        await asyncio.wait({stopping}, timeout=SOON_S)
        if not stopping.done():
            self._waiting(self._hub.holding())
            await asyncio.wait({stopping}, timeout=LINKS_END_S - SOON_S)
        if not stopping.done():
            _LOG.warning("not all agents ended in %s s", LINKS_END_S)
            stopping.cancel()


def spare_searches() -> None:
    """Search for garbage, but seldom, and never in what is there by now; to be called before the first link.

    Frames hold no circles and go without a search; yet each tick of a large fleet would make for many of
    them, which cost an eighth of the head's CPU and hold up the screen. Lines that Textual painted and
    connections of asyncssh that ended are circles: so they lie about for a minute or a few.
    """
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # else DuckDB complains at the end of what it still has
    gc.set_threshold(30_000, 5, 5)


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
