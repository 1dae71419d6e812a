"""Energy that each GPU used since the sample before, decided once, where a frame is taken in.

It is the growth of the GPU's energy counter since its last value, over lost frames and reboots; 0 where the
counter fell, as after a driver reload. A GPU without a counter used its power for the frame's interval. A
late frame of a GPU with a counter adds nothing: the step around it was counted before it arrived.
Everything else adds these steps up; a step counts in a period by the part of its power × time in it.
docs/decisions/011-energy-once.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import MAX_GAUGE_MS, Frame
from gswarm_agent.metrics import GPU_BY_NAME
from gswarm_tui.fleet.history import Floats, Series, Singles

REPEATED_S = 1.5 * GPU_BY_NAME["energy_mj"].period_s
"""For how long after its reading a counter is shown."""


class EnergyUsed(NamedTuple):
    """Each GPU's energy since the sample before (mJ) and the time it covers (ms), NaN where unknown."""

    mj: Floats
    ms: Floats

    @classmethod
    def unknown(cls, frame: Frame) -> EnergyUsed:
        """Return the energy of a frame of GPUs that the fleet doesn't follow."""
        return cls(*np.full((2, frame.gpus.count), np.nan))

    def within(self, ts: float, start: float, until: float, power: Series) -> Floats:
        """Return each GPU's energy (mJ) within a period, for a frame at ``ts``; 0 where unknown."""
        ended = np.full(len(self.ms), ts)
        parts: Floats = np.nan_to_num(self.mj * _shares(ended - self.ms / 1000, ended, start, until, power))
        return parts


def _shares(began: Floats, ended: Floats, start: float, until: float, power: Series) -> Floats:
    """Return the part of each GPU's step that lies in a period, by the power × time of its samples.

    Time without samples has their mean power. The step of an unknown GPU, or over more than a gauge may
    stand for, goes by time. ``store/figures`` has the same in SQL.
    """
    times, watts, intervals = power
    known, watts = np.isfinite(watts), np.nan_to_num(watts).astype(np.float64)

    def seconds(since: Floats, until: Floats) -> Floats:
        starts = np.maximum((times - np.nan_to_num(intervals))[:, None], since)
        return np.where(known, np.maximum(np.minimum(times[:, None], until) - starts, 0.0), 0.0)

    first, last = np.maximum(began, start), np.minimum(ended, until)
    of_step, inside = seconds(began, ended), seconds(first, last)
    with np.errstate(invalid="ignore", divide="ignore"):
        more_s = (watts * inside).sum(0) * of_step.sum(0) / (watts * of_step).sum(0) - inside.sum(0)
        by_time = np.isnan(more_s) | (ended - began > MAX_GAUGE_MS / 1000)
        parts: Floats = (np.maximum(last - first, 0.0) + np.where(by_time, 0.0, more_s)) / (ended - began)
    return parts


class GpuEnergy(NamedTuple):
    """A GPU's last counter value (mJ, NaN: never read), its time, and the energy used so far (mJ)."""

    counter_mj: float
    at: float
    used_mj: float


UNKNOWN = GpuEnergy(math.nan, math.nan, 0.0)


class EnergyMeters(NamedTuple):
    """``GpuEnergy`` of each GPU of a node, as arrays; ``at`` is one time if all counters have the same."""

    counter_mj: Floats
    at: Floats | float
    used_mj: Floats

    @classmethod
    def of(cls, gpus: Iterable[GpuEnergy]) -> EnergyMeters:
        """Build the arrays."""
        return cls(*np.array([*gpus]).reshape(-1, 3).T)

    @property
    def gpus(self) -> list[GpuEnergy]:
        """The values of each GPU."""
        columns = (one.tolist() for one in np.broadcast_arrays(*self))
        return [GpuEnergy(*values) for values in zip(*columns, strict=True)]

    def measure(
        self, counters: Floats, power_w: Floats, ts: float, interval_s: float | None
    ) -> tuple[EnergyUsed, EnergyMeters]:
        """Return the energy of a frame with these counters (mJ), and the meters after it.

        ``interval_s`` is None after a gap.
        """
        # One time for all GPUs means that their counters were read in the same frame, as is usual. Most
        # frames then have no counter, and a frame that has all of them needs no decision for each GPU.
        if isinstance(self.at, float):
            if np.isnan(counters).all():
                return EnergyUsed(*np.full((2, len(counters)), np.nan)), self
            grown, since_ms = counters - self.counter_mj, float(round((ts - self.at) * 1000))
            if since_ms > 0 and (grown >= 0).all():
                used = EnergyUsed(grown, np.full(len(grown), since_ms))
                return used, EnergyMeters(counters, ts, self.used_mj + grown)
        used = self._decide(counters, power_w, ts, interval_s)
        return used, self.after(counters, ts, used)

    def _decide(self, counters: Floats, power_w: Floats, ts: float, interval_s: float | None) -> EnergyUsed:
        covers_ms = np.rint((ts - self.at) * 1000)
        with np.errstate(invalid="ignore"):
            mj = np.maximum(counters - self.counter_mj, 0.0)
            known = np.isfinite(mj) & (covers_ms > 0)
        interval_ms = math.nan if interval_s is None else round(interval_s * 1000)
        no_counter = np.isnan(counters) & np.isnan(self.counter_mj)
        mj = np.where(known, mj, np.where(no_counter, np.rint(power_w * interval_ms), np.nan))
        return EnergyUsed(mj, np.where(np.isnan(mj), np.nan, np.where(known, covers_ms, interval_ms)))

    def after(self, counters: Floats, ts: float, used: EnergyUsed) -> EnergyMeters:
        """Return the meters after a frame with this energy; counters that were read later keep their values.

        If they keep none, ``counter_mj`` is ``counters``.
        """
        answered = np.isfinite(counters)
        total = self.used_mj + np.where(np.isnan(used.mj), 0.0, used.mj)
        newer = answered & ~(ts <= self.at)
        if newer.all():
            return EnergyMeters(counters, ts, total)
        at = np.where(newer, ts, self.at)
        return EnergyMeters(np.where(newer, counters, self.counter_mj), at, total)


def used_since(power: Series, totals: Singles, start: float) -> float:
    """Return the joules that GPUs used since a time, from their totals (mJ) of shape (frames, GPUs)."""
    # The step of each GPU that the time cuts: when it began and ended, its energy, and the energy after it.
    cut = np.full((totals.shape[1], 4), np.nan)
    for gpu, total in enumerate(totals.T.astype(np.float64)):
        known = np.isfinite(total)
        if len(read := total[known]):
            times = power[0][known]
            after = int(np.searchsorted(times, start, side="right"))
            low, high = max(0, after - 1), min(after, len(read) - 1)
            cut[gpu] = times[low], times[high], read[high] - read[low], read[-1] - read[high]
    began, ended, cut_mj, rest_mj = cut.T
    parts_mj = np.nan_to_num(cut_mj * _shares(began, ended, start, math.inf, power))
    return float((parts_mj + np.nan_to_num(rest_mj)).sum()) / 1000
