"""Results of a trial: each placement's time, speed-up, efficiency and cost, and the knee.

Failed runs are kept, but enter no figure. Speed-up and efficiency are those of ``compare``, relative to the
smallest placement with a complete run: S = T1 / Tn and E = S / n, with n times the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gswarm_tui.trials.outcome import RunOutcome
from gswarm_tui.trials.plan import PACKED, Placement, TrialPlan

SHORTEST_S, MOST_PER_S = 1e-6, 1e30
"""Shorter times, and throughputs above or below, would overflow a figure and are left out."""


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run's GPUs from its samples; None is unmeasured."""

    energy_j: float | None = None
    util_mean_pct: float | None = None
    balance: float | None = None


@dataclass(frozen=True)
class MeasuredRun:
    """A run of the command and its figures; None without samples."""

    outcome: RunOutcome
    figures: RunFigures | None = None


@dataclass(frozen=True)
class PlacementResult:
    """Medians over the complete runs of a placement; None where nothing was measured or compared.

    ``size`` is the number of GPUs relative to the baseline. ``seconds`` is the time that is compared: of a
    run, or of a unit of work. ``spread`` is half the range of the runs' times, relative to their median.
    ``gpu_s`` and ``energy_j`` are per run, or per ``TrialPlan.unit`` of work.
    """

    placement: Placement
    complete: tuple[MeasuredRun, ...]
    incomplete: tuple[MeasuredRun, ...]
    wall_s: float | None = None
    throughput: float | None = None
    seconds: float | None = None
    spread: float | None = None
    size: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    gpu_s: float | None = None
    energy_j: float | None = None
    util_mean_pct: float | None = None
    balance: float | None = None


@dataclass(frozen=True)
class TrialResults:
    """Results of a trial by placement, smallest first; ``baseline`` is what speed-ups are relative to."""

    plan: TrialPlan
    rows: tuple[PlacementResult, ...]
    warm_ups: tuple[MeasuredRun, ...]
    baseline: PlacementResult | None
    knee: PlacementResult | None

    @property
    def compared(self) -> list[PlacementResult]:
        """The placements with complete runs."""
        return [row for row in self.rows if row.complete]

    @property
    def runs(self) -> list[MeasuredRun]:
        """All runs that ended, the warm-up's too."""
        return [*(run for row in self.rows for run in (*row.complete, *row.incomplete)), *self.warm_ups]

    @property
    def incomplete(self) -> list[MeasuredRun]:
        """All runs that failed, the warm-up's too."""
        rows = [run for row in self.rows for run in row.incomplete]
        return rows + [run for run in self.warm_ups if not run.outcome.ok]


def trial_results(plan: TrialPlan, runs: Iterable[MeasuredRun]) -> TrialResults:
    """Return the results of the runs so far."""
    runs = list(runs)
    rows: list[PlacementResult] = []
    baseline: PlacementResult | None = None
    for placement in sorted(plan.placements, key=lambda one: (one.gpus, one.nodes, one.spread != PACKED)):
        row = _row(plan, placement, runs, baseline)
        rows.append(row)
        baseline = baseline or (row if row.seconds else None)
    warm_ups = tuple(run for run in runs if run.outcome.run.warm_up)
    return TrialResults(plan, tuple(rows), warm_ups, baseline, find_knee(rows))


def find_knee(rows: Sequence[PlacementResult]) -> PlacementResult | None:
    """Return the placement with the highest product of speed-up and efficiency; None for a single one.

    This is the knee of D. L. Eager, J. Zahorjan and E. D. Lazowska, IEEE Transactions on Computers 38, 1989:
    where efficiency over time is highest. Beyond it, more GPUs cost more than they speed up.
    """
    known = [row for row in rows if row.speed_up is not None and row.efficiency is not None]
    if len({row.size for row in known}) < 2:
        return None
    return max(known, key=lambda row: (row.speed_up or 0.0) * (row.efficiency or 0.0))


def _row(
    plan: TrialPlan, placement: Placement, runs: Sequence[MeasuredRun], baseline: PlacementResult | None
) -> PlacementResult:
    """Return the medians of a placement, compared with the baseline, which it is itself without another."""
    own = [run for run in runs if run.outcome.run.placement == placement and not run.outcome.run.warm_up]
    timed = [(run, seconds) for run in own if run.outcome.ok and (seconds := _seconds(plan, run)) is not None]
    complete = tuple(run for run, _ in timed)
    incomplete = tuple(run for run in own if run not in complete)
    if not timed:
        return PlacementResult(placement, complete, incomplete)
    times = [seconds for _, seconds in timed]
    middle = median(times)
    figures = [run.figures for run in complete if run.figures is not None]
    size = placement.gpus / (baseline.placement.gpus if baseline else placement.gpus)
    speed_up = (baseline.seconds or middle) / middle if baseline else 1.0
    energies = (
        run.figures.energy_j * plan.unit * seconds / run.outcome.wall_s
        for run, seconds in timed
        if run.figures is not None and run.figures.energy_j is not None
    )
    return PlacementResult(
        placement,
        complete,
        incomplete,
        wall_s=median(run.outcome.wall_s for run in complete),
        throughput=_median(run.outcome.throughput for run in complete),
        seconds=middle,
        spread=(max(times) - min(times)) / 2 / middle if len(times) > 1 else None,
        size=size,
        speed_up=speed_up,
        efficiency=speed_up / size,
        gpu_s=placement.gpus * middle * plan.unit,
        energy_j=_median(energies),
        util_mean_pct=_median(one.util_mean_pct for one in figures),
        balance=_median(one.balance for one in figures),
    )


def _seconds(plan: TrialPlan, run: MeasuredRun) -> float | None:
    """Return the time that is compared: of the run, or of a unit of its throughput."""
    wall_s, throughput = run.outcome.wall_s, run.outcome.throughput
    if wall_s < SHORTEST_S:
        return None
    if not plan.higher_is_better:
        return wall_s
    if throughput is None or not 1 / MOST_PER_S <= throughput <= MOST_PER_S:
        return None
    return 1 / throughput


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
