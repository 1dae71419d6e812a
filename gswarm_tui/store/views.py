"""The views people query: samples with names, samples by session, and a summary of each session."""

from __future__ import annotations

from collections.abc import Iterator

from gswarm_agent.metrics import REASON_HW_THERMAL, REASON_POWER_BRAKE, REASON_POWER_CAP, REASON_SW_THERMAL
from gswarm_tui.fleet.node import STALE_INTERVALS
from gswarm_tui.fleet.totals import BUSY_FROM_PCT
from gswarm_tui.store.schema import literal

LONGEST_INTERVAL_S = 61
"""A sample before a session is looked for this far back: a little more than the longest interval."""

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


def _throttle(metric: str, bits: int) -> str:
    """Share of a sample's interval spent throttled: measured if it is, else all or nothing from the bits."""
    return f"coalesce(s.{metric} / 100, (s.clock_reasons & {bits} <> 0)::INTEGER)"


_BOUNDS = """
ends AS (
  SELECT n.recording_id, max(h.ts) AS last_ts FROM host_samples h JOIN nodes n USING (node_id) GROUP BY ALL
), bounds AS (
  SELECT e.session_id, e.name, e.recording_id, e.started_at, r.interval_ms,
         coalesce(e.ended_at, r.ended_at, ends.last_ts + INTERVAL 1 MICROSECOND) AS ended_at
  FROM sessions e
  JOIN recordings r USING (recording_id)
  LEFT JOIN ends USING (recording_id)
)"""

_SESSION_COVERAGE = f"""
WITH {_BOUNDS}, frames AS (
  SELECT n.recording_id, n.node, h.ts, h.interval_ms
  FROM host_samples h
  JOIN nodes n USING (node_id)
), names AS (
  SELECT DISTINCT recording_id, node FROM nodes
), counted AS (
  SELECT b.session_id, b.name AS session, b.recording_id, n.node, b.started_at, b.ended_at, b.interval_ms,
         epoch(b.ended_at - b.started_at) AS duration_s,
         count(h.ts) AS frames,
         coalesce(sum(least(h.interval_ms / 1000, epoch(h.ts - b.started_at)))
           FILTER (h.interval_ms IS NOT NULL), 0) AS stands_for_s,
         median(h.interval_ms) AS usual_ms
  FROM bounds b
  JOIN names n USING (recording_id)
  LEFT JOIN frames h ON h.recording_id = b.recording_id AND h.node = n.node
    AND h.ts >= b.started_at AND h.ts < b.ended_at
  GROUP BY ALL
)
SELECT session_id, session, recording_id, node, started_at, ended_at, duration_s, frames,
       least(duration_s, stands_for_s) AS covered_s,
       CASE WHEN duration_s > 0 THEN least(duration_s, stands_for_s) / duration_s END AS coverage,
       duration_s - stands_for_s <= greatest(1, {STALE_INTERVALS} * interval_s)
         AND (frames > 0 OR duration_s < interval_s) AS complete
FROM (SELECT *, greatest(interval_ms, coalesce(usual_ms, 0)) / 1000 AS interval_s FROM counted)
"""  # noqa: S608 (numbers and names of this project only)

