"""Data of a report's tables, loaded from a recording."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gswarm_tui.analysis.periods import Period
from gswarm_tui.analysis.summary_data import ProcessPeaks, Summary, processes, summarize
from gswarm_tui.fleet.thresholds import STALE_INTERVALS
from gswarm_tui.store.querying.results import QuerySource

Row = dict[str, Any]

MOST_EVENTS, MOST_GAPS, MOST_MARKS, MOST_PROCESSES = 200, 40, 200, 20


@dataclass(frozen=True)
class ReportData:
    """Rows by column name: the recording, its nodes, incidents, other events, marks.

    ``gaps`` are nodes without data and when. Counts are those of the uncut lists.
    """

    recording: Row
    nodes: list[Row]
    summary: Summary
    processes: list[ProcessPeaks]
    gaps: list[tuple[str, datetime, datetime]]
    incidents: list[Row]
    trouble_count: int
    others: list[Row]
    other_count: int
    marks: list[Row]
    mark_count: int


_NODES = """
SELECT n.*, count(g.gpu_id) AS gpus, any_value(g.name) AS gpu_name, any_value(g.memory_total_mib) AS gpu_mib,
       any_value(g.power_limit_w) AS power_limit_w
FROM nodes n LEFT JOIN gpus g ON g.node_id = n.node_id AND g.allocated IS NOT FALSE
WHERE n.recording_id = ?
GROUP BY ALL ORDER BY n.node_id
"""
_EVENTS = """
SELECT e.ts, e.kind, e.severity, coalesce(n.node, '') AS node, g.gpu_index AS gpu, coalesce(e.message, '') AS
       message, coalesce(e.detail, '') AS detail
FROM events e LEFT JOIN nodes n USING (node_id) LEFT JOIN gpus g USING (gpu_id)
WHERE e.recording_id = ? AND e.ts >= ?::TIMESTAMP AND e.ts < ?::TIMESTAMP AND e.kind <> 'mark'
  AND g.allocated IS NOT FALSE
"""
_COUNTS = f"""
SELECT count(*) FILTER (severity <> 'info'), count(*) FILTER (severity = 'info') FROM ({_EVENTS})
"""  # noqa: S608 (own names)
_MARKS = """
SELECT e.ts, coalesce(n.node, '') AS node, coalesce(e.message, '') AS message, e.detail
FROM events e LEFT JOIN nodes n USING (node_id)
WHERE e.recording_id = ? AND e.ts >= ?::TIMESTAMP AND e.ts < ?::TIMESTAMP AND e.kind = 'mark'
"""
# A frame covers the time since the one before it; gaps lie between frames and at both ends.
_GAPS = f"""
WITH frames AS (
  SELECT n.node, h.ts, greatest(?::TIMESTAMP, h.ts - to_microseconds(coalesce(h.interval_ms, 0) * 1000)) AS b
  FROM host_samples h JOIN nodes n USING (node_id)
  WHERE n.recording_id = ? AND h.ts >= ?::TIMESTAMP AND h.ts < ?::TIMESTAMP
), between_them AS (
  SELECT node, lag(ts, 1, ?::TIMESTAMP) OVER (PARTITION BY node ORDER BY ts) AS begin, b AS until FROM frames
  UNION ALL SELECT node, max(ts), ?::TIMESTAMP FROM frames GROUP BY node
  UNION ALL SELECT DISTINCT node, ?::TIMESTAMP, ?::TIMESTAMP FROM nodes
  WHERE recording_id = ? AND node NOT IN (SELECT node FROM frames)
)
SELECT node, begin, until FROM between_them
WHERE epoch(until - begin) > greatest(1, {STALE_INTERVALS} * ?::DOUBLE)
ORDER BY begin, node
"""  # noqa: S608 (own names and numbers)


def load_report_data(source: QuerySource, period: Period) -> ReportData:
    """Load the data of a period. Raises StoreError."""
    recording = source.query("FROM recordings WHERE recording_id = ?", period.recording_id).dicts()[0]
    within = (period.recording_id, period.started_at, period.until)
    [(trouble_count, other_count)] = source.query(_COUNTS, *within).rows()
    [(mark_count,)] = source.query(f"SELECT count(*) FROM ({_MARKS})", *within).rows()  # noqa: S608 (own names)
    incidents, others = (
        source.query(f"FROM ({_EVENTS}) WHERE {which} ORDER BY ts LIMIT {MOST_EVENTS}", *within).dicts()
        for which in ("severity <> 'info'", "severity = 'info'")
    )
    begin, end = period.started_at, period.until
    gaps = source.query(
        _GAPS,
        *(begin, period.recording_id, begin, end, begin, end, begin, end, period.recording_id),
        (recording["interval_ms"] or 1000) / 1000,
    ).rows()
    return ReportData(
        recording=recording,
        nodes=source.query(_NODES, period.recording_id).dicts(),
        summary=summarize(source, period),
        processes=processes(source, period),
        gaps=gaps,
        incidents=incidents,
        trouble_count=trouble_count,
        others=others,
        other_count=other_count,
        marks=source.query(f"FROM ({_MARKS}) ORDER BY ts LIMIT {MOST_MARKS}", *within).dicts(),
        mark_count=mark_count,
    )
