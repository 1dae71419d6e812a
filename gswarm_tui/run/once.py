"""Looks at the fleet once: connects, waits for each node's first sample, and ends without a recording."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gswarm_tui.fleet.events import Phase
from gswarm_tui.options.arguments import Options
from gswarm_tui.run import build
from gswarm_tui.run.plan import Plan

if TYPE_CHECKING:
    from gswarm_tui.hub import Hub


@dataclass(frozen=True)
class Look:
    """Result of one look: the fleet in sentences, the nodes without values, and the problem here, if any."""

    sentences: tuple[str, ...]
    silent: tuple[str, ...]
    problem: str


async def look(options: Options, plan: Plan, limit_s: float) -> Look:
    """Look at the plan's nodes until each sent a sample or failed, ``limit_s`` at most. Records nothing."""
    from gswarm_tui.fleet.plain_text import fleet_sentences, silent_nodes
    from gswarm_tui.run.lifetime import Lifetime

    hub = build.build_hub(options, plan)
    launcher = build.build_launcher(options, plan, "")
    build.add_links(hub, launcher, options, None)
    ended, begun = asyncio.Event(), asyncio.Event()
    begun.set()
    sentences: list[str] = []
    silent: list[str] = []

    async def wait() -> None:
        await _settled(hub, ended, limit_s)
        sentences[:] = fleet_sentences(hub.fleet, hub.now())
        silent[:] = silent_nodes(hub.fleet, hub.now())

    result = await Lifetime(hub, launcher, None, lambda _reason: ended.set()).run(wait(), begun)
    return Look(tuple(sentences), tuple(silent), result.problem)


async def _settled(hub: Hub, ended: asyncio.Event, limit_s: float) -> None:
    """Return once each node has sent a sample or failed to connect, at the limit, or at the end."""
    failed: set[str] = set()

    def check() -> None:
        nodes = hub.fleet.nodes.values()
        failed.update(node.name for node in nodes if node.phase in (Phase.LOST, Phase.ENDED))
        if all(node.last_arrival is not None or node.name in failed for node in nodes):
            ended.set()

    hub.flushed.append(check)
    try:
        async with asyncio.timeout(limit_s):
            await ended.wait()
    except TimeoutError:
        return
    finally:
        hub.flushed.remove(check)
