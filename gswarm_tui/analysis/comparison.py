"""Comparison of runs: speed-up, efficiency, and the table of figures."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from itertools import accumulate, compress
from pathlib import Path
from typing import Any

from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import Figures, Summary, summarize
from gswarm_tui.analysis.summary_text import TextTable, local_time, part_of, share, throttled_s
from gswarm_tui.common.errors import UserError, printable
from gswarm_tui.common.quantities import DASH, duration, energy, first_of, formatted, percent, used_of, watts
from gswarm_tui.slurm import hosts
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.store.sql.views import MARK_VALUES, MARKS


@dataclass(frozen=True)
class ComparedRun:
    """A session to compare: its label, file, summary, and the final values of its marks.

    ``run`` is the name that exports give its recording, the same in all copies.
    """

    label: str
    file: str
    summary: Summary
    whole: Figures
    marks: dict[str, float]
    run: str

    @property
    def seconds(self) -> float:
        """Duration of the session; up to now while it runs."""
        return self.summary.period.seconds

    @property
    def gpu_s(self) -> float:
        """GPU time of the session in seconds: its duration times its GPUs."""
        return self.seconds * self.whole.gpus

    @property
    def balance(self) -> float | None:
        """Load balance of all GPUs."""
        return balance(self.summary.gpus)

    @property
    def throttled(self) -> float | None:
        """Share of the measured time that was throttled."""
        return part_of(throttled_s(self.whole), self.whole.measured_s)


def balance(gpus: Sequence[Figures]) -> float | None:
    """Return the load balance of GPUs: the mean of their mean utilisations over the highest; 1 is even.

    This is POP's load balance (average over maximum), with utilisation for useful computation.
    """
    means = [gpu.util_mean_pct for gpu in gpus if gpu.util_mean_pct is not None]
    return sum(means) / len(means) / max(means) if means and max(means) > 0 else None


def load_run(source: QuerySource, period: Period, label: str) -> ComparedRun:
    """Return a period to compare. Raises UserError if it has no samples, StoreError."""
    from gswarm_tui.store.transfer.parquet import RUN  # late: it loads NumPy

    summary = summarize(source, period)
    if summary.whole is None:
        raise UserError(f"{label} in {printable(str(source.path))} has no GPU samples to compare.")
    query = f"SELECT {RUN} FROM recordings WHERE recording_id = ?"  # noqa: S608 (own names)
    ((name,),) = source.query(query, period.recording_id).rows()
    marks = final_mark_values(source, period)
    return ComparedRun(label, str(source.path), summary, summary.whole, marks, name)


def without_copies(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return each session of a run once, of several copies the longest one."""
    by_length = sorted(runs, key=lambda one: one.seconds)
    return list(
        {(one.run, one.summary.period.name, one.summary.period.started_at): one for one in by_length}.values()
    )


def final_mark_values(source: QuerySource, period: Period) -> dict[str, float]:
    """Return the newest value of each name in a period's marks. Raises StoreError."""
    result = source.query(
        f"WITH marks AS ({MARKS}) SELECT key, arg_max(value, ts) FROM ({MARK_VALUES}) "  # noqa: S608
        "WHERE key NOT IN ('rank', 'local_rank') AND key NOT LIKE 'dask_%/%' AND recording_id = ? "
        "AND ts >= ?::TIMESTAMP AND ts < ?::TIMESTAMP AND value IS NOT NULL "
        "GROUP BY key ORDER BY key",
        period.recording_id,
        period.started_at,
        period.until,
    )
    return dict(result.rows())


MOST_COLUMNS = 6
"""Runs that stand side by side; more have a line each."""
BASIS = (
    "Speed-up and efficiency, T1 / (n · Tn), compare durations on n times the recorded GPUs and assume equal "
    "work; gswarm-tui trial --results compares the runs of a trial."
)


def comparison_table(runs: Sequence[ComparedRun], zone: tzinfo | None = None) -> TextTable:
    """Return a table with a row for each figure and a column for each run, without empty rows."""
    several_files = len({run.file for run in runs}) > 1
    began = [local_time(run.summary.period.started_at, zone) for run in runs]
    rows: list[tuple[str, ...]] = [
        ("file", *(run.file if several_files else DASH for run in runs)),
        ("started", *(f"{at:%Y-%m-%d %H:%M:%S}" for at in began)),
        *((label, *(shown(run, runs[0]) for run in runs)) for label, shown in _TEXT_ROWS),
    ]
    names = sorted({name for run in runs for name in run.marks})
    shared = [name for name in names if sum(name in run.marks for run in runs) > 1]
    rows += [(name, *(formatted(run.marks.get(name), "{:.6g}") for run in runs)) for name in shared]
    measured = [row for row in rows if any(cell != DASH for cell in row[1:])]
    return TextTable(("", *(run.label for run in runs)), measured, frozenset(range(1, len(runs) + 1)))


