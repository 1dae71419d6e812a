"""Judges the ranks' processes: one that has ended or is stopped is what all others wait for."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_tui.asking.verdict import NAMED, RankProcess, Verdict
from gswarm_tui.common.quantities import first_of, plural
from gswarm_tui.fleet.findings import Evidence

PROCESSES = "processes"
STOPPED = {
    "T": "stopped by a signal",
    "Z": "dead, and its parent hasn't noticed",
}


def judge(ranks: Sequence[RankProcess]) -> Verdict:
    """Return the verdict; if more than half of the ranks are missing, their nodes aren't watched."""
    if stopped := tuple(one for one in ranks if one.state in STOPPED):
        saw = f"its process is {STOPPED[stopped[0].state]}"
        return Verdict(PROCESSES, saw, True, stopped, (Evidence("state", stopped[0].state, "R or S"),))
    sizes, found = {one.world_size for one in ranks}, {one.rank: one for one in ranks}
    size = max((one or 0 for one in sizes), default=0)
    missing = [rank for rank in range(size) if rank not in found] if len(sizes) == 1 else []
    if not missing or 2 * len(missing) > size:
        return Verdict(PROCESSES, f"{plural(len(ranks), 'rank')} found, and each process runs")
    behind = tuple(RankProcess(_neighbours_node(rank, found), 0, rank) for rank in missing)
    named = first_of(list(map(str, missing)), NAMED)
    saw = f"of {size} ranks, {named} has no process on the watched nodes"
    return Verdict(PROCESSES, saw, True, behind, (Evidence("ranks", len(found), size),))


def _neighbours_node(rank: int, found: dict[int | None, RankProcess]) -> str:
    """Return the node that has the ranks on both sides, as launchers fill nodes in turn; empty for two."""
    nodes = {found[other].node for other in (rank - 1, rank + 1) if other in found}
    return nodes.pop() if len(nodes) == 1 else ""
