"""Runs side by side: how much faster, how well the added GPUs were used, and what differs most."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gswarm_tui.analysis.sheet import part_of, share, throttled_s
from gswarm_tui.analysis.spans import Span
from gswarm_tui.analysis.summary import Figures, Summary
from gswarm_tui.common.quantities import clock, energy, mebibytes, watts
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.views import MARK_VALUES, MARKS


@dataclass(frozen=True)
class Run:
    """A session to compare: how it is called, its file, its summary, and the final values of its marks."""

    label: str
    file: str
    summary: Summary
    whole: Figures
    marks: dict[str, float]

    @property
    def seconds(self) -> float:
        """How long it took, or has taken so far."""
        return self.summary.span.seconds

    @property
    def balance(self) -> float | None:
        """How evenly the GPUs were used: the mean of their mean utilisations over the highest; 1 is even.

        It is POP's load balance (average over maximum) with utilisation for useful computation.
        """
        means = [gpu.util_mean_pct for gpu in self.summary.gpus if gpu.util_mean_pct is not None]
        return sum(means) / len(means) / max(means) if means and max(means) > 0 else None

    @property
    def throttled(self) -> float | None:
        """The share of the measured time that was spent throttled."""
        return part_of(throttled_s(self.whole), self.whole.measured_s)


def speed_up(first_s: float, then_s: float) -> float | None:
    """How many times as fast the other is, None without a duration."""
    return first_s / then_s if then_s > 0 else None


def efficiency(first_s: float, first_gpus: int, then_s: float, then_gpus: int) -> float | None:
    """Scaling efficiency T1 / (n · Tn), where n is how many times the first's GPUs the other has.

    It is for the same work done by both. None without a duration.
    """
    cost = then_s * then_gpus
    return first_s * first_gpus / cost if cost > 0 else None


def final_values(source: QuerySource, span: Span) -> dict[str, float]:
    """The newest number of each name that marks of the span carry. Raises StoreError."""
    found = source.ask(
        f"WITH marks AS ({MARKS}) SELECT key, arg_max(value, ts) FROM ({MARK_VALUES}) "  # noqa: S608
        "WHERE recording_id = ? AND ts >= ?::TIMESTAMP AND ts < ?::TIMESTAMP AND value IS NOT NULL "
        "GROUP BY key ORDER BY key",
        span.recording_id,
        span.started_at,
        span.until,
    )
    return dict(found.rows())


_RELATIVE = 0.08
"""Runs of the same on other GPUs of one kind take 8 % more or less on average (Sinha et al., SC 2022)."""
_POINTS = 0.05
"""GPUs whose means are spread by no more than 5 % count as balanced (ClusterCockpit, Omnistat)."""
_TELLING = 2.0
"""A difference is worth telling from twice of what is usual."""


@dataclass(frozen=True)
class _Quantity:
    """Something that runs differ in; ``of_gpu`` gives it for one GPU, whose spread is usual, too.

    What ``adds_up`` grows as long as a run goes on.
    """

    name: str
    of: Callable[[Run], float | None]
    shown: Callable[[float | None], str]
    relative: bool
    of_gpu: Callable[[Figures], float | None] | None = None
    adds_up: bool = False


def _util(one: Figures) -> float | None:
    return part_of(one.util_mean_pct, 100)


def _throttled(one: Figures) -> float | None:
    return part_of(throttled_s(one), one.measured_s)


_QUANTITIES = (
    _Quantity(
        "GPU time", lambda run: run.seconds * run.whole.gpus, lambda s: clock(s or 0), True, adds_up=True
    ),
    _Quantity("energy", lambda run: run.whole.energy_j, energy, True, adds_up=True),
    _Quantity("mean utilisation", lambda run: _util(run.whole), share, False, _util),
    _Quantity("balance", lambda run: run.balance, share, False),
    _Quantity("bubbles", lambda run: run.whole.bubble_share, share, False, lambda one: one.bubble_share),
    _Quantity("throttling", lambda run: run.throttled, share, False, _throttled),
    _Quantity("power", lambda run: run.whole.power_mean_w, watts, True, lambda one: one.power_mean_w),
    _Quantity(
        "peak GPU memory",
        lambda run: run.whole.mem_used_max_mib,
        mebibytes,
        True,
        lambda one: one.mem_used_max_mib,
    ),
)


def difference(runs: Sequence[Run]) -> str:
    """A sentence on what differs most from the first run, measured by what is usual.

    Usual is the spread over the GPUs of one run, and at least what runs of the same work differ by anyway.
    """
    found = [
        (times, quantity, run)
        for run in runs[1:]
        for quantity in _QUANTITIES
        if not (quantity.adds_up and (run.summary.running or runs[0].summary.running))
        and (times := _times_usual(quantity, runs[0], run)) is not None
        and times >= _TELLING
    ]
    if not found:
        return "Nothing differs more than runs of the same work usually do."
    times, quantity, run = max(found, key=lambda one: one[0])
    first = runs[0]
    return (
        f"What differs most is {quantity.name}: {quantity.shown(quantity.of(run))} in {run.label}, "
        f"{quantity.shown(quantity.of(first))} in {first.label}; that is {times:.0f} times what is usual "
        "between runs of the same work."
    )


def _times_usual(quantity: _Quantity, first: Run, then: Run) -> float | None:
    a, b = quantity.of(first), quantity.of(then)
    if a is None or b is None:
        return None
    if not quantity.relative:
        return abs(b - a) / max(_POINTS, _spread(quantity, first, then))
    middle = (a + b) / 2
    return abs(b - a) / max(_RELATIVE * middle, _spread(quantity, first, then)) if middle > 0 else None


def _spread(quantity: _Quantity, *runs: Run) -> float:
    """The standard deviation over the GPUs of a run, of several their quadratic mean; 0 where not known."""
    if (of_gpu := quantity.of_gpu) is None:
        return 0.0
    each = [[v for gpu in run.summary.gpus if (v := of_gpu(gpu)) is not None] for run in runs]
    return math.sqrt(sum(_variance(values) if values else 0.0 for values in each) / len(each))


def _variance(values: Sequence[float]) -> float:
    """Of all there is; ``statistics`` would bring half a MiB of fractions and decimals for it."""
    middle = math.fsum(values) / len(values)
    return math.fsum((value - middle) ** 2 for value in values) / len(values)
