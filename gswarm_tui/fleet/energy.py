"""Energy that each GPU used since the sample before, decided once, where a frame is taken in.

It is the growth of the GPU's energy counter since its last value, over lost frames and reboots; 0 where the
counter fell, as after a driver reload. A GPU without a counter used its power for the frame's interval. A
late frame of a GPU with a counter adds nothing: the step around it was counted before it arrived.
Everything else adds these steps up; a step counts in a period by the part of its time that lies in it.
docs/decisions/011-energy-once.md has the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import Frame
from gswarm_tui.fleet.history import Floats, Singles


class EnergyUsed(NamedTuple):
    """Each GPU's energy since the sample before (mJ) and the time it covers (ms), NaN where unknown."""

    mj: Floats
    ms: Floats

    @classmethod
    def unknown(cls, frame: Frame) -> EnergyUsed:
        """Return the energy of a frame of GPUs that the fleet doesn't follow."""
        return cls(*np.full((2, frame.gpus.count), np.nan))

    def within(self, ts: float, start: float, until: float) -> Floats:
        """Return each GPU's energy (mJ) within a period, for a frame at ``ts``; 0 where unknown."""
        covers_s = self.ms / 1000
        with np.errstate(invalid="ignore", divide="ignore"):
            inside = min(ts, until) - np.maximum(ts - covers_s, start)
            parts: Floats = np.nan_to_num(self.mj * np.clip(inside / covers_s, 0.0, 1.0))
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
        if isinstance(self.at, float):  # as usual: all counters were read at once, and are again
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


def used_since(times: Floats, totals: Singles, start: float) -> float:
    """Return the joules that GPUs used since a time, from their totals (mJ) of shape (frames, GPUs)."""
    used_mj = 0.0
    for total in totals.T.astype(np.float64):
        if (known := np.isfinite(total)).any():
            used_mj += float(total[known][-1] - np.interp(start, times[known], total[known]))
    return used_mj / 1000
