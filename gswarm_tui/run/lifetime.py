"""Lifetime of a run, from the first link to the closed recording, whatever ends it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import signal
import sys
import termios
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gswarm_tui.fleet.events import WAITING, RecorderStatus
from gswarm_tui.link.hub import Hub
from gswarm_tui.run.supervisor import ENDING

if TYPE_CHECKING:
    from gswarm_tui.launch.base import Launcher
    from gswarm_tui.store.recording.recorder import Recorder

FIRST_PAINT_S = 2.0
"""Links wait this long for the first paint, since starting agents would delay it."""
SCREEN_ENDS_S = 5.0
LINKS_END_S = 15.0
SOON_S = 1.5
LAST_RESORT_S = 40

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """Result of a run: ``problem`` is empty if nothing failed, ``status`` is the recorder's.

    ``holding`` are nodes that may keep frames which couldn't be fetched; the recording then stays open.
    """

    problem: str
    status: RecorderStatus | None
    holding: tuple[str, ...] = ()


@dataclass
class Lifetime:
    """Runs hub and screen together and ends them in order: sessions, agents, recording.

    The signals in ``ending`` end a run like quitting, among them SIGHUP: a closed terminal, or the end of
    salloc's job. Nothing is written to a terminal that is gone, and an alarm ends a process that hangs.

    ``lasting``: agents outlive their links and keep frames that aren't on disk. ``waiting`` is called with
    the nodes whose last frames take long. ``leaves_agents`` returns, once the screen has ended, whether
    another recorder resumes the recording: sessions and agents run on then.
    """

    hub: Hub
    launcher: Launcher
    recorder: Recorder | None
    request_quit: Callable[[str], None]
    lasting: bool = False
    waiting: Callable[[Sequence[str]], None] = lambda _nodes: None
    ending: Collection[signal.Signals] = ENDING
    leaves_agents: Callable[[], bool] = lambda: False
    _end_requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, screen: Coroutine[Any, Any, object], painted: asyncio.Event) -> RunResult:
        """Start the links after the first paint; end everything when the screen ends or a signal comes."""
        loop = asyncio.get_running_loop()
        for number in self.ending:
            loop.add_signal_handler(number, self._on_signal, number)
        feeding = asyncio.create_task(self._feed(painted), name="hub")
        showing = asyncio.create_task(screen, name="screen")
        signals = asyncio.create_task(self._end_requested.wait(), name="signals")
        await asyncio.wait({feeding, showing, signals}, return_when=asyncio.FIRST_COMPLETED)
        problem = ""
        if feeding.done():
            problem = "internal error: the recording was ended; see the log"
            _LOG.error("the hub failed", exc_info=feeding.exception())
        if not showing.done():
            self.request_quit("ended")
            await asyncio.wait({showing}, timeout=SCREEN_ENDS_S)
        ended = await self._close(problem or _failure(showing), feeding, showing, signals)
        signal.alarm(0)
        return ended

    async def _feed(self, painted: asyncio.Event) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PAINT_S):
                await painted.wait()
        delay_garbage_collection()
        await self.hub.run()

    def _on_signal(self, number: signal.Signals) -> None:
        signal.alarm(LAST_RESORT_S)
        if number == signal.SIGHUP:
            leave_closed_terminal()
        self._end_requested.set()

    async def _close(self, problem: str, *tasks: asyncio.Task[Any]) -> RunResult:
        leaves_agents = self.leaves_agents()
        if not leaves_agents:
            self.hub.stop_all_sessions()
            await self._stop_links()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=SCREEN_ENDS_S)
        self.hub.flush()
        await self.launcher.close()
        if leaves_agents and self.recorder is not None:
            return RunResult(problem, await asyncio.to_thread(self.recorder.close, None))
        if self.recorder is None:
            return RunResult(problem, None)
        holding = tuple(self.hub.nodes_with_frames()) if self.lasting else ()
        for node in holding:
            self.hub.warn(WAITING, "it may hold frames that couldn't be fetched", node)
        self.hub.flush()
        status = await asyncio.to_thread(self.recorder.close, None if holding else self.hub.now())
        return RunResult(problem, status, holding)

    async def _stop_links(self) -> None:
        stopping = asyncio.create_task(self.hub.stop_links(), name="stopping")
        await asyncio.wait({stopping}, timeout=SOON_S)
        if not stopping.done():
            self.waiting(self.hub.nodes_with_frames())
            await asyncio.wait({stopping}, timeout=LINKS_END_S - SOON_S)
        if not stopping.done():
            _LOG.warning("not all agents ended in %s s", LINKS_END_S)
            stopping.cancel()


def delay_garbage_collection() -> None:
    """Collect cyclic garbage seldom, and never among the objects that exist now.

    Frames hold no cycles, yet each tick of a large fleet would trigger collections, an eighth of the head's
    CPU. Textual's painted lines and ended asyncssh connections are cycles and wait a few minutes.
    """
    gc.freeze()
    gc.enable()
    atexit.register(_unfreeze)
    gc.set_threshold(30_000, 5, 5)


def _unfreeze() -> None:
    """Let Python free all objects at exit where DuckDB would report them as leaks; it takes 60 ms."""
    if "duckdb" in sys.modules:
        gc.unfreeze()


def leave_closed_terminal() -> None:
    """Write nothing more to standard output and error if the terminal was closed."""
    if _terminal_is_gone():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)


def _terminal_is_gone() -> bool:
    """Return whether standard output was hung up; an open terminal has to be restored."""
    try:
        termios.tcgetattr(1)
    except termios.error:
        return True
    return False


def _failure(task: asyncio.Task[Any]) -> str:
    """Return the failure of the screen's task, or an empty text; its traceback goes to the log."""
    if not task.done() or task.cancelled() or (error := task.exception()) is None:
        return ""
    _LOG.error("the screen failed", exc_info=error)
    return f"the screen failed: {error}; see the log"
