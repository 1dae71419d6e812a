"""Example queries for the SQL screen and the documentation, run by the tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """An example query with its title, for any DuckDB client."""

    title: str
    sql: str


# fmt: off
RECIPES = (
    Recipe("Mean, p95 and maximum of each GPU in each session", """\
SELECT session, node, gpu_index,
       util_mean_pct, util_p95_pct, util_max_pct,
       power_mean_w, power_max_w, mem_used_max_mib
FROM session_summary
WHERE scope = 'gpu'
ORDER BY session_id, node, gpu_index;"""),
    Recipe("Cost of each session: duration, energy, busy share, measured share", """\
SELECT session, gpus, duration_s, energy_kwh, busy_s / nullif(busy_s + idle_s, 0) AS busy, coverage
FROM session_summary
WHERE scope = 'all'
ORDER BY session_id;"""),
    Recipe("Busiest and least busy GPU of each session", """\
SELECT session,
       arg_max(node || ':' || gpu_index, util_mean_pct) AS busiest, max(util_mean_pct) AS busiest_pct,
       arg_min(node || ':' || gpu_index, util_mean_pct) AS idlest, min(util_mean_pct) AS idlest_pct
FROM session_summary
WHERE scope = 'gpu'
GROUP BY session_id, session
ORDER BY session_id;"""),
    Recipe("Each session compared to the first: speed-up, scaling efficiency, energy, bubbles", """\
SELECT session, gpus, duration_s,
       first_value(duration_s) OVER runs / duration_s AS speed_up,
       first_value(duration_s * gpus) OVER runs / (duration_s * gpus) AS efficiency,
       energy_kwh / first_value(energy_kwh) OVER runs AS energy_ratio,
       util_mean_pct, bubble_share
FROM session_summary s
WHERE scope = 'all' AND NOT EXISTS ( -- sessions that overlap are no runs to compare
  FROM sessions o JOIN sessions mine ON mine.session_id = s.session_id
  WHERE o.session_id <> s.session_id
    AND o.started_at < coalesce(mine.ended_at, now()) AND coalesce(o.ended_at, now()) > mine.started_at)
WINDOW runs AS (ORDER BY session_id)
ORDER BY session_id;"""),
    Recipe("Longest bubbles: idle phases of a GPU between two busy ones", """\
SELECT session, node, gpu_index, started_at, duration_s
FROM session_bubbles
ORDER BY duration_s DESC, started_at, node, gpu_index
LIMIT 10;"""),
    Recipe("Throttled seconds by reason", """\
SELECT session, node, gpu_index, throttle_power_s, throttle_thermal_s, throttle_brake_s
FROM session_summary
WHERE scope = 'gpu' AND greatest(throttle_power_s, throttle_thermal_s, throttle_brake_s) > 0
ORDER BY session_id, node, gpu_index;"""),
    Recipe("Processes with the most GPU memory", """\
SELECT node, gpu_index, pid, rank, user_name, command,
       max(mem_used_mib) AS peak_mib, max(sm_pct) AS sm_max_pct,
       min(ts) AS first_seen, max(ts) AS last_seen
FROM processes
GROUP BY node_id, node, gpu_index, pid, rank, user_name, command
ORDER BY peak_mib DESC, node, gpu_index, pid
LIMIT 10;"""),
    Recipe("Time, energy and means of each epoch: from each mark to the next", """\
SELECT mark, started_at, duration_s, energy_kwh, util_mean_pct, power_mean_w,
       TRY_CAST("values" ->> 'loss' AS DOUBLE) AS loss
FROM mark_intervals
ORDER BY ended_at;"""),
    Recipe("All events", """\
SELECT ts, node, gpu_index, kind, severity, message
FROM event_log
ORDER BY ts;"""),
    Recipe("All samples of one session (add `-o session.parquet` for pandas or polars)", """\
FROM session_samples
WHERE session_id = 1
ORDER BY ts, node, gpu_index;"""),
    Recipe("What the rules found, the costliest first", """\
SELECT severity, kind, node, gpu_index, since, until, round(gpu_hours, 2) AS gpu_hours, sentence
FROM findings
WHERE NOT coalesce(dismissed, false)
ORDER BY array_position(['fault', 'waste', 'note'], severity), gpu_hours DESC NULLS LAST, since;"""),
    Recipe("GPU-hours lost by kind of finding", """\
SELECT kind, count(*) AS findings, count(DISTINCT node) AS nodes,
       round(sum(gpu_hours), 2) AS gpu_hours, min(since) AS first_since
FROM findings
GROUP BY kind
ORDER BY gpu_hours DESC NULLS LAST;"""),
)
# fmt: on
