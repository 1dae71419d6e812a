"""Ground truth of a node: the NVML stand-in's journal of GPU reads, matched with recorded frames.

The journal is written in the agent's process, by code that isn't the agent's, at each reading.
"""

from __future__ import annotations

import marshal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.cluster.node import ClusterNode

NEAR_S = 1.5
"""Maximum seconds between a frame and its NVML read, on a busy machine. Reads of two agents with the same
number are further apart: an agent is killed two seconds after its start at the earliest."""
FIRST_LOOKS = 2
"""Reads of the stand-in's GPUs by an agent before its first frame, to find out what they support. If this
changes, the row of the fault "nothing" fails."""
_TALLIES = "gswarm-tui-*/*/tally"


@dataclass(frozen=True)
class NvmlRead:
    """One read of the GPUs: process, number within the process, and time in seconds.

    In a witness's journal that is CLOCK_MONOTONIC.
    """

    pid: int
    number: int
    at: float


class StoredFrame(NamedTuple):
    """A frame in the database: its sequence number in its life, and its Unix time."""

    seq: int
    ts: float


class Witness:
    """The journal of a node's NVML reads, started empty.

    ``kill`` is how an agent has to be killed: the reading that it was at is no frame yet, and isn't counted.
    """

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self._journal = node.scenario.with_suffix(".journal")
        self._journal.write_text("")
        self._cut_short: set[NvmlRead] = set()

    def kill(self, pid: int) -> None:
        """SIGKILL an agent of the node, and check whether its last read had become a frame."""
        self.node.run(f"kill -KILL {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.01; done")
        made = [reading for reading in self._sampled() if reading.pid == pid]
        if len(made) == self._numbered() + 1:
            self._cut_short.add(made[-1])

    def _numbered(self) -> int:
        """Return the number of the last frame from the killed agent's tally file, 0 without one."""
        places = (Path(f"/proc/{self.node.init.pid}/root{place}") for place in ("/var/tmp", "/tmp"))
        tallies = [marshal.loads(path.read_bytes()) for place in places for path in place.glob(_TALLIES)]
        lives = [number for tally in tallies for number, _, _ in tally.values()]
        return int(lives[-1]) if lives else 0

    def readings(self) -> list[NvmlRead]:
        """Return the reads that became frames or should have."""
        return [reading for reading in self._sampled() if reading not in self._cut_short]

    def _sampled(self) -> list[NvmlRead]:
        found, looks = [], Counter[int]()
        for line in self._journal.read_text().splitlines():
            pid, ns = map(int, line.split())
            looks[pid] += 1
            if looks[pid] > FIRST_LOOKS:
                found.append(NvmlRead(pid, looks[pid] - FIRST_LOOKS, ns / 1e9))
        return found


@dataclass(frozen=True)
class Count:
    """Counts of NVML reads and their frames; ``stray`` frames match no read. Counts add up."""

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
        """All counts in order."""
        return self.sampled, self.frames, self.lost, self.twice, self.stray, self.said


def became(readings: Sequence[NvmlRead], frames: Sequence[StoredFrame]) -> dict[NvmlRead, list[float]]:
    """Map each read to the times of its frames, mostly one: those with its number and about its time.

    Readings and frames are at Unix times.
    """
    numbered: dict[int, list[NvmlRead]] = {}
    for reading in readings:
        numbered.setdefault(reading.number, []).append(reading)
    found: dict[NvmlRead, list[float]] = {reading: [] for reading in readings}
    for frame in frames:
        candidates = numbered.get(frame.seq, [])
        near = min(candidates, key=lambda one: abs(one.at - frame.ts), default=None)
        if near is not None and abs(near.at - frame.ts) <= NEAR_S:
            found[near].append(frame.ts)
    return found


def settled(readings: Sequence[NvmlRead], frames: Sequence[StoredFrame]) -> list[NvmlRead]:
    """Return the reads with as many at the end of each agent as it made frames.

    On a busy machine a round of reads counts for the next tick, and the frame of its own repeats a row. So an
    agent that ends may have read once more than it made frames, or made frames after its last read.
    """
    found = became(readings, frames)
    last = {reading.pid: reading for reading in readings}
    kept = [reading for reading in readings if found[reading] or reading is not last[reading.pid]]
    matched = {ts for times in found.values() for ts in times}
    for frame in frames:
        ended = [one for one in last.values() if one.number < frame.seq and abs(one.at - frame.ts) <= NEAR_S]
        if frame.ts not in matched and ended:
            kept.append(NvmlRead(ended[0].pid, frame.seq, frame.ts))
    return sorted(kept, key=lambda one: one.at)


def count(readings: Sequence[NvmlRead], frames: Sequence[StoredFrame], said: int) -> Count:
    """Count reads and their frames; ``said`` is the number of lost frames that the recording reports."""
    times = [len(each) for each in became(readings, frames).values()]
    return Count(
        sampled=len(readings),
        frames=len(frames),
        lost=times.count(0),
        twice=sum(each - 1 for each in times if each > 1),
        stray=len(frames) - sum(times),
        said=said,
    )
