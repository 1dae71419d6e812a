"""List of the sessions or recordings of a file, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary import Figures, summarize
from gswarm_tui.analysis.summary_text import TextTable, duration_text, local_time, share
from gswarm_tui.common.quantities import DASH, energy, percent
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


def list_periods(
    source: QuerySource, periods: Sequence[Period], report: Callable[[float], None]
) -> list[ListedPeriod]:
    """Summarize each period in turn, so that memory stays bounded. Raises StoreError.

    ``report`` gets the share done, from 0 to 1.
    """
    found: list[ListedPeriod] = []
    for period in periods:
        report(len(found) / len(periods))
        summary = summarize(source, period)
        covered = len(summary.covered)
        status = period.status if period.ended_at is not None or summary.running else ""
        found.append(ListedPeriod(period, status, summary.whole, covered, covered - len(summary.partial)))
    return found


def period_table(found: Sequence[ListedPeriod], zone: tzinfo | None = None) -> TextTable:
    """Return the list as a table, with times in a zone (None: local)."""
    rows = [
        (
            "" if one.period.session_id is None else str(one.period.session_id),
            one.period.name,
            f"{local_time(one.period.started_at, zone):%Y-%m-%d %H:%M}",
            duration_text(one.period.seconds),
            one.status or "no end",
            str(one.whole.gpus) if one.whole else DASH,
            percent(one.whole.util_mean_pct if one.whole else None),
            energy(one.whole.energy_j if one.whole else None),
            share(one.whole.coverage if one.whole else None),
            one.period.note,
        )
        for one in found
    ]
    names = ("id", "session", "began", "duration", "status", "GPUs", "util", "energy", "coverage", "note")
    return TextTable(names, rows, frozenset({0, 2, 3, 5, 6, 7, 8}))


def partial_note(found: Sequence[ListedPeriod]) -> str:
    """Return a note on the periods that not all nodes cover, or nothing."""
    parts = [
        f"{one.period.name} ({one.complete:,} of {one.nodes:,} nodes)"
        for one in found
        if one.complete < one.nodes
    ]
    return f"partial: {', '.join(parts)}" if parts else ""


_COLUMNS = {
    "session_id": "INTEGER",
    "session": "VARCHAR",
    "recording_id": "INTEGER",
    "started_at": "TIMESTAMP",
    "ended_at": "TIMESTAMP",
    "duration_s": "DOUBLE",
    "status": "VARCHAR",
    "nodes": "INTEGER",
    "complete_nodes": "INTEGER",
    "gpus": "BIGINT",
    "util_mean_pct": "DOUBLE",
    "energy_j": "DOUBLE",
    "energy_kwh": "DOUBLE",
    "coverage": "DOUBLE",
    "note": "VARCHAR",
}


def period_result(found: Sequence[ListedPeriod]) -> Result:
    """Return the list as data: times in UTC, ended_at NULL while a session runs."""
    return Result(tuple(_COLUMNS), tuple(_COLUMNS.values()), _batches(found))


def _batches(found: Sequence[ListedPeriod]) -> Iterator[list[tuple[Any, ...]]]:
    yield [tuple(_values(one)) for one in found]


def _values(one: ListedPeriod) -> Iterator[Any]:
    period = one.period
    yield from (
        period.session_id,
        period.name,
        period.recording_id,
        period.started_at,
        period.ended_at,
        period.seconds,
    )
    yield from (one.status or None, one.nodes, one.complete)
    for name in ("gpus", "util_mean_pct", "energy_j", "energy_kwh", "coverage"):
        yield getattr(one.whole, name) if one.whole else None
    yield period.note
