"""SQL that summarises spans of time: sessions in the views, any span in the commands. Only text.

The statements are shaped by their cost on millions of samples. One pass groups samples by GPU and
utilisation: few cells that hold exact quantiles. One pass sorts them for energy and idle phases, which
depend on the sample before. Nodes and the whole are computed from these groups.

Sorted rows are scanned with windows over all preceding rows, which DuckDB streams; a window per GPU would
hold all rows a second time. A stream uses one thread, so there are two.

Sums are of whole numbers: threads add rows in any order, and sums of fractions would differ in the last
digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gswarm_agent.metrics import REASON_HW_THERMAL, REASON_POWER_BRAKE, REASON_POWER_CAP, REASON_SW_THERMAL
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT, NEIGHBOURS, STALE_INTERVALS

LONGEST_INTERVAL_S = 61
"""How far back the sample before a span is searched: a little more than the longest interval."""

STREAMS = 2

_BUSY = f"util_pct >= {BUSY_FROM_PCT:g}"
_IDLE = f"util_pct < {BUSY_FROM_PCT:g}"


def _throttle(metric: str, bits: int) -> str:
    """Return SQL for the throttled time in 0.1 µs: as measured, else whole intervals with the bits set."""
    share = f"coalesce(s.{metric}::DOUBLE, 100 * (s.clock_reasons & {bits} <> 0)::INTEGER)"
    return f"sum(TRY_CAST(s.interval_ms * round(100 * {share}) AS BIGINT)) AS {metric.removesuffix('_pct')}"


def _cells(spans: Spans) -> str:
    throttles = (
        _throttle("throttle_power_pct", REASON_POWER_CAP),
        _throttle("throttle_thermal_pct", REASON_SW_THERMAL | REASON_HW_THERMAL),
        _throttle("throttle_brake_pct", REASON_POWER_BRAKE),
    )
    return f"""
cells AS (
  SELECT m.member, gpu_id, s.util_pct, count(*) AS samples,
         coalesce(sum(s.interval_ms), 0) AS measured_ms,
         sum(TRY_CAST(100 * s.power_w AS BIGINT)) AS power_sum, count(s.power_w) AS powers,
         max(s.power_w) AS power_max_w, max(s.mem_used_mib) AS mem_used_max_mib,
         count(s.energy_mj) AS energies,
         max(s.temp_c) AS temp_max_c, max(s.mem_temp_c) AS mem_temp_max_c,
         min(s.ts) AS first_ts, max(s.ts) AS last_ts,
         {", ".join(throttles)}
  FROM gpu_samples s
  JOIN members m USING (gpu_id)
  WHERE {spans.inside}
  GROUP BY m.member, gpu_id, s.util_pct
)"""  # noqa: S608 (own names and numbers)


def _quantile(part: float) -> str:
    """Return SQL for the exact quantile of util_pct, interpolated like DuckDB's quantile_cont."""
    place = f"(total - 1) * {part}"
    low, high = (f"min(util_pct::DOUBLE) FILTER (upto > {edge}({place}))" for edge in ("floor", "ceil"))
    return f"{low} + ({high} - {low}) * (any_value({place}) - floor(any_value({place})))"


_LEVELS = """
levels AS (
  SELECT session_id, node, member, util_pct, sum(samples)::BIGINT AS samples, sum(measured_ms) AS measured_ms,
         sum(power_sum) AS power_sum, sum(powers) AS powers, max(power_max_w) AS power_max_w,
         max(mem_used_max_mib) AS mem_used_max_mib,
         arg_max(g.memory_total_mib, mem_used_max_mib) AS mem_total_mib,
         max(temp_max_c) AS temp_max_c, max(mem_temp_max_c) AS mem_temp_max_c,
         sum(throttle_power) AS throttle_power, sum(throttle_thermal) AS throttle_thermal,
         sum(throttle_brake) AS throttle_brake
  FROM cells c
  JOIN named USING (member)
  JOIN gpus g ON g.gpu_id = c.gpu_id
  GROUP BY GROUPING SETS (
    (session_id, util_pct), (session_id, node, util_pct), (session_id, node, member, util_pct)
  )
), ranked AS (
  SELECT *, sum(CASE WHEN util_pct IS NOT NULL THEN samples END) OVER (
           PARTITION BY session_id, node, member ORDER BY util_pct) AS upto,
         sum(CASE WHEN util_pct IS NOT NULL THEN samples END) OVER (
           PARTITION BY session_id, node, member) AS total
  FROM levels
)"""


