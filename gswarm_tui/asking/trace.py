"""Judges a trace of all ranks: the rank that waits least in collectives is the one that others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gswarm_tui.asking.verdict import RankProcess, Verdict
from gswarm_tui.common.quantities import brief_time
from gswarm_tui.fleet.findings import Evidence
from gswarm_tui.store.sql import trace_views

WAITS_OF_FILES = f"""
SELECT rank, sum(wait_ms)::DOUBLE, count(*), count(*) FILTER (rank = last_rank)
FROM ({trace_views.WAITS}) WHERE list_contains(?, parse_filename(profile))
  AND wait_ms IS NOT NULL AND rank IS NOT NULL
GROUP BY rank ORDER BY rank
"""  # noqa: S608 (own names)
MOSTLY = 0.5
"""A rank that joins more than this share of the collectives last is behind."""
LEAST_MS = 5.0
"""Waits of this much in half a second are felt; shorter ones are noise."""


def judge(rows: Sequence[tuple[Any, ...]], ranks: Sequence[RankProcess]) -> Verdict:
    """Return the verdict from (rank, waited ms, collectives, times last) of each rank."""
    if len(rows) < 2:
        return Verdict("trace", "no collective in the trace has two traced ranks")
    last_rank, waited, count, last = max(rows, key=lambda row: (row[3] / row[2], -row[1]))
    others = [row[1] for row in rows if row[0] != last_rank]
    usual = sorted(others)[len(others) // 2]
    saw = (
        f"rank {last_rank} joined {last} of {count} collectives last and waited {brief_time(waited * 1e6)}, "
        f"the other {len(others)} waited {brief_time(usual * 1e6)}"
    )
    lines = tuple(
        f"rank {rank}: waited {brief_time(ms * 1e6)}, last in {n} of {of}" for rank, ms, of, n in rows
    )
    if last / count <= MOSTLY or usual - waited < LEAST_MS:
        return Verdict("trace", f"no rank is behind: {saw}", lines=lines)
    behind = tuple(one for one in ranks if one.rank == last_rank)
    evidence = (Evidence("waited_ms", round(waited, 3), round(usual, 3), "ms"),)
    return Verdict("trace", saw, bool(behind), behind, evidence, lines)
