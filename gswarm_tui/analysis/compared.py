"""A comparison as a table for people and as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from typing import Any

from gswarm_tui.analysis.compare import Run, efficiency, speed_up
from gswarm_tui.analysis.sheet import Table, lasting, local, part_of, share
from gswarm_tui.common.quantities import DASH, energy, percent, used_of, watts
from gswarm_tui.store.querying.results import Result

_Row = tuple[str, Callable[[Run], str]]


def table(runs: Sequence[Run], zone: tzinfo | None = None) -> Table:
    """A row a figure, a column a run; rows that say nothing are left out."""
    first = runs[0]
    several_files = len({run.file for run in runs}) > 1
    rows: list[_Row] = [
        ("file", lambda run: run.file if several_files else DASH),
        ("began", lambda run: f"{local(run.summary.span.started_at, zone):%Y-%m-%d %H:%M:%S}"),
        ("nodes", lambda run: str(len(run.summary.nodes))),
        ("GPUs", lambda run: str(run.whole.gpus)),
        ("duration", lambda run: lasting(run.seconds) + (" so far" if run.summary.running else "")),
        ("speed-up", lambda run: _times(_speed_up(first, run))),
        ("efficiency", lambda run: _exact_share(_efficiency(first, run))),
        ("energy", lambda run: energy(run.whole.energy_j)),
        ("energy ratio", lambda run: _times(_energy_ratio(first, run))),
        ("power a GPU", lambda run: watts(run.whole.power_mean_w)),
        ("utilisation", lambda run: percent(run.whole.util_mean_pct)),
        ("busy", lambda run: share(part_of(run.whole.busy_s, run.whole.measured_s))),
        ("balance", lambda run: share(run.balance)),
        ("bubbles", lambda run: share(run.whole.bubble_share)),
        ("longest bubble", lambda run: lasting(run.whole.bubble_longest_s)),
        ("throttled", lambda run: share(run.throttled)),
        ("peak memory", _memory),
        ("coverage", lambda run: share(run.whole.coverage)),
    ]
    texts = [(label, *(shown(run) for run in runs)) for label, shown in rows]
    texts += [(name, *(_value(run.marks.get(name)) for run in runs)) for name in _shared_marks(runs)]
    kept = [row for row in texts if any(cell != DASH for cell in row[1:])]
    return Table(("", *(run.label for run in runs)), kept, frozenset(range(1, len(runs) + 1)))


def remarks(runs: Sequence[Run]) -> Iterator[str]:
    """What a reader of the table must know: same work, runs that go on, nodes that don't cover theirs."""
    if _over(runs[0]):
        yield "Speed-up and efficiency, T1 / (n · Tn), are for runs that do the same work."
    running = [run.label for run in runs if run.summary.running]
    if len(running) == 1:
        yield f"{running[0]} still runs: its figures are as of now, and its work can't be compared yet."
    elif running:
        names = _listed(running)
        yield f"{names} still run: their figures are as of now, and their work can't be compared yet."
    endless = [r.label for r in runs if r.summary.span.ended_at is None and not r.summary.running]
    if len(endless) == 1:
        yield f"{endless[0]} has no end: it is taken up to its last sample."
    elif endless:
        yield f"{_listed(endless)} have no end: each is taken up to its last sample."
    for run in runs:
        if run.summary.partial:
            all_of_them = len(run.summary.covered)
            complete = all_of_them - len(run.summary.partial)
            yield f"{run.label} is partial: {complete:,} of {all_of_them:,} nodes cover all of it."


def _listed(labels: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _over(*runs: Run) -> bool:
    """Whether none of them still runs: only then may they have done the same work."""
    return not any(run.summary.running for run in runs)


def _speed_up(first: Run, run: Run) -> float | None:
    return speed_up(first.seconds, run.seconds) if _over(first, run) else None


def _energy_ratio(first: Run, run: Run) -> float | None:
    return part_of(run.whole.energy_j, first.whole.energy_j) if _over(first, run) else None


def _efficiency(first: Run, run: Run) -> float | None:
    if not _over(first, run):
        return None
    return efficiency(first.seconds, first.whole.gpus, run.seconds, run.whole.gpus)


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f} ×"


def _exact_share(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def _memory(run: Run) -> str:
    return used_of(run.whole.mem_used_max_mib, run.whole.mem_total_mib)


def _value(value: float | None) -> str:
    return DASH if value is None else f"{value:.6g}"


def _shared_marks(runs: Sequence[Run]) -> list[str]:
    """Names of values that at least two runs have."""
    names = sorted({name for run in runs for name in run.marks})
    return [name for name in names if sum(name in run.marks for run in runs) > 1]


_COLUMNS: dict[str, tuple[str, Callable[[Run, Run], Any]]] = {
    "run": ("VARCHAR", lambda run, _: run.label),
    "file": ("VARCHAR", lambda run, _: run.file),
    "recording_id": ("INTEGER", lambda run, _: run.summary.span.recording_id),
    "session_id": ("INTEGER", lambda run, _: run.summary.span.session_id),
    "started_at": ("TIMESTAMP", lambda run, _: run.summary.span.started_at),
    "ended_at": ("TIMESTAMP", lambda run, _: run.summary.span.ended_at),
    "duration_s": ("DOUBLE", lambda run, _: run.seconds),
    "nodes": ("INTEGER", lambda run, _: len(run.summary.nodes)),
    "complete_nodes": ("INTEGER", lambda run, _: len(run.summary.covered) - len(run.summary.partial)),
    "gpus": ("INTEGER", lambda run, _: run.whole.gpus),
    "speed_up": ("DOUBLE", lambda run, first: _speed_up(first, run)),
    "efficiency": ("DOUBLE", lambda run, first: _efficiency(first, run)),
    "energy_j": ("DOUBLE", lambda run, _: run.whole.energy_j),
    "energy_kwh": ("DOUBLE", lambda run, _: run.whole.energy_kwh),
    "energy_ratio": ("DOUBLE", lambda run, first: _energy_ratio(first, run)),
    "power_mean_w": ("DOUBLE", lambda run, _: run.whole.power_mean_w),
    "util_mean_pct": ("DOUBLE", lambda run, _: run.whole.util_mean_pct),
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


def answer(runs: Sequence[Run]) -> Result:
    """A row a run as data: times in UTC, units in the names, then a column a mark's final value."""
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