def _sums() -> str:
    return f"""
sums AS (
  SELECT session_id, node, member, sum(samples)::BIGINT AS samples, sum(measured_ms) / 1000 AS measured_s,
         sum(util_pct * samples) / any_value(total) AS util_mean_pct,
         {_quantile(0.5)} AS util_median_pct,
         {_quantile(0.95)} AS util_p95_pct,
         max(util_pct) AS util_max_pct,
         sum(power_sum) / 100 / nullif(sum(powers), 0) AS power_mean_w, max(power_max_w) AS power_max_w,
         max(mem_used_max_mib) AS mem_used_max_mib,
         arg_max(mem_total_mib, mem_used_max_mib) AS mem_total_mib,
         max(temp_max_c) AS temp_max_c, max(mem_temp_max_c) AS mem_temp_max_c,
         CASE WHEN any_value(total) > 0
           THEN coalesce(sum(measured_ms) FILTER ({_BUSY}), 0) / 1000 END AS busy_s,
         CASE WHEN any_value(total) > 0
           THEN coalesce(sum(measured_ms) FILTER ({_IDLE}), 0) / 1000 END AS idle_s,
         sum(throttle_power) / 1e7 AS throttle_power_s, sum(throttle_thermal) / 1e7 AS throttle_thermal_s,
         sum(throttle_brake) / 1e7 AS throttle_brake_s
  FROM ranked
  GROUP BY session_id, node, member
)"""  # noqa: S608 (own names and numbers)


def _grown(before: str, after: str) -> str:
    """Return SQL for the growth of a counter between two samples, 0 if it fell, as in the live view."""
    return f"CASE WHEN {after} < {before} THEN 0 ELSE {after} - {before} END"


def _stream(spans: Spans, number: int) -> str:
    """Return one of the streams: sorted samples with the energy before and the busy samples so far."""
    return f"""
  SELECT member, ts, interval_ms, util_pct, energy_mj,
         CASE WHEN lag(member) OVER () = member THEN lag(energy_mj) OVER () END AS energy_before_mj,
         count(*) FILTER ({_BUSY}) OVER (ROWS UNBOUNDED PRECEDING) AS busy_samples
  FROM (
    SELECT m.member, s.ts, s.interval_ms, s.util_pct, s.energy_mj
    FROM gpu_samples s
    JOIN members m USING (gpu_id)
    WHERE {spans.inside} AND m.member % {STREAMS} = {number}
    ORDER BY m.member, s.ts
  )"""  # noqa: S608 (own names and numbers)


def _phases(spans: Spans) -> str:
    """Return idle phases, numbered by the busy samples before them; phase NULL holds all other samples."""
    return f"""
ordered AS ({"  UNION ALL".join(_stream(spans, number) for number in range(STREAMS))}
), phases AS (
  SELECT member, CASE WHEN {_IDLE} THEN busy_samples END AS phase,
         min(ts) AS first_idle, max(ts) AS last_idle, sum(interval_ms) AS phase_ms,
         sum({_grown("energy_before_mj", "energy_mj")}) AS used_mj
  FROM ordered
  GROUP BY ALL
), busy AS (
  SELECT member, min(first_ts) AS first_busy, max(last_ts) AS last_busy
  FROM cells
  WHERE {_BUSY}
  GROUP BY member
), marked AS (
  SELECT *, phase IS NOT NULL AND first_idle > first_busy AND last_idle < last_busy AND phase_ms > 0 AS bubble
  FROM phases
  LEFT JOIN busy USING (member)
)"""  # noqa: S608 (own names and numbers)


