"""What happened in a span beside the samples: marks with their values, events, other sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gswarm_agent.frame import ERROR, INFO, WARNING
from gswarm_tui.analysis import periods
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.store.querying.results import QuerySource

MARK = "mark"


@dataclass(frozen=True)
class PlotMark:
    """Something that the job or a person marked, ``at`` seconds after the span's begin."""

    at: float
    label: str
    node: str
    values: dict[str, float]


@dataclass(frozen=True)
class Incident:
    """An event worth a tick, ``at`` seconds after the span's begin; ``gpu`` None if it is about the node."""

    at: float
    kind: str
    severity: str
    node: str
    gpu: int | None
    message: str


@dataclass(frozen=True)
class OverlappingSession:
    """Another session, from and until seconds after the span's begin, cut to the span."""

    name: str
    begin: float
    end: float


KINDS = {
    "link_lost": "node lost",
    "unhealthy": "no data",
    "reboot": "reboot",
    "gap": "frames lost",
    "dropped": "frames lost",
    "xid": "XID",
    "ecc": "ECC error",
    "gpu_lost": "GPU lost",
    "throttle": "throttled",
}
"""Kinds of events that plots show, and what they are called there; errors of other kinds are "error"."""

_EVENTS = f"""
SELECT e.ts, e.kind, e.severity, coalesce(n.node, '') AS node, g.gpu_index AS gpu,
       coalesce(e.message, '') AS message, e.detail
FROM events e
LEFT JOIN nodes n USING (node_id)
LEFT JOIN gpus g USING (gpu_id)
WHERE e.recording_id = ? AND e.ts >= ?::TIMESTAMP AND e.ts < ?::TIMESTAMP AND g.allocated IS NOT FALSE
  AND (e.kind = '{MARK}' OR e.severity <> '{INFO}')
ORDER BY e.ts
"""  # noqa: S608 (own names)


def load_annotations(source: QuerySource, span: Period) -> tuple[list[PlotMark], list[Incident]]:
    """The marks and the troubles of a span, in the order of time. Raises StoreError."""
    marks, troubles = [], []
    for row in source.query(_EVENTS, span.recording_id, span.started_at, span.until).dicts():
        at = _seconds(span, row["ts"])
        if row["kind"] == MARK:
            marks.append(PlotMark(at, row["message"], row["node"], numbers(row["detail"])))
        elif row["kind"] in KINDS or row["severity"] not in (INFO, WARNING):
            troubles.append(
                Incident(at, row["kind"], row["severity"], row["node"], row["gpu"], row["message"])
            )
    return marks, troubles


def kind_label(trouble: Incident) -> str:
    """What a kind of event is called in a plot's key."""
    return KINDS.get(trouble.kind, ERROR)


def overlapping_sessions(source: QuerySource, span: Period) -> list[OverlappingSession]:
    """The other sessions of the same recording that overlap the span, by their begin. Raises StoreError."""
    found = [
        OverlappingSession(
            one.name,
            max(0.0, _seconds(span, one.started_at)),
            min(span.seconds, _seconds(span, one.until)),
        )
        for one in periods.load_sessions(source)
        if one.recording_id == span.recording_id
        and one.session_id != span.session_id
        and one.started_at < span.until
        and one.until > span.started_at
    ]
    return sorted(found, key=lambda one: (one.begin, -one.end))


def numbers(detail: object) -> dict[str, float]:
    """The numeric values of a mark, from its detail: a JSON object, or nothing of use."""
    try:
        found = json.loads(detail) if isinstance(detail, str) else None
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def value_names(marks: Iterable[PlotMark]) -> list[str]:
    """The names of all values, in the order in which they came first."""
    return list(dict.fromkeys(name for mark in marks for name in mark.values))


def require_values(wanted: Sequence[str], marks: Sequence[PlotMark], span: Period) -> None:
    """Raises UserError for a name that no mark has a value for."""
    known = value_names(marks)
    for name in wanted:
        if name in known:
            continue
        if not known:
            raise UserError(f"no mark of {quote(span.name)} has a value, so there is no {quote(name)}.")
        hint = nearest(name, known) or f"; there are {', '.join(known)}"
        raise UserError(f"no mark of {quote(span.name)} has a value {quote(name)}{hint}.")


def _seconds(span: Period, at: datetime) -> float:
    return (at - span.started_at).total_seconds()
