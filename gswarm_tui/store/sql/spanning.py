"""The spans of time that are summed up, and the GPUs that belong to each, as relations in SQL. Only text.

Statements made of these begin with a relation ``spans`` (session_id, recording_id, started_at, until).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True)
class Spans:
    """The relation ``spans``, and what is true of the times of all samples in it, as constants if it can be.

    Constants let DuckDB pass over stored samples far from them.
    """

    relation: str
    began: datetime | None = None
    until: datetime | None = None

    @property
    def inside(self) -> str:
        """A condition on the time of a sample ``s`` of a member ``m``: the span holds it."""
        if self.began is None or self.until is None:
            return "s.ts >= m.started_at AND s.ts < m.until"
        return f"s.ts >= {_time(self.began)} AND s.ts < {_time(self.until)}"

    def around_begin(self, before_s: int, after_s: int) -> str:
        """The same: it is from some time before the span to some time after its begin."""
        if self.began is None or self.until is None:
            return (
                f"s.ts >= m.started_at - INTERVAL {before_s} SECOND "
                f"AND s.ts < least(m.until, m.started_at + INTERVAL {after_s} SECOND)"
            )
        first = self.began - timedelta(seconds=before_s)
        last = min(self.until, self.began + timedelta(seconds=after_s))
        return f"s.ts >= {_time(first)} AND s.ts < {_time(last)}"


def one_span(recording_id: int, began: datetime, until: datetime) -> Spans:
    """A single span of a recording."""
    relation = (
        f"spans AS (SELECT 0 AS session_id, {recording_id:d} AS recording_id, "
        f"{_time(began)} AS started_at, {_time(until)} AS until)"
    )
    return Spans(relation, began, until)


def whole(recording_id: int) -> Spans:
    """All of a recording."""
    return one_span(recording_id, datetime(1970, 1, 2), datetime(9999, 1, 1))  # noqa: DTZ001 (as DuckDB's are)


def session_spans(recording_id: int | None = None) -> Spans:
    """The sessions of a recording, or of all; one that runs goes up to the newest sample.

    The newest samples are in a single row's map, because DuckDB plans joins by how many rows it expects:
    with a row each it holds samples in memory instead of sessions.
    """
    which = "" if recording_id is None else f"WHERE e.recording_id = {recording_id:d}"
    return Spans(f"""
newest AS (
  SELECT map(list(recording_id), list(ts)) AS of_recording
  FROM (
    SELECT n.recording_id, max(h.ts) + INTERVAL 1 MICROSECOND AS ts
    FROM host_samples h JOIN nodes n USING (node_id) GROUP BY n.recording_id
  )
), spans AS (
  SELECT e.session_id, e.recording_id, e.started_at,
         coalesce(e.ended_at, r.ended_at, map_extract(of_recording, e.recording_id)[1]) AS until
  FROM sessions e
  JOIN recordings r USING (recording_id)
  CROSS JOIN newest
  {which}
)""")  # noqa: S608 (own names and a number)


SESSION_SPANS = session_spans()


def _time(at: datetime) -> str:
    return f"TIMESTAMP '{at.isoformat(sep=' ')}'"


MEMBERS = """
members AS (
  SELECT p.session_id, p.started_at, p.until, n.node, n.node_id, g.gpu_id, g.gpu_index, g.memory_total_mib,
         (dense_rank() OVER (ORDER BY p.session_id, n.node, g.gpu_index, g.uuid))::INTEGER AS member
  FROM spans p
  JOIN nodes n USING (recording_id)
  JOIN gpus g USING (node_id)
  WHERE g.allocated IS NOT FALSE
), named AS (
  SELECT member, session_id, node, gpu_index, max(gpu_id) AS gpu_id, max(node_id) AS node_id
  FROM members
  GROUP BY ALL
)"""  # A GPU of a node that was booted anew has a new row, and is the same member.