def _gaps(spans: Spans) -> str:
    """Return the energy of GPUs without a counter value in every sample: from each value to the next."""
    return f"""
holed AS (
  SELECT member FROM cells GROUP BY member HAVING sum(energies) BETWEEN 1 AND sum(samples) - 1
), readings AS (
  SELECT m.member, s.energy_mj,
         lag(s.energy_mj) OVER (PARTITION BY m.member ORDER BY s.ts) AS energy_before_mj
  FROM gpu_samples s
  JOIN members m USING (gpu_id)
  JOIN holed USING (member)
  WHERE {spans.inside} AND s.energy_mj IS NOT NULL
), gaps AS (
  SELECT member, sum({_grown("energy_before_mj", "energy_mj")}) AS read_mj FROM readings GROUP BY member
)"""  # noqa: S608 (own names and numbers)


def _entries(spans: Spans) -> str:
    """Return the energy between the last value before a span and the first in it, if these are neighbours.

    A sample without an interval has no neighbour before it; ``coalesce`` keeps arg_min from skipping it.
    """
    near = spans.around_begin(LONGEST_INTERVAL_S, round(NEIGHBOURS * LONGEST_INTERVAL_S))
    return f"""
edges AS (
  SELECT m.member, s.ts < m.started_at AS early, max(s.ts) AS last_ts, min(s.ts) AS first_ts,
         arg_max(s.energy_mj, s.ts) AS last_mj, arg_min(s.energy_mj, s.ts) AS first_mj,
         arg_min(coalesce(s.interval_ms, 0), s.ts) AS interval_ms
  FROM gpu_samples s
  JOIN members m USING (gpu_id)
  WHERE {near} AND s.energy_mj IS NOT NULL
  GROUP BY ALL
), entries AS (
  SELECT a.member,
         {_grown("b.last_mj", "a.first_mj")} AS entry_mj
  FROM edges a
  JOIN edges b ON b.member = a.member AND b.early AND NOT a.early
  WHERE epoch(a.first_ts - b.last_ts) < {NEIGHBOURS:g} * a.interval_ms / 1000
)"""  # noqa: S608 (own names and numbers)


_USED = """
units AS (
  SELECT member, coalesce(any_value(read_mj), sum(used_mj)) AS used_mj, count(*) FILTER (bubble) AS bubbles,
         coalesce(sum(phase_ms) FILTER (bubble), 0) AS bubble_ms, max(phase_ms) FILTER (bubble) AS longest_ms
  FROM marked
  LEFT JOIN gaps USING (member)
  GROUP BY member
), used AS (
  SELECT session_id, node, member, grouping(node, member) AS level, count(*) AS gpus,
         sum(CASE WHEN used_mj IS NULL THEN entry_mj ELSE used_mj + coalesce(entry_mj, 0) END) / 1000
           AS energy_j,
         sum(bubbles)::BIGINT AS bubbles, sum(bubble_ms) / 1000 AS bubble_s,
         max(longest_ms) / 1000 AS bubble_longest_s
  FROM units
  JOIN named USING (member)
  LEFT JOIN entries USING (member)
  GROUP BY GROUPING SETS ((session_id), (session_id, node), (session_id, node, member))
)"""


def _hosts(spans: Spans) -> str:
    return f"""
hosts AS (
  SELECT m.session_id, n.node, max(s.cpu_pct) AS host_cpu_max_pct,
         max(s.memory_used_mib) AS host_memory_max_mib,
         arg_max(n.memory_total_mib, s.memory_used_mib) AS host_memory_total_mib
  FROM spans m
  JOIN nodes n USING (recording_id)
  JOIN host_samples s USING (node_id)
  WHERE {spans.inside}
  GROUP BY GROUPING SETS ((m.session_id), (m.session_id, n.node))
)"""  # noqa: S608 (own names and numbers)