def lines_table(
    runs: Sequence[ComparedRun], zone: tzinfo | None = None, *, with_total: bool = False
) -> TextTable:
    """Return the table with a line for each run, named by its session and file; marks stand before the rest.

    Files are named from the folder that all of them are in, and never cut short. ``with_total`` adds a line
    for all runs, copies left out, and leaves out what compares runs with the first one.
    """
    rows = [row for row in comparison_table(runs, zone).rows if not (with_total and row[0] in _RELATIVE)]
    later = [label for label, _ in _TEXT_ROWS if label not in _LINE_FIRST]
    rows.sort(key=lambda row: _LINE_FIRST.index(row[0]) if row[0] in _LINE_FIRST else 99 + (row[0] in later))
    if rows[0][0] == "file":
        files = [Path(run.file).absolute() for run in runs]
        folder = os.path.commonpath([file.parent for file in files])
        rows[0] = ("file", *(str(file.relative_to(folder)) for file in files))
    names, *cells = zip(*rows, strict=True)
    lines = [(run.summary.period.name, *line) for run, line in zip(runs, cells, strict=True)]
    if with_total:
        counted = without_copies(runs)
        known = totals(counted)
        lines.append((f"all {len(counted):,}", *(known.get(name, DASH) for name in names)))
    return TextTable(("session", *names), lines, frozenset(range(1, len(names) + 1)))


Number = Callable[[ComparedRun], float | None]


