"""What is true of a node: when its GPUs were read, as the NVML stand-in wrote down, and what became of it.

The journal is written in the agent's process, by code that isn't the agent's, at each reading.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster.node import Node

NEAR_S = 0.09
"""A frame and its reading are no further apart; less than half of the interval that faults are sampled at."""
FIRST_LOOKS = 2
"""So often an agent reads the stand-in's GPUs before its first frame, to find out what they answer. Were it
otherwise, the row of the fault "nothing" would tell."""
CUT_SHORT_S = 0.05
"""A reading no longer before the agent's SIGKILL may not have become a frame any more."""


@dataclass(frozen=True)
class Reading:
    """One look at the GPUs: by which process, at which CLOCK_MONOTONIC time in seconds."""

    pid: int
    at: float


class Witness:
    """The journal of a node's readings, begun when this is made; ``kill`` also remembers when it did so."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._journal = node.scenario.with_suffix(".journal")
        self._journal.write_text("")
        self._kills: list[Reading] = []

    def kill(self, pids: Sequence[int]) -> None:
        """SIGKILL agents of the node."""
        self._kills += [Reading(pid, time.monotonic()) for pid in pids]
        self.node.run(["kill", "-KILL", *map(str, pids)])

    def readings(self) -> list[Reading]:
        """What should have become frames; without what SIGKILL may have cut short, see ``cut_short``."""
        return [reading for reading in self._sampled() if not self._is_cut_short(reading)]

    def cut_short(self) -> list[Reading]:
        """Readings that SIGKILL came upon: each may have become a frame or not."""
        return [reading for reading in self._sampled() if self._is_cut_short(reading)]

    def _sampled(self) -> list[Reading]:
        found, looks = [], Counter[int]()
        for line in self._journal.read_text().splitlines():
            pid, ns = map(int, line.split())
            looks[pid] += 1
            if looks[pid] > FIRST_LOOKS:
                found.append(Reading(pid, ns / 1e9))
        return found

    def _is_cut_short(self, reading: Reading) -> bool:
        return any(kill.pid == reading.pid and kill.at - reading.at < CUT_SHORT_S for kill in self._kills)


@dataclass(frozen=True)
class Count:
    """What became of readings: ``stray`` frames are of none of them. Counts add up."""

    sampled: int = 0
    frames: int = 0
    lost: int = 0
    twice: int = 0
    stray: int = 0
    said: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(self.values, other.values, strict=True)))

    @property
    def values(self) -> tuple[int, ...]:
        """All counts, in their order."""
        return self.sampled, self.frames, self.lost, self.twice, self.stray, self.said


def count(readings: Sequence[float], maybe: Sequence[float], frames: Sequence[float], said: int) -> Count:
    """Give each frame to the nearest reading. All are sorted Unix times in seconds.

    ``maybe`` are readings that may be frames or not: they count as sampled if they are. ``said`` is how many
    frames the recording itself says are lost.
    """
    known = sorted([*readings, *maybe])
    became = dict.fromkeys(known, 0)
    stray = 0
    for frame in frames:
        at = bisect_left(known, frame)
        near = min(known[max(0, at - 1) : at + 1], key=lambda one: abs(one - frame), default=None)
        if near is None or abs(near - frame) > NEAR_S:
            stray += 1
        else:
            became[near] += 1
    return Count(
        sampled=len(readings) + sum(became[one] > 0 for one in maybe),
        frames=len(frames),
        lost=sum(became[one] == 0 for one in readings),
        twice=sum(times - 1 for times in became.values() if times > 1),
        stray=stray,
        said=said,
    )
