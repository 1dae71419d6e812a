"""Checks a session's coverage in the database against a node's witness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.cluster.faults.witness import NvmlRead

OFF_S = 0.2
"""Less than an interval, so that one frame too many or too few is noticed."""
EDGE_S = 0.02
"""An interval is measured by the node's clock, times are the head's: they differ by some milliseconds."""


@dataclass(frozen=True)
class CoverageRow:
    """A row of ``session_coverage``; times are Unix seconds."""

    started_at: float
    ended_at: float
    frames: int
    covered_s: float


def wrong(told: CoverageRow, became: Mapping[NvmlRead, Sequence[float]]) -> list[str]:
    """Describe each difference; ``became`` maps the node's NVML reads, in order, to their frames' times.

    A frame stands for the time since the one before it, if nothing is missing between them, and is in the
    session if any of that time is. One that ends or begins just at the session's edge may count or not.
    """
    found, least, most, covered_s = [], 0, 0, 0.0
    for before, read in zip([None, *became], became, strict=False):
        follows = before is not None and before.pid == read.pid and became[before]
        for ts in became[read]:
            since = became[before][0] if before is not None and follows else ts
            inside_s = min(ts, told.ended_at) - max(since, told.started_at)
            inside = [
                ts - edge > told.started_at and (ts + edge <= told.ended_at or since + edge < told.ended_at)
                for edge in (EDGE_S, -EDGE_S)
            ]
            least, most = least + inside[0], most + inside[1]
            covered_s += max(0.0, inside_s)
    if not least <= told.frames <= most:
        found.append(f"{told.frames} frames in the session instead of {least} to {most}")
    if abs(told.covered_s - covered_s) > OFF_S:
        found.append(f"{told.covered_s:.2f} s of the session covered instead of {covered_s:.2f}")
    return found
