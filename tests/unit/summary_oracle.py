"""Summary of a session in plain Python, sample by sample: an independent check of the SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

BUSY_FROM_PCT = 20


@dataclass(frozen=True)
class Sample:
    """One sample of a GPU: time [s], the time it stands for [s], utilisation, power, energy counter."""

    ts: float
    interval_s: float | None
    util_pct: int | None
    power_w: float | None = None
    energy_mj: int | None = None


@dataclass(frozen=True)
class ExpectedSums:
    """Expected sums over a GPU's samples in a session."""

    samples: int
    util_mean_pct: float | None
    util_median_pct: float | None
    util_p95_pct: float | None
    util_max_pct: int | None
    power_mean_w: float | None
    power_max_w: float | None
    busy_s: float | None
    idle_s: float | None
    energy_j: float | None
    bubbles: list[float]


def p95(values: Sequence[float]) -> float | None:
    """Return the 95th percentile, interpolated between neighbours."""
    if not values:
        return None
    ordered = sorted(values)
    place = 0.95 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def sum_up(samples: Sequence[Sample], began: float, until: float) -> ExpectedSums:
    """Return the sums over a GPU's samples from ``began`` to before ``until``."""
    ordered = sorted(samples, key=lambda sample: sample.ts)
    inside = [one for one in ordered if began <= one.ts < until]
    util = [one.util_pct for one in inside if one.util_pct is not None]
    power = [one.power_w for one in inside if one.power_w is not None]
    busy = [one for one in inside if one.util_pct is not None and one.util_pct >= BUSY_FROM_PCT]
    idle = [one for one in inside if one.util_pct is not None and one.util_pct < BUSY_FROM_PCT]
    return ExpectedSums(
        samples=len(inside),
        util_mean_pct=fmean(util) if util else None,
        util_median_pct=median(util) if util else None,
        util_p95_pct=p95(util),
        util_max_pct=max(util, default=None),
        power_mean_w=fmean(power) if power else None,
        power_max_w=max(power, default=None),
        busy_s=sum(one.interval_s or 0 for one in busy) if util else None,
        idle_s=sum(one.interval_s or 0 for one in idle) if util else None,
        energy_j=_energy_j(ordered, began, until),
        bubbles=_bubbles(inside),
    )


def _energy_j(ordered: Sequence[Sample], began: float, until: float) -> float | None:
    used: list[int] = []
    before: Sample | None = None
    for one in ordered:
        if one.energy_mj is None or one.ts >= until:
            continue
        if before is not None and before.energy_mj is not None and one.ts >= began:
            neighbours = one.interval_s is not None and one.ts - before.ts < 1.5 * one.interval_s
            if before.ts >= began or neighbours:
                used.append(max(0, one.energy_mj - before.energy_mj))
        before = one
    return sum(used) / 1000 if used else None


def _bubbles(inside: Sequence[Sample]) -> list[float]:
    """Return the lengths of idle phases between two busy samples, as the time that their samples cover."""
    found: list[float] = []
    phase: float | None = None
    for one in inside:
        if one.util_pct is None:
            continue
        if one.util_pct >= BUSY_FROM_PCT:
            if phase:
                found.append(phase)
            phase = 0.0
        elif phase is not None:
            phase += one.interval_s or 0
    return found
