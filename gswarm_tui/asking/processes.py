"""Judges the ranks' processes: one that has ended or is stopped is what all others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gswarm_tui.asking.verdict import NAMED, RankProcess, Verdict
from gswarm_tui.common.quantities import first_of, plural
from gswarm_tui.fleet.findings import Evidence

PROCESSES = "processes"
STOPPED = {
    "T": "stopped by a signal",
    "Z": "dead, and its parent hasn't noticed",
}


def judge(ranks: Sequence[RankProcess], unread: Mapping[str, str]) -> Verdict:
    """Return the verdict. ``unread`` has why ranks of some nodes aren't known; they aren't missing.

    If more than half of the ranks are missing, they run on nodes that aren't watched.
    """
    if stopped := tuple(one for one in ranks if one.state in STOPPED):
        saw = f"its process is {STOPPED[stopped[0].state]}"
        return Verdict(PROCESSES, saw, True, stopped, (Evidence("state", stopped[0].state, "R or S"),))
    if unread:
        problems = first_of([f"{node} ({why})" for node, why in unread.items()], NAMED)
        return Verdict(PROCESSES, f"{plural(len(ranks), 'rank')} found; not read: {problems}")
    sizes, found = {one.world_size for one in ranks}, {one.rank for one in ranks}
    size = max((one or 0 for one in sizes), default=0)
    missing = [rank for rank in range(size) if rank not in found] if len(sizes) == 1 else []
    if not missing or 2 * len(missing) > size:
        rest = f"; {len(missing)} of {size} may run on nodes that aren't watched" if missing else ""
        return Verdict(PROCESSES, f"{plural(len(ranks), 'rank')} found, and each process runs{rest}")
    behind = tuple(RankProcess("", 0, rank) for rank in missing)
    saw = f"the watched nodes have no process of it, and of {len(found)} other ranks one each"
    return Verdict(PROCESSES, saw, True, behind, (Evidence("ranks", len(found), size),))
