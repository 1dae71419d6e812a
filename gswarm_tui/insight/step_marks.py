"""Step times of ranks, which the job itself sends with ``gswarm_agent.mark.step``."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from gswarm_tui.fleet.events import EventLogged, json_object

NEWEST = 4
"""Marks of a rank whose median counts: those of two minutes, or four steps if they take longer than that."""
MOST_RANKS, MOST_S = 65_536, 1e6


class RankSteps:
    """The newest marks of one rank, which ``says`` how long it computes or not, and its best median."""

    def __init__(self, says: bool) -> None:
        self.says, self.at, self.seconds, self.best_s = says, 0.0, 0.0, math.inf
        self._newest: deque[float] = deque(maxlen=NEWEST)

    def take(self, at: float, seconds: float, own_s: float) -> None:
        """Add a mark: its time, the seconds of a step, and how many of them are the rank's own."""
        self.at, self.seconds = at, seconds
        self._newest.append(own_s)
        if len(self._newest) == NEWEST:
            self.best_s = min(self.best_s, self.own_s)

    @property
    def own_s(self) -> float:
        """Median seconds that the rank computes in a step, or that a step takes if it doesn't say."""
        return float(np.median(self._newest))

    def is_current(self, now: float) -> bool:
        """Return whether there are enough marks, and none is overdue."""
        return len(self._newest) == NEWEST and now - self.at <= 90 + 3 * self.seconds


class StepMarks:
    """The marks of all ranks, by node and rank."""

    def __init__(self) -> None:
        self.ranks: dict[tuple[str, int], RankSteps] = {}

    def take(self, event: EventLogged) -> bool:
        """Add a mark; return whether it is the first rank's. What isn't a mark of a rank is left out."""
        values = json_object(event.detail)
        seconds, rank, node = values.get("seconds"), values.get("rank", 0), event.node
        own_s = values.get("compute", seconds)
        known = all(isinstance(one, int | float) and 0 < one < MOST_S for one in (seconds, own_s))
        if node is None or type(rank) is not int or not known:
            return False
        key, says = (node, rank), "compute" in values
        steps = self.ranks.get(key)
        if steps is None and len(self.ranks) >= MOST_RANKS:
            return False
        if steps is None or steps.says != says:
            steps = self.ranks[key] = RankSteps(says)
        steps.take(event.at, seconds, own_s)  # type: ignore[arg-type]
        return key == next(iter(self.ranks))
