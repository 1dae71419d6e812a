"""Summary of a session in plain Python, sample by sample: an independent check of the SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BUSY_FROM_PCT = 20
LONGEST_SPREAD_S = 61


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


def quantile(values: Sequence[tuple[float, float]], part: float) -> float | None:
    """Return the smallest of these values with their times that reaches a part of all the time."""
    reached, total = 0.0, sum(seconds for _, seconds in values)
    for value, seconds in sorted(values):
        reached += seconds
        if seconds and reached >= part * total - 1e-9:
            return value
    return None


def mean(values: Sequence[tuple[float, float]]) -> float | None:
    """Return the mean of these values by their times."""
    total = sum(seconds for _, seconds in values)
    return sum(value * seconds for value, seconds in values) / total if total else None


def overlap(ts: float, seconds: float | None, began: float, until: float) -> float:
    """Return how many of the seconds before a time lie in a period."""
    return max(0.0, min(ts, until) - max(ts - (seconds or 0.0), began))


def inside(samples: Sequence[Sample], began: float, until: float) -> list[tuple[Sample, float]]:
    """Return the samples of a period in order, with the seconds of it that they stand for."""
    found = [(one, overlap(one.ts, one.interval_s, began, until)) for one in samples]
    return sorted(
        (pair for pair in found if pair[1] or began < pair[0].ts <= until), key=lambda pair: pair[0].ts
    )


def sum_up(samples: Sequence[Sample], began: float, until: float) -> ExpectedSums:
    """Return the sums over a GPU's samples in a period."""
    weighted = inside(samples, began, until)
    util = [(one.util_pct, seconds) for one, seconds in weighted if one.util_pct is not None]
    power = [(one.power_w, seconds) for one, seconds in weighted if one.power_w is not None]
    measured = any(seconds for _, seconds in util)
    return ExpectedSums(
        samples=len(weighted),
        util_mean_pct=mean(util),
        util_median_pct=quantile(util, 0.5),
        util_p95_pct=quantile(util, 0.95),
        util_max_pct=max((value for value, _ in util), default=None),
        power_mean_w=mean(power),
        power_max_w=max((value for value, _ in power), default=None),
        busy_s=sum(s for value, s in util if value >= BUSY_FROM_PCT) if measured else None,
        idle_s=sum(s for value, s in util if value < BUSY_FROM_PCT) if measured else None,
        energy_j=_energy_j(sorted(samples, key=lambda sample: sample.ts), began, until),
        bubbles=_bubbles(weighted),
    )


def _energy_j(ordered: Sequence[Sample], began: float, until: float) -> float | None:
    used: list[float] = []
    before: Sample | None = None
    for one in ordered:
        mj, covers_s = None, one.interval_s
        if one.energy_mj is None:
            if before is None and one.power_w is not None and one.interval_s:
                mj = one.power_w * one.interval_s * 1000
        else:
            if before is not None and before.energy_mj is not None:
                mj, covers_s = max(0, one.energy_mj - before.energy_mj), one.ts - before.ts
            before = one
        if mj is not None and covers_s and overlap(one.ts, covers_s, began, until):
            used.append(mj * share(ordered, one.ts, covers_s, began, until))
    return sum(used) / 1000 if used else None


def share(ordered: Sequence[Sample], ts: float, covers_s: float, began: float, until: float) -> float:
    """Return the part of a step in a period by power × time; time without samples has the mean power."""
    inside_s, since = overlap(ts, covers_s, began, until), ts - covers_s
    powers = [
        (one.power_w, one.ts, one.interval_s)
        for one in ordered
        if one.power_w is not None and since < one.ts <= ts
    ]
    mean_w = mean([(power_w, overlap(at, seconds, since, ts)) for power_w, at, seconds in powers])
    if not mean_w or covers_s > LONGEST_SPREAD_S:
        return inside_s / covers_s
    parts = [
        (power_w, overlap(at, seconds, max(since, began), min(ts, until))) for power_w, at, seconds in powers
    ]
    unknown_s = inside_s - sum(seconds for _, seconds in parts)
    return (sum(power_w * seconds for power_w, seconds in parts) / mean_w + unknown_s) / covers_s


def _bubbles(weighted: Sequence[tuple[Sample, float]]) -> list[float]:
    """Return the lengths of idle phases between two busy samples, as the time that their samples cover."""
    found: list[float] = []
    phase: float | None = None
    for one, seconds in weighted:
        if one.util_pct is None:
            continue
        if one.util_pct >= BUSY_FROM_PCT:
            if phase:
                found.append(phase)
            phase = 0.0
        elif phase is not None:
            phase += seconds
    return found
