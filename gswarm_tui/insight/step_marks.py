"""Step times of ranks, which the job itself sends with ``gswarm_agent.mark.step``."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np

from gswarm_tui.fleet.events import EventLogged, json_object

NEWEST = 4
"""Marks of a rank whose median counts: those of two minutes, or four steps if they take longer than that."""
MOST_RANKS, MOST_S = 65_536, 1e6


class StepMark(NamedTuple):
    """One mark: its time, a step's seconds, and how many of them the rank computed, NaN if it didn't say."""

    at: float
    seconds: float
    compute: float


class RankSteps:
    """The newest marks of one rank, and its best median of so many."""

    def __init__(self) -> None:
        self.marks: deque[StepMark] = deque(maxlen=NEWEST)
        self.best = math.inf

    def take(self, mark: StepMark) -> None:
        """Add a mark. A rank that begins or ends to say how long it computes starts anew."""
        if self.marks and math.isnan(self.marks[-1].compute) != math.isnan(mark.compute):
            self.marks.clear()
            self.best = math.inf
        self.marks.append(mark)
        if len(self.marks) == NEWEST:
            self.best = min(self.best, self.own_s)

    @property
    def own_s(self) -> float:
        """Median seconds that the rank computes in a step, or that a step takes if it doesn't say."""
        own = [one.seconds if math.isnan(one.compute) else one.compute for one in self.marks]
        return float(np.median(own))

    def is_current(self, now: float) -> bool:
        """Return whether there are enough marks, and none is overdue."""
        newest = self.marks[-1]
        return len(self.marks) == NEWEST and now - newest.at <= 90 + 3 * newest.seconds


class StepMarks:
    """The marks of all ranks, by node and rank."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], RankSteps] = {}

    def take(self, event: EventLogged) -> bool:
        """Add a mark; return whether it is the first rank's. What isn't a mark of a rank is left out."""
        values = json_object(event.detail)
        numbers = [values.get(name) for name in ("seconds", "compute")]
        seconds, compute = (float(one) if isinstance(one, int | float) else math.nan for one in numbers)
        rank, node = values.get("rank", 0), event.node
        known = all(0 < one < MOST_S for one in (seconds, compute) if not math.isnan(one))
        if node is None or type(rank) is not int or math.isnan(seconds) or not known:
            return False
        key = node, rank
        if key not in self.ranks and len(self.ranks) >= MOST_RANKS:
            return False
        self.ranks.setdefault(key, RankSteps()).take(StepMark(event.at, seconds, compute))
        return key == next(iter(self.ranks))
