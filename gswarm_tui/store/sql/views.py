"""The views of a recording file: samples with names, samples and summaries by session, marks."""

from __future__ import annotations

from collections.abc import Iterator

from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.store.sql.schema import literal
from gswarm_tui.store.sql.summaries import SESSION_SPANS, bubbles, coverage, processes, summary

_SAMPLES = """
SELECT n.recording_id, n.node, g.gpu_index, g.uuid, g.name AS gpu_name, g.node_id,
       g.memory_total_mib, g.power_limit_w, s.*
FROM gpu_samples s
JOIN gpus g USING (gpu_id)
JOIN nodes n USING (node_id)
"""

_SESSION_SAMPLES = """
SELECT e.session_id, e.name AS session, s.*
FROM sessions e
JOIN samples s ON s.recording_id = e.recording_id
  AND s.ts >= e.started_at
  AND s.ts < coalesce(e.ended_at, TIMESTAMP 'infinity')
"""


def _with_names(query: str) -> str:
    """Return a query by session with the session's name as its second column."""
    return f"""
SELECT r.session_id, e.name AS session, r.* EXCLUDE (session_id)
FROM ({query.strip()}) r
JOIN sessions e USING (session_id)
"""  # noqa: S608 (names of this project only)


_SESSION_SUMMARY = f"""
WITH summed AS ({summary(SESSION_SPANS).strip()}),
partial AS (
  SELECT session_id, CASE WHEN NOT bool_and(complete)
      THEN format('partial: {{}} of {{}} nodes', count(*) FILTER (complete), count(*)) END AS words
  FROM session_coverage
  GROUP BY session_id
)
SELECT s.session_id, e.name AS session, e.recording_id, s.* EXCLUDE (session_id),
       CASE WHEN s.scope = 'all' THEN p.words END AS partial
FROM summed s
JOIN sessions e USING (session_id)
LEFT JOIN partial p USING (session_id)
"""  # noqa: S608 (numbers and names of this project only)

MARKS = """
SELECT ts, e.recording_id, n.node_id, n.node, message AS mark,
       TRY_CAST(CASE WHEN kind = 'mark' THEN detail END AS JSON) AS "values"
FROM events e
LEFT JOIN nodes n USING (node_id)
WHERE kind = 'mark'
"""

# Values come from nodes: anything but a JSON object, number or text becomes NULL instead of an error.
MARK_VALUES = """
SELECT ts, recording_id, node_id, node, mark, entry.key AS key,
       CASE WHEN json_type(entry.value) IN ('BIGINT', 'UBIGINT', 'DOUBLE')
         THEN TRY_CAST(entry.value ->> '$' AS DOUBLE) END AS value,
       CASE WHEN json_type(entry.value) NOT IN ('BIGINT', 'UBIGINT', 'DOUBLE')
         THEN entry.value ->> '$' END AS text
FROM (SELECT *, unnest(map_entries(TRY_CAST("values" AS MAP(VARCHAR, JSON)))) AS entry FROM marks)
"""

_VIEWS = {
    "samples": (_SAMPLES, "gpu_samples with the names of node and GPU"),
    "session_samples": (
        _SESSION_SAMPLES,
        "samples of each session, from its start (included) to its end (excluded)",
    ),
    "session_coverage": (
        _with_names(coverage(SESSION_SPANS)),
        "The time of each session that the frames of each node cover; complete if no more than three "
        "intervals are missing. Nodes that never answered are included.",
    ),
    "session_summary": (
        _SESSION_SUMMARY,
        "Each session by scope 'gpu', 'node' and 'all', without GPUs that Slurm gave to others. Mean, "
        "median, p95 and maximum are over the samples of single GPUs. Times are summed over GPUs; busy means "
        f"util_pct >= {BUSY_FROM_PCT:g}. Energy is the growth of the energy counters; a counter that fell, "
        "as after a driver reload, adds nothing then. Coverage is the share of the session's GPU time "
        "that samples cover; partial is set if some nodes don't cover all of it. Bubbles are explained at "
        "session_bubbles; bubble_share is their share of the measured time between the first and the last "
        "busy sample. Host columns are NULL for scope 'gpu'.",
    ),
    "session_bubbles": (
        _with_names(bubbles(SESSION_SPANS)),
        "Each idle phase of a GPU between two busy samples of a session, from the busy sample before to the "
        "last idle sample. duration_s is its measured time; time in a gap doesn't count.",
    ),
    "session_processes": (
        _with_names(processes(SESSION_SPANS)),
        "Each process on each GPU of a session, with its maxima and the times of its first and last sample",
    ),
    "marks": (MARKS, "Marks set by a job or a person; values is a JSON object"),
    "mark_values": (
        MARK_VALUES,
        "One row per value of each mark: numbers in value, other values in text",
    ),
}

VIEW_NAMES = tuple(_VIEWS)


def view_statements() -> Iterator[str]:
    """Return the statements that create the views, replacing those of an older version."""
    for name, (query, meaning) in _VIEWS.items():
        yield f"CREATE OR REPLACE VIEW {name} AS {query.strip()}"
        yield f"COMMENT ON VIEW {name} IS {literal(meaning)}"
