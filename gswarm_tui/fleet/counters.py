"""Energy used by GPUs, from their energy counters.

The energy of a period is the sum of the counters' growth between consecutive values in it; a step in which a
counter fell counts as 0. The step that leads into the period counts whole if it took less than
``NEIGHBOURS`` times the interval of the frame that ends it, else as 0: nobody knows how much of a longer step
belongs to the period. The interval of a frame is the time since the frame before it in the same agent run;
the first frame of a run, or after lost frames, has none. ``session_summary`` in SQL follows the same rule.
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
"""A counter's value (mJ) and its time."""
UNKNOWN: CounterValue = math.nan, math.inf
"""The value of a counter that was never read."""


class EnergyCounters(NamedTuple):
    """Latest values of GPUs' counters (mJ, NaN: never read) and their times: one for all, or one each."""

    mj: Floats
    at: Floats | float

    @classmethod
    def known(cls, answers: Iterable[CounterValue]) -> EnergyCounters:
        """Build counters from each GPU's value and time."""
        mj, at = np.array([*answers]).reshape(-1, 2).T
        return cls(mj, at)

    @property
    def pairs(self) -> list[CounterValue]:
        """Each counter's value and time."""
        return list(zip(*(one.tolist() for one in np.broadcast_arrays(self.mj, self.at)), strict=True))

    @property
    def since(self) -> float:
        """The oldest time of a counter; infinite if a counter was never read."""
        return self.at if isinstance(self.at, float) else float(self.at.min(initial=math.inf))

    def updated(self, values: Floats, ts: float, *, silent: bool) -> EnergyCounters:
        """Return the counters after the newest frame; ``silent`` if the frame lacks a counter."""
        return self._replace_where(~np.isnan(values), values, ts) if silent else EnergyCounters(values, ts)

    def updated_late(self, values: Floats, ts: float) -> EnergyCounters:
        """Return the counters after a late frame; counters that were read later keep their values."""
        return self._replace_where(~np.isnan(values) & (np.isnan(self.mj) | (self.at < ts)), values, ts)

    def select(self, selected: npt.NDArray[np.bool_]) -> EnergyCounters:
        """Return the counters of the selected GPUs."""
        return EnergyCounters(self.mj[selected], self.at if isinstance(self.at, float) else self.at[selected])

    def _replace_where(self, read: npt.NDArray[np.bool_], values: Floats, ts: float) -> EnergyCounters:
        return EnergyCounters(np.where(read, values, self.mj), np.where(read, ts, self.at))


def energy_used(before: Floats, after: Floats) -> Floats:
    """Return the joules used between two values (mJ) of counters, shapes (..., GPUs) and (...).

    A counter that fell or is missing counts as 0.
    """
    grown = after - before
    used: Floats = np.where(grown > 0, grown, 0.0).sum(axis=-1) / 1000
    return used


class CounterStep(NamedTuple):
    """The step from each GPU's earlier counter to a frame's (mJ); ``interval_s`` is None after a gap."""

    before: EnergyCounters
    now: Floats
    ts: float
    interval_s: float | None

    def energy_within(self, start: float) -> float:
        """Return the step's joules in a period that began at ``start`` and contains the frame."""
        near = math.inf if self.interval_s is None else self.ts - NEIGHBOURS * self.interval_s
        counts = (self.before.at >= start) | (self.before.at > near)
        return float(energy_used(np.where(counts, self.before.mj, np.nan), self.now))

    def energy_correction(self, after: RowValues, start: float, until: float) -> float:
        """Return how many joules a late frame adds to a period.

        It splits the step around it: the energy up to it and from it on replaces that of the whole step.
        """
        inside = (after.at >= start) & (after.at < until) & np.isfinite(self.now)
        later = np.where(inside, after.values, np.nan)
        direct = np.where(self.before.at >= start, self.before.mj, np.nan)
        more_j = -float(energy_used(direct, later))
        if start <= self.ts:
            more_j += float(energy_used(self.now, later))
        return more_j + self.energy_within(start) if start <= self.ts < until else more_j


def energy_since(times: Floats, intervals: Singles, counters: Singles, start: float) -> float:
    """Return the joules used since ``start``, from counters (mJ) of shape (frames, GPUs).

    ``intervals`` (s) are the frames', NaN for none.
    """
    last_read = np.where(np.isfinite(counters), np.arange(len(times))[:, np.newaxis], -1)
    before = np.maximum.accumulate(last_read, axis=0)[:-1]
    ts = times[1:, np.newaxis]
    near = ts - times[before] < NEIGHBOURS * intervals[1:, np.newaxis]
    counts = (before >= 0) & (ts >= start) & ((times[before] >= start) | near)
    values = counters.astype(np.float64)
    earlier = np.where(counts, np.take_along_axis(values, np.maximum(before, 0), axis=0), np.nan)
    return float(energy_used(earlier, values[1:]).sum())
