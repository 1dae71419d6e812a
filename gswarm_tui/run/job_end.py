"""End of the Slurm job, polled so that agents end with their job and no later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gswarm_tui.common.errors import UserError
from gswarm_tui.link.hub import Hub
from gswarm_tui.slurm.jobs import Job, Slurm

POLL_S = 120.0
"""Slurm usually forgets an ended job after five minutes."""
POLL_SOONEST_S = 10.0
GRACE_S = 30.0
"""Slurm takes about this long to end a job after its limit, and some clusters let it run on."""


async def follow(
    hub: Hub,
    slurm: Slurm,
    job: Job,
    ended: Callable[[], None] = lambda: None,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Send the end of the job to all links, and again when it is extended or ended early.

    Runs until it is cancelled, and calls ``ended`` when Slurm says that the job has ended. While Slurm can't
    be queried, its last answer counts.
    """
    ends_at = job.ends_at
    if ends_at is not None:
        hub.set_job_end(ends_at)
    while True:
        try:
            end = await asyncio.to_thread(slurm.end_of, job.label)
        except UserError:
            end = None
        if end is not None:
            at = max(end.at, hub.now() + GRACE_S) if end.running else end.at
            if at != ends_at:
                ends_at = at
                hub.set_job_end(at)
            if not end.running:
                ended()
        left_s = -1.0 if ends_at is None else ends_at - hub.now()
        await sleep(POLL_S if left_s < 0 else max(POLL_SOONEST_S, min(POLL_S, left_s / 2)))
