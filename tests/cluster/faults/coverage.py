"""Whether a session's coverage is what a node's witness knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tests.cluster.faults.witness import NEAR_S, Reading

OFF_S = 0.15
"""Less than an interval, so that one frame too many or too few is noticed."""


@dataclass(frozen=True)
class Told:
    """What ``session_coverage`` tells of a session and a node; times are Unix seconds."""

    started_at: float
    ended_at: float
    frames: int
    covered_s: float


def wrong(told: Told, became: Mapping[Reading, int]) -> list[str]:
    """What isn't so, in words; ``became`` are the node's readings in order, with their frames.

    A frame stands for the time since the one before it, if nothing is missing between them.
    """
    found = []
    surely = sum(
        frames
        for reading, frames in became.items()
        if told.started_at + NEAR_S < reading.at < told.ended_at - NEAR_S
    )
    maybe = sum(
        frames
        for reading, frames in became.items()
        if told.started_at - NEAR_S < reading.at < told.ended_at + NEAR_S
    )
    if not surely <= told.frames <= maybe:
        found.append(f"{told.frames} frames in the session instead of {surely}")
    covered_s = sum(
        min(after.at - before.at, after.at - told.started_at)
        for before, after in pairwise(became)
        if before.pid == after.pid
        and became[before]
        and became[after]
        and told.started_at <= after.at < told.ended_at
    )
    if abs(told.covered_s - covered_s) > OFF_S:
        found.append(f"{told.covered_s:.2f} s of the session covered instead of {covered_s:.2f}")
    return found
