"""List of the sessions or recordings in a file, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import Figures, summarize_all
from gswarm_tui.analysis.summary_text import TextTable, local_time, share
from gswarm_tui.common.quantities import DASH, duration, energy, percent
from gswarm_tui.store.querying.results import QuerySource, Result


@dataclass(frozen=True)
class ListedPeriod:
    """A period with its figures: ``whole`` is None if no GPU was sampled.

    Of ``nodes`` nodes, ``complete`` cover all of it. ``status`` is empty if it has no end and isn't running.
    """

    period: Period
    status: str
    whole: Figures | None
    nodes: int
    complete: int


PERIODS_AT_ONCE = 16
"""Periods of one query, which holds the samples at the edges of each."""


def list_periods(
    source: QuerySource, periods: Sequence[Period], report: Callable[[float], None]
) -> list[ListedPeriod]:
    """Summarize all periods. Raises StoreError. ``report`` gets the share done, from 0 to 1."""
    listed: list[ListedPeriod] = []
    for begin in range(0, len(periods), PERIODS_AT_ONCE):
        report(begin / len(periods))
        for summary in summarize_all(source, periods[begin : begin + PERIODS_AT_ONCE]):
            period, covered = summary.period, len(summary.covered)
            status = period.status if period.ended_at is not None or summary.running else ""
            complete = covered - len(summary.partial)
            listed.append(ListedPeriod(period, status, summary.whole, covered, complete))
    return listed


_ENDED = {"stopped": "ended"}
"""As on the screens, a session that was stopped has ended; data has the status as it is recorded."""


def period_table(listed: Sequence[ListedPeriod]) -> TextTable:
    """Return the list as a table, with local times."""
    rows = [
        (
            "" if one.period.session_id is None else str(one.period.session_id),
            one.period.name,
            f"{local_time(one.period.started_at, None):%Y-%m-%d %H:%M}",
            duration(one.period.seconds),
            _ENDED.get(one.status, one.status) or "no end",
            str(one.whole.gpus) if one.whole else DASH,
            percent(one.whole.util_mean_pct if one.whole else None),
            energy(one.whole.energy_j if one.whole else None),
            share(one.whole.coverage if one.whole else None),
            one.period.note,
        )
        for one in listed
    ]
    names = ("id", "session", "started", "duration", "status", "GPUs", "util", "energy", "coverage", "note")
    return TextTable(names, rows, frozenset({0, 2, 3, 5, 6, 7, 8}))


def partial_note(listed: Sequence[ListedPeriod]) -> str:
    """Return a note that lists the periods with partial data, but not those without any; it may be empty."""
    parts = [
        f"{one.period.name} ({one.complete:,} of {one.nodes:,} nodes)"
        for one in listed
        if one.whole and one.complete < one.nodes
    ]
    return f"partial: {', '.join(parts)}" if parts else ""


_COLUMNS: dict[str, tuple[str, Callable[[ListedPeriod], Any]]] = {
    "session_id": ("INTEGER", lambda one: one.period.session_id),
    "session": ("VARCHAR", lambda one: one.period.name),
    "recording_id": ("INTEGER", lambda one: one.period.recording_id),
    "started_at": ("TIMESTAMP", lambda one: one.period.started_at),
    "ended_at": ("TIMESTAMP", lambda one: one.period.ended_at),
    "duration_s": ("DOUBLE", lambda one: one.period.seconds),
    "status": ("VARCHAR", lambda one: one.status or None),
    "nodes": ("INTEGER", lambda one: one.nodes),
    "complete_nodes": ("INTEGER", lambda one: one.complete),
    "gpus": ("BIGINT", lambda one: one.whole and one.whole.gpus),
    "util_mean_pct": ("DOUBLE", lambda one: one.whole and one.whole.util_mean_pct),
    "energy_j": ("DOUBLE", lambda one: one.whole and one.whole.energy_j),
    "energy_kwh": ("DOUBLE", lambda one: one.whole and one.whole.energy_kwh),
    "coverage": ("DOUBLE", lambda one: one.whole and one.whole.coverage),
    "note": ("VARCHAR", lambda one: one.period.note),
}


def period_result(listed: Sequence[ListedPeriod]) -> Result:
    """Return the list as data: times in UTC, ended_at NULL while a session runs."""
    rows = [tuple(value(one) for _, value in _COLUMNS.values()) for one in listed]
    return Result(tuple(_COLUMNS), tuple(kind for kind, _ in _COLUMNS.values()), iter([rows]))
