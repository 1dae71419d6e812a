"""Periods to analyse (sessions or whole recordings), found by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gswarm_tui.common.errors import UserError, nearest, quote
from gswarm_tui.store.querying.results import QuerySource


@dataclass(frozen=True)
class Period:
    """A session, or with ``session_id`` None a whole recording. Times are naive UTC.

    ``ended_at`` is None while it runs. ``until`` is its end; without one, the newest sample's time.
    ``thinned_at`` is when ``thin`` removed its samples. ``namesakes`` are the ids of older sessions of the
    same name; ``others`` are the references of all other sessions, newest first, of one that was chosen
    without a name.
    """

    recording_id: int
    session_id: int | None
    name: str
    started_at: datetime
    ended_at: datetime | None
    until: datetime
    status: str
    note: str
    job: str
    thinned_at: datetime | None = None
    namesakes: tuple[int, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Duration of the period; up to now while it runs."""
        return max(0.0, (self.until - self.started_at).total_seconds())

    @property
    def bounds(self) -> tuple[float, float]:
        """Start and end as Unix seconds."""
        return self.started_at.replace(tzinfo=UTC).timestamp(), self.until.replace(tzinfo=UTC).timestamp()


_PERIODS = """
WITH last AS (
  SELECT n.recording_id, max(h.ts) + INTERVAL 1 MICROSECOND AS ts
  FROM host_samples h JOIN nodes n USING (node_id) GROUP BY ALL
), periods AS (
  SELECT recording_id, session_id, name, started_at, ended_at, status, note FROM sessions
  UNION ALL
  SELECT recording_id, NULL, format('recording {}', recording_id), started_at, ended_at,
         CASE WHEN ended_at IS NULL THEN 'running' ELSE 'ended' END, NULL
  FROM recordings
)
SELECT p.recording_id, p.session_id, p.name, p.started_at, coalesce(p.ended_at, r.ended_at) AS ended_at,
       greatest(p.started_at, coalesce(p.ended_at, r.ended_at, last.ts, p.started_at)) AS until,
       coalesce(p.status, '') AS status, coalesce(p.note, '') AS note, coalesce(r.slurm_job_id, '') AS job,
       r.thinned_at
FROM periods p
JOIN recordings r USING (recording_id)
LEFT JOIN last USING (recording_id)
ORDER BY p.session_id, p.recording_id
"""


def load_sessions(source: QuerySource) -> list[Period]:
    """Return all sessions of a file, oldest first. Raises UserError, StoreError."""
    return [one for one in load_periods(source) if one.session_id is not None]


def load_recordings(source: QuerySource) -> list[Period]:
    """Return all recordings of a file. Raises UserError, StoreError."""
    return [one for one in load_periods(source) if one.session_id is None]


def references(sessions: Sequence[Period]) -> list[str]:
    """Return how commands name each session: by its name, or by its number if several have that name."""
    names = [one.name for one in sessions]
    return [one.name if names.count(one.name) == 1 else str(one.session_id) for one in sessions]


def find_period(source: QuerySource, wanted: str = "") -> Period:
    """Find a session by name or number; without one, the newest session, else the newest recording.

    Of sessions with the same name, returns the newest. ``recording N`` is a whole recording.

    Raises:
        UserError: nothing matches.
        StoreError: the file can't be read.
    """
    found = load_periods(source)
    sessions = [one for one in found if one.session_id is not None]
    if not wanted:
        if sessions:
            return replace(sessions[-1], others=tuple(reversed(references(sessions)[:-1])))
        if found:
            return found[-1]
        raise UserError(
            f"{source.path} holds no recording. If an import into it was killed, repeat the import; "
            "else name another file."
        )
    if named := [one for one in sessions if one.name == wanted]:
        older = tuple(one.session_id for one in named[:-1] if one.session_id is not None)
        return replace(named[-1], namesakes=older)
    for one in found:
        if wanted == (one.name if one.session_id is None else str(one.session_id)):
            return one
    raise UserError(_unknown(source, wanted, sessions))


def load_periods(source: QuerySource) -> list[Period]:
    """Return all sessions, then all recordings. Raises StoreError."""
    return [Period(**row) for row in source.query(_PERIODS).dicts()]


def _unknown(source: QuerySource, wanted: str, sessions: Sequence[Period]) -> str:
    if not sessions:
        return (
            f"{source.path} has no session {quote(wanted)} and no others; "
            'name a whole recording, as in "recording 1".'
        )
    hint = nearest(wanted, [one.name for one in sessions]) or "; gswarm-tui sessions lists them"
    return f"{source.path} has no session {quote(wanted)}{hint}."
