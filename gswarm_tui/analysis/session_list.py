"""The sessions of a file, or its recordings, with what each came to."""

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
    """A span with its figures: ``whole`` is None where no GPU was sampled.

    Of ``nodes`` nodes, ``complete`` cover all of it. ``status`` is empty where it has no end and isn't being
    recorded.
    """

    span: Period
    status: str
    whole: Figures | None
    nodes: int
    complete: int


def list_periods(
    source: QuerySource, spans: Sequence[Period], done: Callable[[float], None]
) -> list[ListedPeriod]:
    """Sum up each span, one after the other, so that memory stays bounded. Raises StoreError.

    ``done`` is told the share that is done, from 0 to 1.
    """
    found: list[ListedPeriod] = []
    for span in spans:
        done(len(found) / len(spans))
        summary = summarize(source, span)
        covered = len(summary.covered)
        status = span.status if span.ended_at is not None or summary.running else ""
        found.append(ListedPeriod(span, status, summary.whole, covered, covered - len(summary.partial)))
    return found


def period_table(found: Sequence[ListedPeriod], zone: tzinfo | None = None) -> TextTable:
    """A row a span, for people: times in a zone (None is the machine's own)."""
    rows = [
        (
            "" if one.span.session_id is None else str(one.span.session_id),
            one.span.name,
            f"{local_time(one.span.started_at, zone):%Y-%m-%d %H:%M}",
            duration_text(one.span.seconds),
            one.status or "no end",
            str(one.whole.gpus) if one.whole else DASH,
            percent(one.whole.util_mean_pct if one.whole else None),
            energy(one.whole.energy_j if one.whole else None),
            share(one.whole.coverage if one.whole else None),
            one.span.note,
        )
        for one in found
    ]
    names = ("id", "session", "began", "duration", "status", "GPUs", "util", "energy", "coverage", "note")
    return TextTable(names, rows, frozenset({0, 2, 3, 5, 6, 7, 8}))


def partial_note(found: Sequence[ListedPeriod]) -> str:
    """Which spans not all nodes cover; empty where there is none."""
    parts = [
        f"{one.span.name} ({one.complete:,} of {one.nodes:,} nodes)"
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
    """The same as data: times in UTC, units in the names, ended_at NULL while a session runs."""
    return Result(tuple(_COLUMNS), tuple(_COLUMNS.values()), _batches(found))


def _batches(found: Sequence[ListedPeriod]) -> Iterator[list[tuple[Any, ...]]]:
    yield [tuple(_values(one)) for one in found]


def _values(one: ListedPeriod) -> Iterator[Any]:
    span = one.span
    yield from (span.session_id, span.name, span.recording_id, span.started_at, span.ended_at, span.seconds)
    yield from (one.status or None, one.nodes, one.complete)
    for name in ("gpus", "util_mean_pct", "energy_j", "energy_kwh", "coverage"):
        yield getattr(one.whole, name) if one.whole else None
    yield span.note
