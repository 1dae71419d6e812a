"""Periods to analyse (sessions or whole recordings), found by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gswarm_tui.common.errors import UserError, nearest, printable, quote
from gswarm_tui.store.querying.results import QueryError, QuerySource


@dataclass(frozen=True)
class Period:
    """A session, or with ``session_id`` None a whole recording. Times are naive UTC.

    ``ended_at`` is None while it runs. ``until`` is its end; without one, the newest sample's time.
    ``namesakes`` are the ids of older sessions of the same name.
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
    namesakes: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """Its duration; up to now while it runs."""
        return max(0.0, (self.until - self.started_at).total_seconds())


_LAST = """
last AS (
  SELECT n.recording_id, max(h.ts) + INTERVAL 1 MICROSECOND AS ts
  FROM host_samples h JOIN nodes n USING (node_id) GROUP BY ALL
)"""

_SESSIONS = f"""
WITH {_LAST}
SELECT e.recording_id, e.session_id, e.name, e.started_at, coalesce(e.ended_at, r.ended_at) AS ended_at,
       greatest(e.started_at, coalesce(e.ended_at, r.ended_at, last.ts, e.started_at)) AS until,
       coalesce(e.status, '') AS status, coalesce(e.note, '') AS note, coalesce(r.slurm_job_id, '') AS job
FROM sessions e
JOIN recordings r USING (recording_id)
LEFT JOIN last USING (recording_id)
ORDER BY e.session_id
"""  # noqa: S608 (own names)

_RECORDINGS = f"""
WITH {_LAST}
SELECT r.recording_id, NULL AS session_id, format('recording {{}}', r.recording_id) AS name, r.started_at,
       r.ended_at, greatest(r.started_at, coalesce(r.ended_at, last.ts, r.started_at)) AS until,
       CASE WHEN r.ended_at IS NULL THEN 'running' ELSE 'ended' END AS status, '' AS note,
       coalesce(r.slurm_job_id, '') AS job
FROM recordings r
LEFT JOIN last USING (recording_id)
ORDER BY r.recording_id
"""  # noqa: S608 (own names)


def load_sessions(source: QuerySource) -> list[Period]:
    """Return all sessions of a file, oldest first. Raises UserError, StoreError."""
    return _load(source, _SESSIONS)


def load_recordings(source: QuerySource) -> list[Period]:
    """Return all recordings of a file. Raises UserError, StoreError."""
    return _load(source, _RECORDINGS)


def find_period(source: QuerySource, wanted: str = "") -> Period:
    """Find a session by name or number; without one, the newest session, else the newest recording.

    Of sessions with the same name, returns the newest. ``recording N`` is a whole recording.

    Raises:
        UserError: nothing matches.
        StoreError: the file can't be read.
    """
    sessions, recordings = load_sessions(source), load_recordings(source)
    if not wanted:
        if latest := (sessions or recordings)[-1:]:
            return latest[0]
        raise UserError(f"{source.path} holds no recording.")
    if named := [one for one in sessions if one.name == wanted]:
        older = tuple(one.session_id for one in named[:-1] if one.session_id is not None)
        return replace(named[-1], namesakes=older)
    numbered = [one for one in sessions if str(one.session_id) == wanted]
    if chosen := (numbered or [one for one in recordings if one.name == wanted])[-1:]:
        return chosen[0]
    raise UserError(_unknown(source, wanted, sessions))


def _load(source: QuerySource, sql: str) -> list[Period]:
    try:
        return [Period(**row) for row in source.query(sql).dicts()]
    except QueryError as error:
        tables = {name for (name,) in source.query("SELECT table_name FROM duckdb_tables()").rows()}
        if {"recordings", "sessions", "nodes", "gpus", "gpu_samples", "host_samples"} <= tables:
            raise
        words = f"{printable(str(source.path))} isn't a recording of gswarm-tui; name one with --db."
        raise UserError(words) from error


def _unknown(source: QuerySource, wanted: str, sessions: Sequence[Period]) -> str:
    if not sessions:
        return (
            f"{source.path} has no session {quote(wanted)}, nor any other; "
            'a whole recording is "recording 1".'
        )
    hint = nearest(wanted, [one.name for one in sessions]) or "; gswarm-tui sessions lists them"
    return f"{source.path} has no session {quote(wanted)}{hint}."
