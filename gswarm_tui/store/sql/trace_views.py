"""Queries of the views of PyTorch traces: operators, kernels, iterations, each rank's time, and waits."""

from __future__ import annotations

from gswarm_tui.store.sql.profile_views import events
from gswarm_tui.store.sql.schema import TRACE_KERNEL_EVENTS, TRACE_OP_EVENTS
from gswarm_tui.store.sql.view_columns import OF_PROFILE, View, columns, event_columns

OPS = events("trace_op_events", on_gpu=False)
KERNELS = events("trace_kernel_events", on_gpu=False)
_TRACES = """
ordered_traces AS (
  SELECT profile_id, recording_id, started_at,
         started_at <= max(ended_at) OVER (PARTITION BY recording_id ORDER BY started_at, profile_id
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_same
  FROM profiles WHERE tool = 'pytorch'
), traces AS (
  SELECT profile_id, count(*) FILTER (is_same IS NOT true)
           OVER (PARTITION BY recording_id ORDER BY started_at, profile_id) AS trace
  FROM ordered_traces
)
"""
"""Traces whose times overlap are one trace of several ranks, whatever the names of their files."""
_SHIFTS = """
firsts AS (
  SELECT series, place, end_at,
         coalesce(lag(end_at) OVER (PARTITION BY series, profile_id ORDER BY place), start_at) AS before_at,
         before_at + (end_at - before_at) // 2 AS since
  FROM {rows}
  QUALIFY profile_id = min(profile_id) OVER (PARTITION BY series)
), shifts AS (
  SELECT c.series, c.profile_id, mode(f.place - c.place) AS shift
  FROM {rows} c ASOF JOIN firsts f ON c.series = f.series AND c.end_at >= f.since
  WHERE c.start_at <= f.end_at GROUP BY ALL
)
"""
"""How far the places of each trace's rows are shifted, so that most end with the first trace's of the series.

A trace has neither the collective nor the iteration in which it began, and late ranks begin later.
"""
ITERATIONS = f"""
WITH {_TRACES.strip()}, steps AS (
  SELECT e.profile_id, e.start_ns, e.start_ns + e.duration_ns AS end_ns, name,
         TRY_CAST(regexp_extract(name, '^ProfilerStep#([0-9]+)$', 1) AS BIGINT) AS number
  FROM trace_op_events e JOIN profile_names USING (name_id)
  WHERE category = 'user_annotation' AND (name LIKE 'ProfilerStep#%' OR name LIKE 'Optimizer.step#%')
), ordered AS (
  SELECT *, lag(end_ns) OVER (PARTITION BY profile_id, name ORDER BY end_ns) AS before_ns,
         row_number() OVER (PARTITION BY profile_id, name ORDER BY end_ns) - 2 AS place,
         bool_or(number IS NOT NULL) OVER (PARTITION BY profile_id) AS is_numbered,
         min(name) FILTER (number IS NULL) OVER (PARTITION BY profile_id) AS optimizer
  FROM steps
), unnumbered AS (
  SELECT profile_id, place, before_ns AS start_ns, end_ns, hash(recording_id, trace) AS series,
         epoch_us(zero_at) * 1000 + before_ns AS start_at, epoch_us(zero_at) * 1000 + end_ns AS end_at
  FROM ordered JOIN profiles USING (profile_id) JOIN traces USING (profile_id)
  WHERE NOT is_numbered AND name = optimizer AND before_ns IS NOT NULL
), {_SHIFTS.format(rows="unnumbered").strip()}, iterations AS (
  SELECT profile_id, number AS iteration, start_ns, end_ns FROM ordered WHERE number IS NOT NULL
  UNION ALL
  SELECT profile_id, place + coalesce(shift, 0) - min(place + coalesce(shift, 0)) OVER (PARTITION BY series),
         start_ns, end_ns
  FROM unnumbered LEFT JOIN shifts USING (series, profile_id)
  UNION ALL
  SELECT profile_id, NULL, epoch_us(started_at - zero_at) * 1000, epoch_us(ended_at - zero_at) * 1000
  FROM profiles
  WHERE tool = 'pytorch' AND profile_id NOT IN (
    SELECT profile_id FROM ordered WHERE number IS NOT NULL OR before_ns IS NOT NULL)
)
SELECT make_timestamp(epoch_us(p.zero_at) + start_ns // 1000) AS ts, p.file AS profile, p.node, p.rank,
       i.iteration::INTEGER AS iteration, i.end_ns - i.start_ns AS duration_ns, i.start_ns, i.end_ns,
       profile_id, p.recording_id
FROM iterations i JOIN profiles p USING (profile_id)
"""  # noqa: S608 (own names)
"""Optimizer steps have no numbers: iterations count from 0, alike on all ranks traced at one time."""
_SAME_END_NS = 1_000_000
"""Ends of one collective's kernels differ by less: by microseconds, and by the clocks of nodes."""
RANKS = f"""
WITH iterations AS ({ITERATIONS.strip()}), calls AS (
  SELECT profile_id, correlation_id, min(start_ns) AS launched_ns, bool_or(launches) AS launches
  FROM trace_op_events
  JOIN (SELECT name_id, regexp_matches(name, 'Launch.*Kernel|GraphLaunch') AS launches FROM profile_names)
    USING (name_id)
  WHERE category IN ('cuda_runtime', 'cuda_driver') AND correlation_id > 0
  GROUP BY ALL
), work AS (
  SELECT profile_id, kind, k.start_ns, k.start_ns + k.duration_ns AS end_ns, launched_ns, launches,
         coalesce(max(end_ns) OVER (PARTITION BY profile_id ORDER BY k.start_ns
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), k.start_ns) AS before_ns
  FROM trace_kernel_events k FULL JOIN calls USING (profile_id, correlation_id)
), placed AS (
  SELECT w.*, CASE WHEN launched_ns < i.end_ns THEN i.iteration END AS iteration
  FROM work w ASOF LEFT JOIN (FROM iterations WHERE iteration IS NOT NULL) i
    ON w.profile_id = i.profile_id AND w.launched_ns >= i.start_ns
), bounds AS (
  SELECT profile_id, iteration, min(before_ns) AS first_ns, max(end_ns) AS last_ns,
         bool_or(launches AND start_ns IS NULL) AS is_cut
  FROM placed WHERE iteration IS NOT NULL GROUP BY ALL HAVING last_ns IS NOT NULL
), windows AS (
  SELECT profile_id, iteration, is_cut, last_ns,
         coalesce(max(last_ns) OVER (PARTITION BY profile_id ORDER BY iteration
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), first_ns) AS first_ns
  FROM bounds
  UNION ALL
  SELECT profile_id, NULL, false, end_ns, start_ns FROM iterations
  WHERE iteration IS NULL AND profile_id IN (SELECT profile_id FROM trace_kernel_events)
), parts AS (
  SELECT w.*, kind,
         CASE WHEN w.iteration IS NULL THEN greatest(start_ns, first_ns) ELSE start_ns END AS from_ns,
         CASE WHEN w.iteration IS NULL THEN least(end_ns, w.last_ns) ELSE end_ns END AS to_ns
  FROM placed p JOIN windows w ON p.profile_id = w.profile_id AND p.iteration IS NOT DISTINCT FROM w.iteration
  WHERE start_ns IS NOT NULL AND from_ns < to_ns
), edges AS (
  SELECT *, from_ns AS at_ns, 1 AS change FROM parts
  UNION ALL SELECT *, to_ns, -1 FROM parts
  UNION ALL SELECT *, NULL, NULL, NULL, unnest([first_ns, last_ns]), 0 FROM windows
), changes AS (
  SELECT profile_id, iteration, at_ns, at_ns >= first_ns AND at_ns < last_ns AS is_within,
         sum(CASE WHEN kind = 'compute' THEN change ELSE 0 END) AS compute,
         sum(CASE WHEN kind = 'communication' THEN change ELSE 0 END) AS communication,
         sum(CASE WHEN kind = 'copy' THEN change ELSE 0 END) AS copy
  FROM edges GROUP BY ALL
), states AS (
  SELECT profile_id, iteration, is_within, lead(at_ns) OVER by_time - at_ns AS length_ns,
         sum(compute) OVER by_time > 0 AS computes, sum(communication) OVER by_time > 0 AS communicates,
         sum(copy) OVER by_time > 0 AS copies
  FROM changes WINDOW by_time AS (PARTITION BY profile_id, iteration ORDER BY at_ns)
), times AS (
  SELECT profile_id, iteration,
         coalesce(sum(length_ns) FILTER (computes), 0) AS compute_ns,
         coalesce(sum(length_ns) FILTER (communicates AND NOT computes), 0) AS communication_ns,
         coalesce(sum(length_ns) FILTER (copies AND NOT computes AND NOT communicates), 0) AS copy_ns,
         coalesce(sum(length_ns) FILTER (communicates AND computes), 0) AS overlapped_ns,
         coalesce(sum(length_ns) FILTER (is_within AND NOT (computes OR communicates OR copies)), 0)
           AS idle_ns
  FROM states GROUP BY ALL
), known AS (
  SELECT t.*, greatest(0, last_ns - first_ns) AS gpu_ns
  FROM windows w JOIN times t ON w.profile_id = t.profile_id AND w.iteration IS NOT DISTINCT FROM t.iteration
  WHERE is_cut IS NOT true
)
SELECT i.ts, i.profile, i.node, i.rank, i.iteration,
       round(CASE WHEN has_gpu THEN gpu_ns ELSE duration_ns END / 1e6, 3) AS duration_ms,
       round(compute_ns / 1e6, 3) AS compute_ms, round(communication_ns / 1e6, 3) AS communication_ms,
       round(copy_ns / 1e6, 3) AS copy_ms, round(idle_ns / 1e6, 3) AS idle_ms,
       round(overlapped_ns / 1e6, 3) AS overlapped_ms, i.profile_id, i.recording_id
FROM iterations i
LEFT JOIN known t ON t.profile_id = i.profile_id AND t.iteration IS NOT DISTINCT FROM i.iteration
LEFT JOIN (SELECT DISTINCT profile_id, true AS has_gpu FROM trace_kernel_events) g
  ON g.profile_id = i.profile_id
ORDER BY i.iteration, i.rank, i.profile_id
"""  # noqa: S608 (own names)
"""An iteration has the GPU's work that it launched, by correlation: the GPU runs behind the CPU.

It lasts from the end of the work before to the end of its own. Its times are unknown if the trace ended
before all kernels that it launched had run.
"""
WAITS = f"""
WITH {_TRACES.strip()}, collectives AS (
  SELECT k.*, p.rank, p.file AS profile, p.node, p.recording_id,
         make_timestamp(epoch_us(p.zero_at) + k.start_ns // 1000) AS ts,
         epoch_us(p.zero_at) * 1000 + k.start_ns AS start_at, start_at + k.duration_ns AS end_at,
         collective IN ('send', 'recv', 'coalesced') AS by_peers,
         CASE WHEN by_peers THEN coalesce(src_rank, p.rank) || '>' || coalesce(dst_rank, p.rank)
              ELSE coalesce(collective, '') END AS members,
         CASE WHEN members IS NOT NULL AND coalesce(process_group, group_ranks) IS NOT NULL THEN hash(
           p.recording_id, t.trace, members, process_group, group_ranks, group_size,
           CASE WHEN NOT by_peers THEN sequence END) END AS series,
         count(*) OVER (PARTITION BY series, profile_id) AS calls
  FROM trace_kernel_events k JOIN profiles p USING (profile_id) JOIN traces t USING (profile_id)
  WHERE kind = 'communication'
), firsts AS (
  SELECT series, start_at, end_at,
         lag(end_at) OVER (PARTITION BY series, profile_id ORDER BY end_at) AS before_at,
         coalesce(before_at + (end_at - before_at) // 2, 0) AS since
  FROM collectives WHERE series IS NOT NULL
  QUALIFY profile_id = first_value(profile_id) OVER (PARTITION BY series ORDER BY calls DESC, profile_id)
), nearest AS (
  SELECT c.*, abs(c.end_at - f.end_at) AS apart_ns,
         CASE WHEN c.start_at < f.end_at AND f.start_at < c.end_at AND apart_ns <= {_SAME_END_NS}
              THEN f.end_at END AS met_at
  FROM collectives c ASOF LEFT JOIN firsts f ON c.series = f.series AND c.end_at >= f.since
), met AS (
  SELECT * REPLACE (CASE WHEN place = 1 THEN met_at END AS met_at)
  FROM (SELECT *, row_number() OVER (PARTITION BY series, met_at, profile_id ORDER BY apart_ns) AS place
        FROM nearest)
), matched AS (
  SELECT *, count(DISTINCT coalesce(rank, -profile_id)) OVER same AS found,
         met_at IS NOT NULL AND found BETWEEN 2 AND least(coalesce(group_size, found),
           CASE WHEN by_peers THEN 2 ELSE found END) AS has_partner,
         duration_ns - min(duration_ns) OVER same AS waited_ns, min_by(rank, duration_ns) OVER same AS last
  FROM met WINDOW same AS (PARTITION BY series, met_at)
)
SELECT ts, profile, node, rank, collective, process_group, group_ranks, sequence,
       CASE WHEN has_partner THEN found ELSE 1 END AS ranks, group_size,
       round(duration_ns / 1e6, 3) AS duration_ms,
       CASE WHEN has_partner THEN round(waited_ns / 1e6, 3) END AS wait_ms,
       CASE WHEN has_partner THEN last END AS last_rank, profile_id, recording_id
FROM matched
ORDER BY wait_ms DESC NULLS LAST
"""  # noqa: S608 (own names)
"""Partners have the same group, number and, point-to-point, peers; they ran at once and ended together.

PyTorch 2.11 doesn't number collectives: without numbers, partners are
those that end nearest to each other. Each rank numbers its own point-to-point
calls with all peers, so partners have other numbers.
All are compared with the trace that has most calls of the series, so a call
that another trace lacks shifts nothing.
"""

