"""The end of the job: asked of Slurm now and then, so that agents end with their job and no later."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Protocol

from gswarm_tui.common.errors import UserError
from gswarm_tui.hub import Hub
from gswarm_tui.slurm.jobs import Job, JobEnd

EVERY_S = 120.0
"""An ended job is forgotten by Slurm after five minutes, as usually configured."""
SOONEST_S = 10.0
GRACE_S = 30.0
"""Slurm takes about as long to end a job after its limit, and some clusters let it run on."""


class Asked(Protocol):
    """What is needed of Slurm; `gswarm_tui.slurm.jobs.Slurm` is the real one."""

    def end_of(self, job_id: str) -> JobEnd | None:
        """When a job ends or ended. Raises UserError."""


async def follow(
    hub: Hub, slurm: Asked, job: Job, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> None:
    """Tell the links when their job ends, and when that changes: it was extended, or ended early.

    Runs until it is cancelled. While Slurm can't be asked or understood, what it said before counts.
    """
    told = job.ends_at
    if told is not None:
        hub.set_job_end(told)
    while True:
        try:
            end = await asyncio.to_thread(slurm.end_of, job.label)
        except UserError:
            end = None
        if end is not None:
            at = max(end.at, hub.now() + GRACE_S) if end.running else end.at
            if at != told:
                told = at
                hub.set_job_end(at)
        await sleep(_pause(math.inf if told is None else told - hub.now()))


def _pause(left_s: float) -> float:
    """Seconds until Slurm is asked again, by what is left of the job."""
    return EVERY_S if left_s < 0 else max(SOONEST_S, min(EVERY_S, left_s / 2))
