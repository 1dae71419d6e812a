"""Results of a trial as text: the sentence, the tables for terminals and tickets, and notes on them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from gswarm_agent.redact import redact
from gswarm_tui.analysis.summary_text import TextTable, share
from gswarm_tui.common.errors import printable
from gswarm_tui.common.quantities import (
    DASH,
    duration,
    energy,
    formatted,
    gpu_time,
    percent,
)
from gswarm_tui.trials.results import (
    PlacementResult,
    TrialResults,
)

KNEE = "*"
"""Sign at the knee in tables."""


def command_text(results: TrialResults) -> str:
    """Return the command as one printable line without secrets."""
    return printable(shlex.join(redact(list(results.plan.command))))


def sentence(results: TrialResults) -> str:
    """Return the result in a sentence: the knee and the largest placement."""
    baseline, knee = results.baseline, results.knee
    if baseline is None:
        return "No run has completed, so there is nothing to compare."
    if knee is None:
        per_s = f"{_three(baseline.throughput)} per second"
        measured = per_s if results.plan.higher_is_better else duration(baseline.wall_s)
        return f"{baseline.placement}: {measured}; nothing to compare it with."
    largest = max(results.compared, key=lambda row: (row.size or 0.0, row.speed_up or 0.0))
    shown = [knee] if knee is largest else [row for row in (knee, largest) if row is not baseline]
    parts: list[str] = []
    for row in shown:
        times = f"{row.speed_up:.1f} ×" + ("" if parts else " as fast")
        parts.append(f"{row.placement}: {times}, {share(row.efficiency)}")
    if knee is baseline:
        parts.append(f"the knee is {baseline.placement}")
    return "; ".join(parts) + "."


_Column = tuple[str, Callable[[PlacementResult], str]]


def result_table(results: TrialResults) -> TextTable:
    """Return time, speed-up, efficiency and cost of each placement, and how busy its GPUs were."""
    measured: _Column = (
        ("per s", lambda row: _three(row.throughput))
        if results.plan.higher_is_better
        else ("time", lambda row: duration(row.wall_s))
    )
    columns: list[_Column] = [
        ("nodes", lambda row: str(row.placement.nodes)),
        ("GPUs", lambda row: str(row.placement.gpus)),
        measured,
        ("±", lambda row: DASH if row.spread is None else f"{100 * row.spread:.1f} %"),
        ("speed-up", lambda row: formatted(row.speed_up, "{:.2f} ×")),
        (
            "efficiency",
            lambda row: (f"{KNEE} " if row is results.knee else "") + formatted(row.efficiency, "{:.1%}"),
        ),
        ("GPU time", lambda row: gpu_time(row.gpu_s).replace("GPU-", "")),
        ("energy", lambda row: energy(row.energy_j)),
        ("util", lambda row: percent(row.util_mean_pct)),
    ]
    rows = [tuple(of(row) for _, of in columns) for row in results.rows]
    return TextTable(tuple(name for name, _ in columns), rows, frozenset(range(len(columns))))


def notes(results: TrialResults) -> Iterator[str]:
    """Yield notes on the tables: the knee, what figures refer to, and runs that aren't averaged."""
    if (baseline := results.baseline) is None:
        yield from _incomplete(results)
        return
    if results.knee is not None:
        yield f"Knee ({KNEE}): {results.knee.placement}, where speed-up × efficiency is highest."
        work = "" if results.plan.higher_is_better else ", and assume equal work"
        yield (
            "Speed-up and efficiency, T1 / (n · Tn), compare medians with those of "
            f"{baseline.placement}, on n times the GPUs{work}."
        )
    per = "per run"
    if results.plan.higher_is_better:
        per = f"per {results.plan.unit:,} of the throughput's unit"
    yield f"GPU time and energy are {per}; ± is half the range of the runs."
    yield from _incomplete(results)


def _incomplete(results: TrialResults) -> Iterator[str]:
    for outcome in (run.outcome for run in results.incomplete):
        reason = outcome.reason or ("no throughput in its output" if outcome.ok else outcome.status)
        took = duration(outcome.wall_s)
        yield f"Not averaged: {outcome.run}: {printable(reason).rstrip('.')} ({took})."


def _three(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
