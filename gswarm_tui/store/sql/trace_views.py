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
RANKS = f"""
WITH iterations AS ({ITERATIONS.strip()}), parts AS (
  SELECT i.profile_id, i.iteration, k.kind, greatest(k.start_ns, i.start_ns) AS first_ns,
         least(k.start_ns + k.duration_ns, i.end_ns) AS last_ns
  FROM iterations i JOIN trace_kernel_events k
    ON k.profile_id = i.profile_id AND k.start_ns < i.end_ns AND k.start_ns + k.duration_ns > i.start_ns
), edges AS (
  SELECT profile_id, iteration, kind, first_ns AS at_ns, 1 AS change FROM parts
  UNION ALL SELECT profile_id, iteration, kind, last_ns, -1 FROM parts
), changes AS (
  SELECT profile_id, iteration, at_ns,
         sum(CASE WHEN kind = 'compute' THEN change ELSE 0 END) AS compute,
         sum(CASE WHEN kind = 'communication' THEN change ELSE 0 END) AS communication,
         sum(CASE WHEN kind = 'copy' THEN change ELSE 0 END) AS copy
  FROM edges GROUP BY ALL
), states AS (
  SELECT profile_id, iteration, lead(at_ns) OVER by_time - at_ns AS length_ns,
         sum(compute) OVER by_time > 0 AS computes, sum(communication) OVER by_time > 0 AS communicates,
         sum(copy) OVER by_time > 0 AS copies
  FROM changes WINDOW by_time AS (PARTITION BY profile_id, iteration ORDER BY at_ns)
), times AS (
  SELECT profile_id, iteration, sum(length_ns) FILTER (computes) AS compute_ns,
         sum(length_ns) FILTER (communicates AND NOT computes) AS communication_ns,
         sum(length_ns) FILTER (copies AND NOT computes AND NOT communicates) AS copy_ns,
         sum(length_ns) FILTER (communicates AND computes) AS overlapped_ns
  FROM states GROUP BY ALL
)
SELECT i.ts, i.profile, i.node, i.rank, i.iteration, round(i.duration_ns / 1e6, 3) AS duration_ms,
       round(used * coalesce(compute_ns, 0) / 1e6, 3) AS compute_ms,
       round(used * coalesce(communication_ns, 0) / 1e6, 3) AS communication_ms,
       round(used * coalesce(copy_ns, 0) / 1e6, 3) AS copy_ms,
       round(used * (i.duration_ns - coalesce(compute_ns, 0) - coalesce(communication_ns, 0)
                     - coalesce(copy_ns, 0)) / 1e6, 3) AS idle_ms,
       round(used * coalesce(overlapped_ns, 0) / 1e6, 3) AS overlapped_ms, i.profile_id, i.recording_id
FROM iterations i
LEFT JOIN times t ON t.profile_id = i.profile_id AND t.iteration IS NOT DISTINCT FROM i.iteration
LEFT JOIN (SELECT DISTINCT profile_id, 1 AS used FROM trace_kernel_events) u ON u.profile_id = i.profile_id
ORDER BY i.iteration, i.rank, i.profile_id
"""  # noqa: S608 (own names)
WAITS = f"""
WITH {_TRACES.strip()}, collectives AS (
  SELECT k.*, p.rank, p.file AS profile, p.node, p.recording_id,
         make_timestamp(epoch_us(p.zero_at) + k.start_ns // 1000) AS ts,
         epoch_us(p.zero_at) * 1000 + k.start_ns AS start_at, start_at + k.duration_ns AS end_at,
         hash(p.recording_id, t.trace, collective, process_group, group_size) AS series,
         row_number() OVER (PARTITION BY profile_id, series ORDER BY k.start_ns) AS place
  FROM trace_kernel_events k JOIN profiles p USING (profile_id) JOIN traces t USING (profile_id)
  WHERE kind = 'communication'
), unnumbered AS (
  SELECT * FROM collectives WHERE sequence IS NULL
), {_SHIFTS.format(rows="unnumbered").strip()}, matched AS (
  SELECT *, count(DISTINCT coalesce(rank, -profile_id)) OVER same AS ranks,
         duration_ns - min(duration_ns) OVER same AS wait_ns,
         min_by(rank, duration_ns) OVER same AS last_rank
  FROM collectives LEFT JOIN shifts USING (series, profile_id)
  WINDOW same AS (
    PARTITION BY series, sequence, CASE WHEN sequence IS NULL THEN place + coalesce(shift, 0) END)
)
SELECT ts, profile, node, rank, collective, process_group, sequence, ranks, group_size,
       round(duration_ns / 1e6, 3) AS duration_ms, round(wait_ns / 1e6, 3) AS wait_ms, last_rank,
       profile_id, recording_id
FROM matched WHERE ranks > 1
ORDER BY wait_ns DESC
"""  # noqa: S608 (own names)
"""PyTorch 2.11 doesn't number collectives: without numbers, they are matched by their places, shifted."""

VIEWS = {
    "trace_ops": View(
        "Each operator, annotation, call and Python function in traces of PyTorch",
        OPS,
        event_columns(TRACE_OP_EVENTS, OF_PROFILE),
    ),
    "trace_kernels": View(
        "Each kernel, copy and memory set in traces of PyTorch",
        KERNELS,
        event_columns(TRACE_KERNEL_EVENTS, OF_PROFILE),
    ),
    "trace_iterations": View(
        "Each iteration in traces of PyTorch: ProfilerStep with its number, else from one optimizer step "
        "to the next, from 0, alike on all ranks traced at one time. A trace without any has one row for all "
        "of it",
        ITERATIONS,
        columns(f"ts {OF_PROFILE} iteration duration_ns start_ns end_ns profile_id recording_id"),
    ),
    "trace_ranks": View(
        "Time of each rank's GPU in each traced iteration: computing, communicating without computing, "
        "copying without both, idle; NULL if the trace has no GPU. overlapped_ms is communication beside "
        "computing",
        RANKS,
        columns(
            f"ts {OF_PROFILE} iteration duration_ms compute_ms communication_ms copy_ms idle_ms "
            "overlapped_ms profile_id recording_id"
        ),
    ),
    "trace_waits": View(
        "Each collective of each traced rank: it waited for last_rank, which joined last. Ranks are matched "
        "by the number of the collective in its process group, else by when it ended, among traces "
        "whose times overlap. With fewer "
        "ranks than group_size, one without a trace may have joined even later",
        WAITS,
        columns(
            f"ts {OF_PROFILE} collective process_group sequence ranks group_size duration_ms wait_ms "
            "last_rank profile_id recording_id"
        ),
    ),
}
