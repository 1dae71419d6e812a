"""Problems of a fleet, the most severe first, as the key ``n`` visits them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gswarm_tui.fleet.frame_values import ENERGY, UTIL
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.fleet.throttling import HARMFUL

_OF_NODE = {
    Standing.LOST: 1,
    Standing.UNREACHABLE: 1,
    Standing.UNHEALTHY: 1,
    Standing.STALE: 4,
    Standing.CONNECTING: 5,
    Standing.ENDED: 5,
}
_SILENT_GPU, _THROTTLED_GPU, _IDLE_GPU = 2, 3, 6


class FleetProblem(NamedTuple):
    """A node, or one of the job's GPUs on a live node; 1 is the most severe. A node without GPUs has None."""

    severity: int
    node: str
    gpu: int | None


def problems(nodes: Iterable[NodeState], now: float) -> list[FleetProblem]:
    """Return nodes that aren't live and GPUs that don't respond, are throttled, or aren't busy."""
    found = []
    for node in nodes:
        if (standing := node.standing(now)) is not Standing.LIVE:
            found.append(FleetProblem(_OF_NODE[standing], node.name, 0 if node.facts else None))
            continue
        silent = ~np.isfinite(np.delete(node.gpus, ENERGY, axis=1)).any(axis=1)
        throttled = np.array(node.clock_reasons, dtype=np.int64) & HARMFUL != 0
        idle = ~(node.gpus[:, UTIL] >= BUSY_FROM_PCT)
        kinds = np.select([silent, throttled, idle], [_SILENT_GPU, _THROTTLED_GPU, _IDLE_GPU])
        found += [
            FleetProblem(kind, node.name, gpu)
            for gpu, (kind, mine) in enumerate(zip(kinds.tolist(), node.mine, strict=True))
            # Nobody measures whether a MIG instance is idle.
            if kind and mine and (kind != _IDLE_GPU or node.facts[gpu].parent_index is None)
        ]
    return sorted(found, key=lambda problem: problem.severity)
