"""Which frames of a node came: each agent run, a life, counts its own from 1."""

from __future__ import annotations

from typing import NamedTuple

from gswarm_agent.frame import Frame

LIVES_KEPT = 64


class Heard(NamedTuple):
    """The newest frame of one life: its number, and its time on the node's clock in Unix nanoseconds.

    The time is None where that frame is lost."""

    seq: int
    ts_ns: int | None


class Place(NamedTuple):
    """A frame's place in its life: ``missing`` frames before it, seconds since the one before or None."""

    missing: int
    interval_s: float | None


class Lives:
    """What was heard of a node, by life; the newest lives are remembered."""

    # Each node has its own, far from the others in memory: a place less to look at.
    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}

    def place(self, life: str, frame: Frame) -> Place | None:
        """Take in a frame; None if it was here before."""
        last = self._heard.get(life)
        if last is not None and frame.seq <= last.seq:
            return None
        self.remember(life, frame.seq, frame.ts_ns)
        if last is None:
            return Place(frame.seq - 1, None)
        missing = frame.seq - last.seq - 1
        if missing or last.ts_ns is None or frame.ts_ns <= last.ts_ns:
            return Place(missing, None)
        return Place(0, (frame.ts_ns - last.ts_ns) / 1e9)

    def lose(self, life: str, seq: int) -> int:
        """What isn't here up to a number never comes: how many frames that are."""
        last = self._heard.get(life)
        missing = seq - (0 if last is None else last.seq)
        if missing > 0:
            self.remember(life, seq, None)
        return max(0, missing)

    def remember(self, life: str, seq: int, ts_ns: int | None) -> None:
        """A frame is known, here or on disk, or lost."""
        self._heard[life] = Heard(seq, ts_ns)
        while len(self._heard) > LIVES_KEPT:
            del self._heard[next(iter(self._heard))]
