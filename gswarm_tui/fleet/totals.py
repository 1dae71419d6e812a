"""Totals of the whole fleet, as shown above the heatmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.frame_values import POWER, UTIL
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT

MEMORY = GPU_COLUMNS.index("mem_used_mib")


@dataclass(frozen=True)
class Totals:
    """Totals of live nodes and the job's GPUs; None where nothing was measured.

    ``lowest_util`` is the (node, GPU index) with the lowest utilisation, None where all are idle; ``lag_ms``
    is the worst lateness of a tick.
    """

    nodes: int
    nodes_up: int
    gpus: int
    busy: int
    mean_util: float | None
    power_w: float | None
    memory_used_mib: float | None
    memory_total_mib: float | None
    energy_j: float
    lowest_util: tuple[str, int] | None
    lag_ms: float
    simulated: bool


def totals(fleet: Fleet, now: float, *, ended: bool = False) -> Totals:
    """Return the totals of a fleet at a time; of an ``ended`` recording the last values of all agents."""
    counted = (Standing.LIVE, Standing.ENDED) if ended else (Standing.LIVE,)
    up = [n for n in fleet.nodes.values() if n.standing(now) in counted]
    own = [n.own(n.gpus) for n in up]
    values = np.concatenate(own) if own else np.empty((0, len(GPU_COLUMNS)))
    util, power = values[:, UTIL], values[:, POWER]
    memory = np.concatenate([np.empty(0), *(n.gpus[n.memory_rows, MEMORY] for n in up)])
    sizes = [n.own_memory_mib for n in up if n.own_memory_mib is not None]
    return Totals(
        nodes=len(fleet.nodes),
        nodes_up=len(up),
        gpus=sum(n.gpu_count for n in up),
        busy=int((util >= BUSY_FROM_PCT).sum()),
        mean_util=measured(util, np.mean),
        power_w=measured(power, np.sum),
        memory_used_mib=measured(memory, np.sum),
        memory_total_mib=sum(sizes) if sizes else None,
        energy_j=fleet.energy_j,
        lowest_util=_lowest_util(up, util),
        lag_ms=max((n.late_ms for n in up), default=0.0),
        simulated=any(n.hello is not None and n.hello.simulated for n in fleet.nodes.values()),
    )


def measured(values: Floats, figure: Callable[[Floats], float]) -> float | None:
    """Return a figure of the values that were measured, None without any."""
    finite = values[np.isfinite(values)]
    return float(figure(finite)) if len(finite) else None


def _lowest_util(nodes: list[NodeState], util: Floats) -> tuple[str, int] | None:
    if not (util > 0).any():  # all are idle
        return None
    place = int(np.nanargmin(util))
    for node in nodes:
        if place < (count := sum(node.mine)):
            own = [fact.index for fact, mine in zip(node.facts, node.mine, strict=True) if mine]
            return node.name, own[place]
        place -= count
    return None