_SESSION_SUMMARY = f"""
WITH {_BOUNDS}, partial AS (
  SELECT session_id, CASE WHEN NOT bool_and(complete)
      THEN format('partial: {{}} of {{}} nodes', count(*) FILTER (complete), count(*)) END AS words
  FROM session_coverage
  GROUP BY session_id
), read AS (
  SELECT b.session_id, b.name AS session, b.recording_id, b.started_at, b.ended_at,
         n.node_id, n.node, g.gpu_id, g.gpu_index, s.ts, s.interval_ms / 1000 AS interval_s,
         s.util_pct, s.power_w, s.mem_used_mib, s.energy_mj,
         lag(s.energy_mj IGNORE NULLS) OVER before AS energy_before_mj,
         lag(CASE WHEN s.energy_mj IS NOT NULL THEN s.ts END IGNORE NULLS) OVER before AS ts_before,
         {_throttle("throttle_power_pct", REASON_POWER_CAP)} AS throttle_power,
         {_throttle("throttle_thermal_pct", REASON_SW_THERMAL | REASON_HW_THERMAL)} AS throttle_thermal,
         {_throttle("throttle_brake_pct", REASON_POWER_BRAKE)} AS throttle_brake
  FROM bounds b
  JOIN nodes n USING (recording_id)
  JOIN gpus g USING (node_id)
  JOIN gpu_samples s ON s.gpu_id = g.gpu_id
    AND s.ts >= b.started_at - INTERVAL {LONGEST_INTERVAL_S} SECOND AND s.ts < b.ended_at
  WHERE g.allocated IS NOT FALSE
  WINDOW before AS (PARTITION BY b.session_id, g.gpu_id ORDER BY s.ts)
), inside AS (
  SELECT *, CASE
      WHEN ts_before < started_at AND NOT coalesce(epoch(ts - ts_before) < 1.5 * interval_s, false) THEN NULL
      WHEN energy_mj < energy_before_mj THEN energy_mj
      ELSE energy_mj - energy_before_mj
    END / 1000 AS used_j
  FROM read WHERE ts >= started_at
)
SELECT inside.session_id, session, recording_id,
       CASE grouping(node_id, gpu_id) WHEN 3 THEN 'all' WHEN 1 THEN 'node' ELSE 'gpu' END AS scope,
       node_id, node, gpu_id, gpu_index, started_at, ended_at,
       epoch(ended_at - started_at) AS duration_s,
       count(DISTINCT inside.gpu_id) AS gpus,
       count(*) AS samples,
       least(1, coalesce(sum(interval_s), 0) / nullif(duration_s * count(DISTINCT inside.gpu_id), 0))
         AS coverage,
       CASE WHEN scope = 'all' THEN any_value(words) END AS partial,
       avg(util_pct) AS util_mean_pct,
       median(util_pct) AS util_median_pct,
       quantile_cont(util_pct, 0.95) AS util_p95_pct,
       max(util_pct) AS util_max_pct,
       avg(power_w) AS power_mean_w,
       median(power_w) AS power_median_w,
       quantile_cont(power_w, 0.95) AS power_p95_w,
       max(power_w) AS power_max_w,
       max(mem_used_mib) AS mem_used_max_mib,
       CASE WHEN count(util_pct) > 0
         THEN coalesce(sum(interval_s) FILTER (util_pct >= {BUSY_FROM_PCT:g}), 0) END AS busy_s,
       CASE WHEN count(util_pct) > 0
         THEN coalesce(sum(interval_s) FILTER (util_pct < {BUSY_FROM_PCT:g}), 0) END AS idle_s,
       sum(used_j) AS energy_j,
       sum(used_j) / 3.6e6 AS energy_kwh,
       sum(interval_s * throttle_power) AS throttle_power_s,
       sum(interval_s * throttle_thermal) AS throttle_thermal_s,
       sum(interval_s * throttle_brake) AS throttle_brake_s
FROM inside
LEFT JOIN partial USING (session_id)
GROUP BY GROUPING SETS (
  (inside.session_id, session, recording_id, started_at, ended_at),
  (inside.session_id, session, recording_id, started_at, ended_at, node_id, node),
  (inside.session_id, session, recording_id, started_at, ended_at, node_id, node, gpu_id, gpu_index)
)
"""  # noqa: S608 (numbers and names of this project only)

_VIEWS = {
    "samples": (_SAMPLES, "gpu_samples with the names of node and GPU"),
    "session_samples": (
        _SESSION_SAMPLES,
        "samples within each session: from its start up to, without, its end",
    ),
    "session_coverage": (
        _SESSION_COVERAGE,
        "How much of each session the frames of each node stand for; complete if no more than three "
        "intervals of it are missing. Nodes that never answered are in it.",
    ),
    "session_summary": (
        _SESSION_SUMMARY,
        "Each session by scope 'gpu', 'node' and 'all', without GPUs that Slurm gave to others. Means, "
        "median, p95 and max are over all samples of single GPUs. Times are summed over GPUs; busy is "
        f"util_pct >= {BUSY_FROM_PCT:g}. Energy is the growth of the energy counters. Coverage is the share "
        "of the session's GPU time that samples stand for; partial says where nodes don't cover all of it.",
    ),
}


def view_statements() -> Iterator[str]:
    """What makes the views, replacing those of an older version."""
    for name, (query, meaning) in _VIEWS.items():
        yield f"CREATE OR REPLACE VIEW {name} AS {query.strip()}"
        yield f"COMMENT ON VIEW {name} IS {literal(meaning)}"