def summary(spans: Spans) -> str:
    """Return a query with one row per GPU, node and whole span; ``node`` and ``gpu_id`` are NULL above them.

    A bubble is an idle phase of a GPU between two busy samples; time in a gap doesn't count. Its share is of
    the measured time between the first and the last busy sample.
    """
    relations = (
        spans.relation, MEMBERS, _cells(spans), _LEVELS, _sums(), _phases(spans), _gaps(spans),
        _entries(spans), _USED, _hosts(spans),
    )  # fmt: skip
    return f"""
WITH {",".join(relations)}, node_ids AS (
  SELECT session_id, node, max(node_id) AS node_id FROM named GROUP BY ALL
)
SELECT u.session_id, CASE u.level WHEN 3 THEN 'all' WHEN 1 THEN 'node' ELSE 'gpu' END AS scope,
       i.node_id, u.node, n.gpu_id, n.gpu_index, p.started_at, p.until AS ended_at,
       epoch(p.until - p.started_at) AS duration_s, u.gpus, s.samples,
       least(1, s.measured_s / nullif(epoch(p.until - p.started_at) * u.gpus, 0)) AS coverage,
       s.util_mean_pct, s.util_median_pct, s.util_p95_pct, s.util_max_pct, s.power_mean_w, s.power_max_w,
       s.mem_used_max_mib, s.mem_total_mib, s.temp_max_c, s.mem_temp_max_c,
       s.busy_s, s.idle_s, u.energy_j, u.energy_j / 3.6e6 AS energy_kwh,
       s.throttle_power_s, s.throttle_thermal_s, s.throttle_brake_s,
       CASE WHEN s.busy_s IS NOT NULL THEN u.bubbles END AS bubbles,
       CASE WHEN s.busy_s IS NOT NULL THEN u.bubble_s END AS bubble_s,
       u.bubble_s / nullif(u.bubble_s + s.busy_s, 0) AS bubble_share,
       u.bubble_longest_s,
       h.host_cpu_max_pct, h.host_memory_max_mib, h.host_memory_total_mib
FROM used u
JOIN spans p USING (session_id)
JOIN sums s ON s.session_id = u.session_id AND s.node IS NOT DISTINCT FROM u.node
  AND s.member IS NOT DISTINCT FROM u.member
LEFT JOIN node_ids i ON i.session_id = u.session_id AND i.node = u.node
LEFT JOIN named n ON n.member = u.member
LEFT JOIN hosts h ON h.session_id = u.session_id AND h.node IS NOT DISTINCT FROM u.node AND u.member IS NULL
"""  # noqa: S608 (own names and numbers)


def bubbles(spans: Spans) -> str:
    """Return a query with one row per bubble: an idle phase of a GPU between two busy samples.

    Its duration is the measured time; time in a gap doesn't count.
    """
    relations = (spans.relation, MEMBERS, _cells(spans), _phases(spans))
    return f"""
WITH {",".join(relations)}
SELECT n.session_id, n.node_id, n.node, n.gpu_id, n.gpu_index,
       o.ts AS started_at, b.last_idle AS ended_at, b.phase_ms / 1000 AS duration_s
FROM marked b
JOIN ordered o ON o.member = b.member AND o.busy_samples = b.phase AND o.{_BUSY}
JOIN named n ON n.member = b.member
WHERE b.bubble
"""  # noqa: S608 (own names and numbers)


def processes(spans: Spans) -> str:
    """Return a query with one row per process and GPU: identity and peaks. Command lines are raw."""
    return f"""
WITH {spans.relation},{MEMBERS}
SELECT n.session_id, n.node_id, n.node, n.gpu_id, n.gpu_index, s.pid, max(s.rank) AS rank,
       max(s.local_rank) AS local_rank, arg_max(s.user_name, s.ts) AS user_name,
       arg_max(s.command, s.ts) AS command, min(s.ts) AS first_seen, max(s.ts) AS last_seen,
       max(s.gpu_memory_mib) AS gpu_memory_max_mib, max(s.sm_pct) AS sm_max_pct, avg(s.sm_pct) AS sm_mean_pct,
       max(s.cpu_pct) AS cpu_max_pct, max(s.memory_mib) AS memory_max_mib
FROM process_samples s
JOIN members m USING (gpu_id)
JOIN named n USING (member)
WHERE {spans.inside}
GROUP BY ALL
"""  # noqa: S608 (own names and numbers)


