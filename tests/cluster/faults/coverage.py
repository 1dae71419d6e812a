"""Checks a session's coverage in the database against a node's witness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.cluster.faults.witness import NvmlRead

OFF_S = 0.2
"""Less than an interval, so that one frame too many or too few is noticed."""


@dataclass(frozen=True)
class CoverageRow:
    """A row of ``session_coverage``; times are Unix seconds."""

    started_at: float
    ended_at: float
    frames: int
    covered_s: float


def wrong(told: CoverageRow, became: Mapping[NvmlRead, Sequence[float]]) -> list[str]:
    """Describe each difference; ``became`` maps the node's NVML reads, in order, to their frames' times.

    A frame stands for the time since the one before it, if nothing is missing between them.
    """
    found = []
    frames = sum(told.started_at <= ts < told.ended_at for times in became.values() for ts in times)
    if told.frames != frames:
        found.append(f"{told.frames} frames in the session instead of {frames}")
    covered_s = 0.0
    for before, after in pairwise(became):
        if before.pid == after.pid and became[before] and became[after]:
            since, ts = became[before][0], became[after][0]
            if told.started_at <= ts < told.ended_at:
                covered_s += ts - max(since, told.started_at)
    if abs(told.covered_s - covered_s) > OFF_S:
        found.append(f"{told.covered_s:.2f} s of the session covered instead of {covered_s:.2f}")
    return found
