"""Lifetime of a run, from the first link to the closed recording."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from gswarm_tui.fleet.events import WAITING, FindingChanged, RecorderStatus, SessionStopped
from gswarm_tui.link.hub import Hub
from gswarm_tui.runs import usual
from gswarm_tui.runs.finding_runs import known_runs
from gswarm_tui.runs.line import FINISHED

if TYPE_CHECKING:
    from gswarm_tui.fleet.findings import Finding
    from gswarm_tui.launch.base import Launcher
    from gswarm_tui.store.recording.recorder import FileWriter

HUB_ENDS_S = 5.0
LINKS_END_S = 15.0
CATALOGUE_S = 5.0
"""Longest wait for the catalogue of runs, at the end: Slurm kills the recorder soon after a job's end."""

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

_M_MMAP_THRESHOLD = -3
_OWN_MAPPING_BYTES = 64 * 1024


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
    """Runs a hub and ends it in order: sessions, agents, recording.

    ``lasting``: agents outlive their links and keep frames that aren't on disk. ``numbers`` yields those of
    new findings.
    """

    hub: Hub
    launcher: Launcher
    recorder: FileWriter | None
    lasting: bool = False
    numbers: Iterator[int] = field(default_factory=count)

    async def run(self, until: Coroutine[Any, Any, object]) -> RunResult:
        """Run the hub until the coroutine ends, then end everything."""
        delay_garbage_collection()
        feeding = asyncio.create_task(self.hub.run(), name="hub")
        waiting = asyncio.create_task(until, name="end")
        await asyncio.wait({feeding, waiting}, return_when=asyncio.FIRST_COMPLETED)
        problem = ""
        for task in (feeding, waiting):
            if task.done() and (error := task.exception()) is not None:
                problem = "internal error: the recording was ended; see the log"
                _LOG.error("the %s failed", task.get_name(), exc_info=error)
        at = self.hub.now()
        for session in self.hub.fleet.sessions.running:
            self.hub.publish(SessionStopped(session.session_id, at, at))
        if self.recorder is not None:
            self.hub.read_energy()
        stopping = asyncio.create_task(self.hub.stop_links(), name="stopping")
        await asyncio.wait({stopping}, timeout=LINKS_END_S)
        if not stopping.done():
            _LOG.warning("not all agents ended in %s s", LINKS_END_S)
            stopping.cancel()
        feeding.cancel()
        waiting.cancel()
        await asyncio.wait({feeding, waiting}, timeout=HUB_ENDS_S)
        self.hub.flush()
        await self.launcher.close()
        if self.recorder is None:
            return RunResult(problem, None)
        holding = tuple(self.hub.nodes_with_frames()) if self.lasting else ()
        for node in holding:
            self.hub.warn(WAITING, "it may hold frames that couldn't be fetched", node)
        self.hub.flush()
        if not holding:
            await self._compare_with_usual(self.recorder)
        status = await asyncio.to_thread(self.recorder.close, None if holding else self.hub.now())
        return RunResult(problem, status, holding)

    async def _compare_with_usual(self, recorder: FileWriter) -> None:
        """Publish a finding if the run is slower than former ones."""
        names = {session.name for session in self.hub.fleet.sessions.sessions.values()}
        what = "the run could not be compared with former ones"
        # A query that takes longer ends when the recorder closes.
        found = await try_with_catalogue(what, lambda: _slower_than_usual(recorder, names))
        if found is not None:
            numbered = replace(found, finding_id=str(next(self.numbers)))
            self.hub.publish(FindingChanged(self.hub.now(), numbered))
            self.hub.flush()


async def try_with_catalogue(what: str, call: Callable[[], T]) -> T | None:
    """Return the result of a call in a thread; None, and a line in the log, if it fails or takes too long.

    The catalogue can lie on a file system that hangs, so nothing waits for the thread any longer, as asyncio
    does at its end for threads of its own executor.
    """
    future = asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), call)
    try:
        return await asyncio.wait_for(future, CATALOGUE_S)
    except Exception:
        _LOG.exception("%s within %s s", what, CATALOGUE_S)
        return None


def _slower_than_usual(recorder: FileWriter, names: set[str]) -> Finding | None:
    from gswarm_tui.runs.reading import read_lines

    recorder.commit().result()
    known = [line for line in known_runs() if line.name in names]
    if len(known) < usual.LEAST_RUNS:
        return None
    with closing(recorder.queries()) as source:
        line = next(one for one in read_lines(source) if one.recording_id == recorder.recording_id)
    return usual.compare(replace(line, state=FINISHED), known)[1]


def return_freed_arrays() -> None:
    """Make glibc return freed arrays to the system, as those of a past that was shown.

    It raises this threshold to the size of each array that is freed, and keeps smaller ones, which other
    objects then hold in place.
    """
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)


def delay_garbage_collection() -> None:
    """Collect cyclic garbage seldom.

    Frames hold no cycles, yet each tick of a large fleet would trigger collections, an eighth of the
    recorder's CPU. Textual's painted lines and ended asyncssh connections are cycles and wait a few minutes.
    """
    gc.set_threshold(30_000, 5, 5)