def coverage(spans: Spans) -> str:
    """Return a query with one row per span and node: the time that its frames cover.

    It is complete if no more than three intervals are missing. Nodes that never answered are included.
    """
    return f"""
WITH {spans.relation}, names AS (
  SELECT DISTINCT recording_id, node FROM nodes
), frames AS (
  SELECT m.session_id, n.node, count(*) AS frames,
         coalesce(sum(least(s.interval_ms * 1000, epoch_us(s.ts) - epoch_us(m.started_at)))
           FILTER (s.interval_ms IS NOT NULL), 0) / 1e6 AS stands_for_s,
         median(s.interval_ms) AS usual_ms
  FROM spans m
  JOIN nodes n USING (recording_id)
  JOIN host_samples s USING (node_id)
  WHERE {spans.inside}
  GROUP BY ALL
), counted AS (
  SELECT p.session_id, p.recording_id, n.node, p.started_at, p.until AS ended_at,
         epoch(p.until - p.started_at) AS duration_s, coalesce(f.frames, 0) AS frames,
         coalesce(f.stands_for_s, 0) AS stands_for_s,
         greatest(r.interval_ms, coalesce(f.usual_ms, 0)) / 1000 AS interval_s
  FROM spans p
  JOIN recordings r USING (recording_id)
  JOIN names n USING (recording_id)
  LEFT JOIN frames f ON f.session_id = p.session_id AND f.node = n.node
)
SELECT session_id, recording_id, node, started_at, ended_at, duration_s, frames,
       least(duration_s, stands_for_s) AS covered_s,
       CASE WHEN duration_s > 0 THEN least(duration_s, stands_for_s) / duration_s END AS coverage,
       duration_s - stands_for_s <= greatest(1, {STALE_INTERVALS} * interval_s)
         AND (frames > 0 OR duration_s < interval_s) AS complete
FROM counted
"""  # noqa: S608 (own names and numbers)


@dataclass(frozen=True)
class Spans:
    """The relation ``spans``, with its bounds as constants if it has a single span.

    Constants let DuckDB skip samples outside of them.
    """

    relation: str
    began: datetime | None = None
    until: datetime | None = None

    @property
    def inside(self) -> str:
        """The SQL condition that the span of a member ``m`` holds a sample ``s``."""
        if self.began is None or self.until is None:
            return "s.ts >= m.started_at AND s.ts < m.until"
        return f"s.ts >= {_time(self.began)} AND s.ts < {_time(self.until)}"

    def around_begin(self, before_s: int, after_s: int) -> str:
        """Return the SQL condition that a sample is near the start of the span."""
        if self.began is None or self.until is None:
            return (
                f"s.ts >= m.started_at - INTERVAL {before_s} SECOND "
                f"AND s.ts < least(m.until, m.started_at + INTERVAL {after_s} SECOND)"
            )
        first = self.began - timedelta(seconds=before_s)
        last = min(self.until, self.began + timedelta(seconds=after_s))
        return f"s.ts >= {_time(first)} AND s.ts < {_time(last)}"


def one_span(recording_id: int, began: datetime, until: datetime) -> Spans:
    """Return a single span of a recording."""
    relation = (
        f"spans AS (SELECT 0 AS session_id, {recording_id:d} AS recording_id, "
        f"{_time(began)} AS started_at, {_time(until)} AS until)"
    )
    return Spans(relation, began, until)


def several_spans(spans: Sequence[tuple[int, datetime, datetime]]) -> Spans:
    """Return spans, each with its recording, whose ``session_id`` is their place in the sequence.

    Each costs as if it had all samples of its recording; ``one_span`` skips those outside.
    """
    rows = ", ".join(
        f"({place}, {recording_id:d}, {_time(began)}, {_time(until)})"
        for place, (recording_id, began, until) in enumerate(spans)
    )
    return Spans(f"spans AS (SELECT * FROM (VALUES {rows}) v(session_id, recording_id, started_at, until))")  # noqa: S608


SESSION_SPANS = Spans("""
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
)""")
"""All sessions; a running session ends at its newest sample.

The newest samples are in one row's map: with a row each, DuckDB would expect many sessions and hold the
samples in memory instead.
"""


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
)"""  # After a reboot, a GPU has a new row and stays the same member.
