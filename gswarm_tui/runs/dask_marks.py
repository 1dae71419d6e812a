"""Marks about the tasks of a Dask scheduler: ``dask scheduler --preload gswarm_tui.runs.dask_marks``.

A stretch of work lasts while the scheduler has unfinished tasks. Every 30 s and at its end, the scheduler's
node gets a mark with the tasks so far and the seconds that threads of workers computed, copied data or idled,
and with the seconds and number of the kinds of task that took longest.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from gswarm_agent import mark
from gswarm_tui.fleet.events import DASK_TASKS

EVERY_S = 30.0
_MOST_KINDS, _LONGEST_KIND = 10, 60
_UNFINISHED = frozenset(("waiting", "queued", "no-worker", "processing"))


class TaskMarks:
    """Counts the tasks of a scheduler and sends marks about them."""

    name = "gswarm-tui"

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self.sending: asyncio.Future[None] | None = None
        self._unfinished = set[Any]()
        self._began = dict[Any, float]()
        self._begin()

    def _begin(self) -> None:
        self._tasks, self._spans = 0, {"compute": 0.0, "transfer": 0.0}
        self._kind_s, self._kind_tasks = Counter[str](), Counter[str]()
        self._thread_s = self._worked_s = 0.0
        self._counted_at = self._sent_at = time.monotonic()

    def transition(self, key: Any, start: str, finish: str, *_args: Any, **kwargs: Any) -> None:
        """Note a task's change; Dask calls it for each."""
        if not self._unfinished and finish in _UNFINISHED:
            self._counted_at = time.monotonic()
        else:
            self._count()
        if finish in _UNFINISHED:
            self._unfinished.add(key)
        else:
            self._unfinished.discard(key)
        if finish == "processing":
            self._began[key] = time.monotonic()
        elif self._began.pop(key, None) is not None and finish in ("memory", "erred"):
            self._tasks += 1
            # Functions of users may have any name; Dask's prefix is that without the task's number.
            kind = re.sub(r"[^\w.-]+", "_", self._scheduler.tasks[key].prefix.name)[:_LONGEST_KIND]
            self._kind_tasks[kind] += 1
            for span in kwargs.get("startstops") or ():
                seconds = span["stop"] - span["start"]
                if span["action"] in self._spans:
                    self._spans[span["action"]] += seconds
                if span["action"] == "compute":
                    self._kind_s[kind] += seconds

    def _count(self) -> None:
        """Count the time since the last change, if there were tasks then."""
        now = time.monotonic()
        if self._unfinished:
            self._worked_s += now - self._counted_at
            self._thread_s += (now - self._counted_at) * self._scheduler.total_nthreads
        self._counted_at = now

    def values(self) -> dict[str, mark.Value]:
        """Return the values of a mark: all since the stretch of work began."""
        self._count()
        now = time.monotonic()
        # Tasks that run aren't among the spans yet. The threads of a worker have the oldest of its tasks.
        running = sum(
            sum(heapq.nlargest(worker.nthreads, self._ages(worker.processing, now)))
            for worker in self._scheduler.workers.values()
        )
        longest = self._kind_s.most_common(_MOST_KINDS)
        idle_s = max(0.0, self._thread_s - sum(self._spans.values()) - running)
        return {
            "dask_tasks": self._tasks,
            "dask_unfinished": len(self._unfinished),
            "dask_threads": self._scheduler.total_nthreads,
            "dask_work_s": round(self._worked_s, 3),
            "dask_compute_s": round(self._spans["compute"], 3),
            "dask_transfer_s": round(self._spans["transfer"], 3),
            "dask_idle_s": round(idle_s, 3),
            "dask_idle_pct": round(100 * idle_s / (self._thread_s or 1), 1),
            **{f"dask_compute_s/{kind}": round(seconds, 3) for kind, seconds in longest},
            **{f"dask_tasks/{kind}": self._kind_tasks[kind] for kind, _ in longest},
        }

    def _ages(self, tasks: Iterable[Any], now: float) -> Iterable[float]:
        return (now - self._began.get(task.key, now) for task in tasks)

    async def run(self) -> None:
        """Send a mark when it is time to, until the scheduler closes."""
        while True:
            await asyncio.sleep(1)
            over = self._tasks and not self._unfinished
            if over or (self._unfinished and time.monotonic() - self._sent_at >= EVERY_S):
                values = self.values()
                self._sent_at = time.monotonic()
                if over:
                    self._begin()
                await asyncio.to_thread(_send, values)

    async def before_close(self) -> None:
        """Send the last mark of work that has just ended."""
        if self._tasks:
            await asyncio.to_thread(_send, self.values())


def _send(values: Mapping[str, mark.Value]) -> None:
    with suppress(OSError, mark.MarkError):
        if not mark.send(DASK_TASKS, values).recordings:
            logging.getLogger(__name__).info("no gswarm-tui has an agent of yours on the scheduler's node")


def dask_setup(scheduler: Any) -> None:
    """Add the plugin to a scheduler; Dask calls it for a module that it preloads."""
    from distributed.diagnostics.plugin import SchedulerPlugin

    # The base has the other calls. A class statement would load Dask, which is an extra, with this module.
    plugin = type("Plugin", (TaskMarks, SchedulerPlugin), {})(scheduler)
    scheduler.add_plugin(plugin, name=plugin.name)
    plugin.sending = asyncio.ensure_future(plugin.run())
