"""Looks at the fleet once: connects, waits for each node's samples, and ends without a recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from gswarm_tui.fleet.events import Phase
from gswarm_tui.fleet.plain_text import silent_nodes
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.lifetime import Lifetime
from gswarm_tui.run.plan import Plan
from gswarm_tui.run.signals import call_at_signals

if TYPE_CHECKING:
    from gswarm_tui.fleet.state import Fleet

T = TypeVar("T")

SAMPLES = 2
"""Rates and processes come with a node's second sample."""
INTERVAL_MS = 100
"""The shortest. With 200, a look at four nodes takes 2.5 times as long as a parallel ssh, now 1.8 times."""
POLL_S = 0.01


async def look(
    options: Options, plan: Plan, limit_s: float, describe: Callable[[Fleet, float], T]
) -> tuple[T | None, list[str], str]:
    """Look at the plan's nodes until each sent two samples or failed, ``limit_s`` at most. Records nothing.

    ``describe`` gets the fleet and the time before the agents are stopped. Returns its result, None after a
    signal; the nodes without samples; and a sentence if something failed.
    """
    options = options._replace(interval_ms=INTERVAL_MS)
    ended = asyncio.Event()
    call_at_signals(ended.set)
    launcher = build.build_launcher(options, plan, "")
    hub = build.build_hub(options, plan)
    build.add_links(hub, launcher, options, None)
    seen: list[T] = []
    silent: list[str] = []

    async def wait() -> None:
        failed: set[str] = set()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not ended.is_set():
                    nodes = hub.fleet.nodes.values()
                    failed.update(node.name for node in nodes if node.phase in (Phase.LOST, Phase.ENDED))
                    if all(node.frames >= SAMPLES or node.name in failed for node in nodes):
                        break
                    await asyncio.sleep(POLL_S)
                    hub.flush()  # by itself it flushes once an interval
        if ended.is_set():
            return
        seen.append(describe(hub.fleet, hub.now()))
        silent[:] = silent_nodes(hub.fleet, hub.now())

    result = await Lifetime(hub, launcher, None).run(wait())
    return seen[0] if seen else None, silent, result.problem
