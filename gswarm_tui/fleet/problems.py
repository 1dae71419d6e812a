"""Places that the key ``n`` visits: findings first, then silent nodes and GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.node import NodeState, Standing

_OF_NODE = {
    Standing.LOST: 1, Standing.UNREACHABLE: 1, Standing.UNHEALTHY: 1,
    Standing.STALE: 3, Standing.CONNECTING: 4, Standing.ENDED: 4,
}  # fmt: skip
_FOUND, _SILENT_GPU = 0, 2


class FleetProblem(NamedTuple):
    """A node or GPU to visit, the lowest ``order`` first. A node without GPUs has the GPU None."""

    order: int
    node: str
    gpu: int | None


def named_rows(finding: Finding, node: NodeState) -> list[int]:
    """Return the rows of a node's GPUs that a finding names: one, or all of the job's if it means nodes."""
    if node.name not in (finding.nodes if finding.node is None else (finding.node,)):
        return []
    if finding.gpu is None:
        return [row for row, mine in enumerate(node.mine) if mine]
    return [row for row, fact in enumerate(node.facts) if fact.index == finding.gpu]


def problems(nodes: Iterable[NodeState], findings: Iterable[Finding], now: float) -> list[FleetProblem]:
    """Return what findings name, in their order, then nodes that aren't live and GPUs that don't respond."""
    by_name = {node.name: node for node in nodes}
    found = []
    for finding in findings:
        name = finding.node or next(iter(finding.nodes), "")
        if (node := by_name.get(name)) is not None:
            found.append(FleetProblem(_FOUND, name, next(iter(named_rows(finding, node)), None)))
    for node in by_name.values():
        if (standing := node.standing(now)) is not Standing.LIVE:
            found.append(FleetProblem(_OF_NODE[standing], node.name, 0 if node.facts else None))
            continue
        silent = ~np.isfinite(np.delete(node.gpus, ENERGY, axis=1)).any(axis=1)
        mine = np.flatnonzero(silent & np.array(node.mine, dtype=bool)).tolist()
        found += [FleetProblem(_SILENT_GPU, node.name, row) for row in mine]
    return sorted(dict.fromkeys(found), key=lambda problem: problem.order)
