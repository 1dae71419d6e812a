"""Energy counters of GPUs, followed from each answer to the next, however many readings lie between.

A span has what a counter grew from each answer in it to the next; a step in which it fell is nothing. Of the
step that leads into it, from the last answer before it to its first one, it has all where that took less than
``NEIGHBOURS`` of the interval that its first one's reading came with, and else nothing: of a longer time
nobody knows how much was used on which side. An interval is the time since the reading before in the agent's
run, long where ticks were passed over; the first reading of a run, or after lost ones, has none.
``session_summary`` goes by the same rule (``store/summing.py``), and so do times that are looked back at,
which follow counters from a span's first answer to its last and over the falls between
(``store/metering.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.history import Floats, RowValues, Singles
from gswarm_tui.fleet.thresholds import NEIGHBOURS

CounterValue = tuple[float, float]
"""What a GPU's counter said (mJ), and when."""
UNKNOWN: CounterValue = math.nan, math.inf
"""That of a GPU that gave none."""


class EnergyCounters(NamedTuple):
    """What each GPU's counter said last (mJ), NaN where it never answered, and when: of all, or of each."""

    mj: Floats
    at: Floats | float

    @classmethod
    def known(cls, answers: Iterable[CounterValue]) -> EnergyCounters:
        """Of GPUs that said so, each then; see ``UNKNOWN``."""
        mj, at = np.array([*answers]).reshape(-1, 2).T
        return cls(mj, at)

    @property
    def answers(self) -> list[CounterValue]:
        """What each said, and when."""
        return list(zip(*(one.tolist() for one in np.broadcast_arrays(self.mj, self.at)), strict=True))

    @property
    def since(self) -> float:
        """When the one that has been silent for the longest time answered; infinite where none ever did."""
        return self.at if isinstance(self.at, float) else float(self.at.min(initial=math.inf))

    def then(self, told: Floats, ts: float, *, silent: bool) -> EnergyCounters:
        """After a reading, the newest, of which ``silent`` tells whether some GPU gave none."""
        return self._with(~np.isnan(told), told, ts) if silent else EnergyCounters(told, ts)

    def late(self, told: Floats, ts: float) -> EnergyCounters:
        """After a reading that came late: it counts for those that have been silent since."""
        return self._with(~np.isnan(told) & (np.isnan(self.mj) | (self.at < ts)), told, ts)

    def of(self, some: npt.NDArray[np.bool_]) -> EnergyCounters:
        """Those of some GPUs."""
        return EnergyCounters(self.mj[some], self.at if isinstance(self.at, float) else self.at[some])

    def _with(self, answered: npt.NDArray[np.bool_], told: Floats, ts: float) -> EnergyCounters:
        return EnergyCounters(np.where(answered, told, self.mj), np.where(answered, ts, self.at))


def energy_used(before: Floats, after: Floats) -> Floats:
    """Joules of some GPUs between two answers of their counters (mJ), shapes (..., GPUs) and (...).

    One that fell, or gave no answer, counts as nothing.
    """
    grown = after - before
    used: Floats = np.where(grown > 0, grown, 0.0).sum(axis=-1) / 1000
    return used


class CounterStep(NamedTuple):
    """From each GPU's answer before to a reading's counters (mJ); ``interval_s`` is None after a gap."""

    before: EnergyCounters
    now: Floats
    ts: float
    interval_s: float | None

    def within(self, start: float) -> float:
        """Joules of it in a span that began at ``start`` and has the reading in it."""
        near = math.inf if self.interval_s is None else self.ts - NEIGHBOURS * self.interval_s
        counts = (self.before.at >= start) | (self.before.at > near)
        return float(energy_used(np.where(counts, self.before.mj, np.nan), self.now))

    def instead(self, after: RowValues, start: float, until: float) -> float:
        """Joules that a span has more by it if it came late: what was used up to it, and on to the answers
        after it, instead of what was used directly up to these."""
        inside = (after.at >= start) & (after.at < until) & np.isfinite(self.now)
        later = np.where(inside, after.values, np.nan)
        direct = np.where(self.before.at >= start, self.before.mj, np.nan)
        more_j = -float(energy_used(direct, later))
        if start <= self.ts:
            more_j += float(energy_used(self.now, later))
        return more_j + self.within(start) if start <= self.ts < until else more_j


def energy_since(times: Floats, intervals: Singles, counters: Singles, start: float) -> float:
    """Joules that counters (mJ) of shape (readings, GPUs) tell of a span that began at ``start``.

    ``intervals`` (s) are what the readings came with, NaN for none.
    """
    answered = np.where(np.isfinite(counters), np.arange(len(times))[:, np.newaxis], -1)
    before = np.maximum.accumulate(answered, axis=0)[:-1]
    ts = times[1:, np.newaxis]
    near = ts - times[before] < NEIGHBOURS * intervals[1:, np.newaxis]
    counts = (before >= 0) & (ts >= start) & ((times[before] >= start) | near)
    told = counters.astype(np.float64)
    earlier = np.where(counts, np.take_along_axis(told, np.maximum(before, 0), axis=0), np.nan)
    return float(energy_used(earlier, told[1:]).sum())