def totals(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """Return the figures of all runs by name in the table: sums, means and quantiles by measured time."""

    def mean(value: Number, weight: Number = lambda run: run.whole.measured_s) -> float | None:
        known = [(found, weight(run) or 0.0) for run in runs if (found := value(run)) is not None]
        return part_of(sum(found * by for found, by in known), sum(by for _, by in known))

    util_us = sum((Counter(run.summary.util_us) for run in runs), Counter[int]())

    def quantile(percentage: int) -> int | None:
        upto = accumulate(us for _, us in sorted(util_us.items()))
        reached = (100 * us >= percentage * util_us.total() for us in upto)
        return next(compress(sorted(util_us), reached), None)

    joules = [run.whole.energy_j for run in runs if run.whole.energy_j is not None]
    busy = mean(lambda run: part_of(run.whole.busy_s, run.whole.measured_s))
    return {
        "nodes": str(len({node.node for run in runs for node in run.summary.covered})),
        "GPUs": str(len({gpu.label for run in runs for gpu in run.summary.gpus if gpu.gpus})),
        "duration": duration(sum(run.seconds for run in runs)),
        "energy": energy(sum(joules) if joules else None),
        "power per GPU": watts(mean(lambda run: run.whole.power_mean_w)),
        "utilisation": percent(mean(lambda run: run.whole.util_mean_pct)),
        "median util": percent(quantile(50)),
        "p95 util": percent(quantile(95)),
        "busy": share(busy),
        "coverage": share(mean(lambda run: run.whole.coverage, lambda run: run.gpu_s)),
    }


def comparison_notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield notes on the table: assumptions, and running or partial runs."""
    yield BASIS
    yield from partial_notes(runs)


def partial_notes(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield notes on running and partial runs."""
    if running := [run.label for run in runs if run.summary.running]:
        names = first_of(running, MOST_COLUMNS)
        yield f"Still running: {names}; figures are as of now, without speed-up until the end."
    without_end = [r.label for r in runs if r.summary.period.ended_at is None and not r.summary.running]
    if without_end:
        yield f"No recorded end: {first_of(without_end, MOST_COLUMNS)}; figures go up to the last sample."
    if len(runs) > MOST_COLUMNS:
        if partial := [run.label for run in runs if run.summary.partial or run.summary.silent]:
            names = first_of(partial, MOST_COLUMNS)
            yield f"Not all nodes cover {names}; gswarm-tui summary names the nodes."
        return
    for run in runs:
        if run.summary.partial:
            all_of_them = len(run.summary.covered)
            complete = all_of_them - len(run.summary.partial)
            yield f"{run.label} is partial: {complete:,} of {all_of_them:,} nodes cover all of it."
        if run.summary.silent:
            yield f"{run.label} has no samples of {hosts.fold(run.summary.silent)}."


def comparable(first: ComparedRun, run: ComparedRun) -> bool:
    """Return whether both runs have ended; only then can they have done the same work."""
    return not (first.summary.running or run.summary.running)


def speed_up(first: ComparedRun, run: ComparedRun) -> float | None:
    """Return how many times as fast a run is as the first one; None if they aren't comparable."""
    return part_of(first.seconds, run.seconds) if comparable(first, run) else None


def _energy_ratio(first: ComparedRun, run: ComparedRun) -> float | None:
    return part_of(run.whole.energy_j, first.whole.energy_j) if comparable(first, run) else None


def efficiency(first: ComparedRun, run: ComparedRun) -> float | None:
    """Return the scaling efficiency T1 / (n · Tn); n is a run's GPUs relative to those of the first one."""
    return part_of(first.gpu_s, run.gpu_s) if comparable(first, run) else None


_LINE_FIRST = ("file", "duration", "speed-up", "utilisation", "energy", "GPUs", "nodes", "started")
"""Figures at the start of a line; a narrow terminal hides others."""
_RELATIVE = ("speed-up", "efficiency", "energy ratio")
_TEXT_ROWS: tuple[tuple[str, Callable[[ComparedRun, ComparedRun], str]], ...] = (
    ("nodes", lambda run, _: str(len(run.summary.covered))),
    ("GPUs", lambda run, _: str(run.whole.gpus)),
    ("duration", lambda run, _: duration(run.seconds) + (" so far" if run.summary.running else "")),
    ("speed-up", lambda run, first: formatted(speed_up(first, run), "{:.2f} ×")),
    ("efficiency", lambda run, first: formatted(efficiency(first, run), "{:.1%}")),
    ("energy", lambda run, _: energy(run.whole.energy_j)),
    ("energy ratio", lambda run, first: formatted(_energy_ratio(first, run), "{:.2f} ×")),
    ("power per GPU", lambda run, _: watts(run.whole.power_mean_w)),
    ("utilisation", lambda run, _: percent(run.whole.util_mean_pct)),
    ("busy", lambda run, _: share(part_of(run.whole.busy_s, run.whole.measured_s))),
    ("balance", lambda run, _: share(run.balance)),
    ("bubbles", lambda run, _: share(run.whole.bubble_share)),
    ("longest bubble", lambda run, _: duration(run.whole.bubble_longest_s)),
    ("throttled", lambda run, _: share(run.throttled)),
    ("peak memory", lambda run, _: used_of(run.whole.mem_used_max_mib, run.whole.mem_total_mib)),
    ("coverage", lambda run, _: share(run.whole.coverage)),
    ("median util", lambda run, _: percent(run.whole.util_median_pct)),
    ("p95 util", lambda run, _: percent(run.whole.util_p95_pct)),
)

_COLUMNS: dict[str, tuple[str, Callable[[ComparedRun, ComparedRun], Any]]] = {
    "run": ("VARCHAR", lambda run, _: run.label),
    "file": ("VARCHAR", lambda run, _: run.file),
    "recording_id": ("INTEGER", lambda run, _: run.summary.period.recording_id),
    "session_id": ("INTEGER", lambda run, _: run.summary.period.session_id),
    "started_at": ("TIMESTAMP", lambda run, _: run.summary.period.started_at),
    "ended_at": ("TIMESTAMP", lambda run, _: run.summary.period.ended_at),
    "duration_s": ("DOUBLE", lambda run, _: run.seconds),
    "nodes": ("INTEGER", lambda run, _: len(run.summary.covered)),
    "complete_nodes": ("INTEGER", lambda run, _: len(run.summary.covered) - len(run.summary.partial)),
    "gpus": ("INTEGER", lambda run, _: run.whole.gpus),
    "speed_up": ("DOUBLE", lambda run, first: speed_up(first, run)),
    "efficiency": ("DOUBLE", lambda run, first: efficiency(first, run)),
    "energy_j": ("DOUBLE", lambda run, _: run.whole.energy_j),
    "energy_kwh": ("DOUBLE", lambda run, _: run.whole.energy_kwh),
    "energy_ratio": ("DOUBLE", lambda run, first: _energy_ratio(first, run)),
    "power_mean_w": ("DOUBLE", lambda run, _: run.whole.power_mean_w),
    "util_mean_pct": ("DOUBLE", lambda run, _: run.whole.util_mean_pct),
    "util_median_pct": ("DOUBLE", lambda run, _: run.whole.util_median_pct),
    "util_p95_pct": ("DOUBLE", lambda run, _: run.whole.util_p95_pct),
    "busy_share": ("DOUBLE", lambda run, _: part_of(run.whole.busy_s, run.whole.measured_s)),
    "balance": ("DOUBLE", lambda run, _: run.balance),
    "bubbles": ("BIGINT", lambda run, _: run.whole.bubbles),
    "bubble_s": ("DOUBLE", lambda run, _: run.whole.bubble_s),
    "bubble_share": ("DOUBLE", lambda run, _: run.whole.bubble_share),
    "bubble_longest_s": ("DOUBLE", lambda run, _: run.whole.bubble_longest_s),
    "throttled_share": ("DOUBLE", lambda run, _: run.throttled),
    "mem_used_max_mib": ("BIGINT", lambda run, _: run.whole.mem_used_max_mib),
    "mem_total_mib": ("BIGINT", lambda run, _: run.whole.mem_total_mib),
    "coverage": ("DOUBLE", lambda run, _: run.whole.coverage),
}


def comparison_result(runs: Sequence[ComparedRun]) -> Result:
    """Return the comparison as data: a row for each run, and a column for each mark's final value."""
    names = sorted({name for run in runs for name in run.marks})
    rows = [
        tuple(value(run, runs[0]) for _, value in _COLUMNS.values()) + tuple(map(run.marks.get, names))
        for run in runs
    ]
    return Result(
        (*_COLUMNS, *(f"mark_{name}" for name in names)),
        (*(kind for kind, _ in _COLUMNS.values()), *("DOUBLE" for _ in names)),
        iter([rows]),
    )