# fmt: off
VIEWS = {
    "trace_ops": View("Each operator, annotation, call and Python function in traces of PyTorch", OPS,
        event_columns(TRACE_OP_EVENTS, OF_PROFILE)),
    "trace_kernels": View("Each kernel, copy and memory set in traces of PyTorch", KERNELS,
        event_columns(TRACE_KERNEL_EVENTS, OF_PROFILE)),
    "trace_iterations": View("Each iteration in traces of PyTorch: ProfilerStep with its number, else from "
        "one optimizer step to the next, from 0, alike on all ranks traced at one time. A trace without any "
        "has one row for all of it", ITERATIONS,
        columns(f"ts {OF_PROFILE} iteration duration_ns start_ns end_ns profile_id recording_id")),
    "trace_ranks": View("Time of each rank's GPU for each traced iteration, by what the iteration launched: "
        "computing, communicating without computing, copying without both, idle; NULL if the trace has no "
        "GPU or ended before all that was launched had run. overlapped_ms is communication beside computing",
        RANKS,
        columns(f"ts {OF_PROFILE} iteration duration_ms compute_ms communication_ms copy_ms idle_ms "
            "overlapped_ms profile_id recording_id")),
    "trace_waits": View("Each collective of each traced rank: it waited for last_rank, which joined last. "
        "Partners have the same process group, ranks and number, or the same sender and receiver; they ran "
        "at once, ended within 1 ms, and aren't more than the group has. Without a partner, wait_ms is NULL. "
        "With fewer ranks than group_size, one without a trace may have joined even later", WAITS,
        columns(f"ts {OF_PROFILE} collective process_group group_ranks sequence ranks group_size duration_ms "
            "wait_ms last_rank profile_id recording_id")),
}
# fmt: on
