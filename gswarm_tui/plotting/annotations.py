"""Annotations of a period: marks with their values, warnings and errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gswarm_agent.frame import INFO
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.fleet.events import json_object
from gswarm_tui.store.figures.definitions import MINE
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.sql.first_events import first_events

MARK = "mark"
MOST_EVENTS = 20_000
"""Events of a period that are read, the earliest; more would fill memory and hide each other."""
LARGEST_VALUE = 1e100
"""Larger values of marks are not drawn: the axis would overflow."""


@dataclass(frozen=True)
class SessionMark:
    """A mark, ``at`` seconds after the period's start."""

    at: float
    label: str
    values: dict[str, float]


@dataclass(frozen=True)
class Incident:
    """A warning or error, ``at`` seconds after the period's start."""

    at: float
    kind: str
    severity: str


_EVENTS = first_events(
    "e.kind, e.severity, coalesce(e.message, '') AS message, e.detail",
    f"g.{MINE} AND (e.kind = '{MARK}' OR e.severity <> '{INFO}')",
    MOST_EVENTS,
)


@dataclass(frozen=True)
class Annotations:
    """Marks and incidents of a period by time; later ones weren't read if it is not ``complete``."""

    marks: list[SessionMark]
    incidents: list[Incident]
    complete: bool


def load_annotations(source: QuerySource, period: Period) -> Annotations:
    """Return the annotations of a period. Raises StoreError."""
    marks, incidents = [], []
    rows = source.query(_EVENTS, period.recording_id, period.started_at, period.until).dicts()
    for row in rows:
        at = _seconds(period, row["ts"])
        if row["kind"] == MARK:
            marks.append(SessionMark(at, row["message"], numbers(row["detail"])))
        else:
            incidents.append(Incident(at, row["kind"], row["severity"]))
    return Annotations(marks, incidents, len(rows) < MOST_EVENTS)


def numbers(detail: object) -> dict[str, float]:
    """Return the numeric values of a mark from its detail."""
    return {
        name: float(value)
        for name, value in json_object(detail).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_VALUE
    }


def value_names(marks: Iterable[SessionMark]) -> list[str]:
    """Return the names of all values in order of appearance."""
    return list(dict.fromkeys(name for mark in marks for name in mark.values))


def require_values(wanted: Sequence[str], marks: Sequence[SessionMark], period: Period) -> None:
    """Raise UserError for a name without a value in any mark."""
    known = value_names(marks)
    for name in wanted:
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(known) or 'none'}"
            raise UserError(f"no mark of {quote(period.name)} has a value {quote(name)}{hint}.")


def _seconds(period: Period, at: datetime) -> float:
    return (at - period.started_at).total_seconds()
