"""SQL that summarises spans of time: sessions in the views, any span in the commands. Only text.

The statements are shaped by their cost on millions of samples. One pass groups samples by GPU and
utilisation: few cells that hold exact quantiles. One pass sorts them for idle phases, which depend on the
sample before. Nodes and the whole are computed from these groups.

Sorted rows are scanned with a window over all preceding rows, which DuckDB streams; a window per GPU would
hold all rows a second time.

Sums are of whole numbers: threads add rows in any order, and sums of fractions would differ in the last
digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gswarm_agent.metrics import REASON_HW_THERMAL, REASON_POWER_BRAKE, REASON_POWER_CAP, REASON_SW_THERMAL
from gswarm_tui.fleet.thresholds import STALE_INTERVALS
from gswarm_tui.store.figures.definitions import (
    BUSY,
    IDLE,
    LONGEST_INTERVAL_S,
    MINE,
    covered_from,
    cut_energy_mj,
    energy_mj,
    inside_us,
    is_cut,
    reaches_into,
)

MINUTE_US = 60_000_000
_BOUNDS_US = "epoch_us(m.started_at)", "epoch_us(m.until)"
"""The start and the end of the span of a member ``m`` in SQL."""

_INNER = "us > 0 AND phase > 0 AND phase < busy_samples"


def _throttle(metric: str, bits: int) -> str:
    """Return SQL for the throttled time in 1e-10 s: as measured, else all of it with the bits set."""
    share = f"coalesce(s.{metric}::DOUBLE, 100 * (s.clock_reasons & {bits} <> 0)::INTEGER)"
    return f"sum(TRY_CAST(s.inside_us * round(100 * {share}) AS BIGINT)) AS {metric.removesuffix('_pct')}"


_ACTIVITY = ("sm_active", "tensor_active", "dram_active")
_SUMMED = (
    "s.power_w, s.mem_used_mib, s.temp_c, s.mem_temp_c, s.clock_reasons, s.throttle_power_pct, "
    "s.throttle_thermal_pct, s.throttle_brake_pct, s.sm_clock_mhz, "
    "s.sm_active_pct, s.tensor_active_pct, s.dram_active_pct,"
)
_SUMS_OF_SAMPLES = ", ".join(
    (
        "sum(TRY_CAST(100 * power_w::DOUBLE * inside_us AS BIGINT)) AS power_sum",
        "coalesce(sum(inside_us) FILTER (power_w IS NOT NULL), 0) AS power_us",
        "max(power_w) AS power_max_w, max(mem_used_mib) AS mem_used_max_mib",
        "max(temp_c) AS temp_max_c, max(mem_temp_c) AS mem_temp_max_c",
        _throttle("throttle_power_pct", REASON_POWER_CAP),
        _throttle("throttle_thermal_pct", REASON_SW_THERMAL | REASON_HW_THERMAL),
        _throttle("throttle_brake_pct", REASON_POWER_BRAKE),
        *(f"sum(TRY_CAST(100 * {n}_pct::DOUBLE * inside_us AS BIGINT)) AS {n}_sum" for n in _ACTIVITY),
        *(f"sum(inside_us) FILTER ({n}_pct IS NOT NULL) AS {n}_us" for n in _ACTIVITY),
        "sum(TRY_CAST(tensor_active_pct::DOUBLE * sm_clock_mhz * inside_us AS BIGINT)) AS peak_sum",
        "sum(inside_us) FILTER (tensor_active_pct + sm_clock_mhz IS NOT NULL) AS peak_us",
    )
)
"""Sums and maxima of samples ``s`` that stand for ``inside_us`` each."""
_MAXIMA = ", ".join(
    f"max({name}) AS {name}" for name in ("power_max_w", "mem_used_max_mib", "temp_max_c", "mem_temp_max_c")
)
_ACTIVITY_SUMS = (*(f"{name}_{what}" for name in (*_ACTIVITY, "peak") for what in ("sum", "us")),)
_THROTTLE_SUMS = ("throttle_power", "throttle_thermal", "throttle_brake")
_SUMS_BY_NAME = ("power_sum", "power_us", *_THROTTLE_SUMS, *_ACTIVITY_SUMS)
_MERGED = ", ".join((*(f"sum({name}) AS {name}" for name in _SUMS_BY_NAME), _MAXIMA))
"""The sums and maxima of a GPU's rows that have ``_SUMS_OF_SAMPLES``, such as its minutes."""


def roll_up(low: int, high: int, of_gpus: str = "true") -> str:
    """Return the query that sums up samples by minute between two full minutes: rows of ``gpu_minutes``.

    Times are Unix microseconds; ``of_gpus`` is a condition on ``gpu_id``. A minute with a sample that covers
    more than the longest interval is left out: readers take whole minutes only that far after the start of a
    span. A sum that a node's invented values make too large is NULL.
    """
    longest_ms = LONGEST_INTERVAL_S * 1000
    sums = ("power_sum", *_THROTTLE_SUMS, "used_mj", *_ACTIVITY_SUMS)
    summed = ", ".join(f"TRY_CAST({name} AS BIGINT) AS {name}" for name in sums)
    return f"""
WITH taken AS (
  SELECT *, date_trunc('minute', ts) AS minute
  FROM gpu_samples
  WHERE ts >= make_timestamp({low}) AND ts < make_timestamp({high}) AND {of_gpus}
), s AS (
  SELECT *, 1000 * greatest(coalesce(interval_ms, 0), 0)::BIGINT AS inside_us,
         count(*) FILTER ({BUSY}) OVER (
           PARTITION BY minute, gpu_id ORDER BY ts ROWS UNBOUNDED PRECEDING) AS phase
  FROM taken
  WHERE minute NOT IN (SELECT minute FROM taken WHERE interval_ms > {longest_ms})
), sums AS (
  SELECT minute, gpu_id, count(*) AS samples, max(phase) AS busy_samples, {_SUMS_OF_SAMPLES},
         sum(energy_used_mj) FILTER (energy_used_ms BETWEEN 1 AND {longest_ms}) AS used_mj
  FROM s
  GROUP BY minute, gpu_id
), levels AS (
  SELECT minute, gpu_id, util_pct, sum(inside_us) AS us FROM s GROUP BY ALL
), histograms AS (
  SELECT minute, gpu_id, list(util_pct ORDER BY util_pct) AS util_pcts,
         list(us ORDER BY util_pct) AS util_us
  FROM levels
  GROUP BY ALL
), phases AS (
  SELECT minute, gpu_id, phase, sum(inside_us) AS us FROM s WHERE {IDLE} GROUP BY ALL
), idle AS (
  SELECT minute, gpu_id, sum(us) FILTER (phase = 0) AS before_us,
         sum(us) FILTER (phase = busy_samples AND phase > 0) AS after_us,
         count(*) FILTER ({_INNER}) AS bubbles, sum(us) FILTER ({_INNER}) AS bubble_us,
         max(us) FILTER ({_INNER}) AS longest_us
  FROM phases
  JOIN sums USING (minute, gpu_id)
  GROUP BY ALL
)
SELECT minute, gpu_id, samples, util_pcts, util_us,
       power_us, power_max_w, mem_used_max_mib, temp_max_c, mem_temp_max_c, {summed},
       busy_samples > 0 AS busy, coalesce(before_us, 0) AS idle_before_us,
       coalesce(after_us, 0) AS idle_after_us, coalesce(bubbles, 0) AS bubbles,
       coalesce(bubble_us, 0) AS bubble_us, longest_us AS bubble_longest_us
FROM sums
JOIN histograms USING (minute, gpu_id)
LEFT JOIN idle USING (minute, gpu_id)
ORDER BY minute, gpu_id
"""  # noqa: S608 (own names and numbers)


def _taken(spans: Spans, columns: str) -> str:
    """Return the samples of a span's members with the µs of the span that they stand for.

    Those of minutes that are summed up are left out.
    """
    return f"""
  SELECT m.member, s.gpu_id, s.ts, s.util_pct, {columns} {inside_us(*_BOUNDS_US)} AS inside_us
  FROM {_UNSUMMED} WHERE {spans.overlapping("s.interval_ms")}"""  # noqa: S608 (own names and numbers)


_UNSUMMED = """gpu_samples s
  JOIN unsummed u ON u.minute = date_trunc('minute', s.ts)
  JOIN members m ON m.gpu_id = s.gpu_id AND m.session_id = u.session_id"""
"""The samples ``s`` of members ``m`` whose minutes aren't summed up."""


def _rolled(spans: Spans) -> str:
    """Return the sums of whole minutes in each span, and the minutes whose samples are read.

    The times ``before_ts``, ``busy_ts`` and ``after_ts`` put a minute's idle time before, its busy time and
    its idle time after in order.
    """
    return f"""
rolled AS (
  SELECT m.session_id, m.member, s.*,
         s.minute + to_microseconds(3 * s.gpu_id) AS before_ts,
         s.minute + to_microseconds(3 * s.gpu_id + 1) AS busy_ts,
         s.minute + to_microseconds(3 * s.gpu_id + 2) AS after_ts
  FROM gpu_minutes s
  JOIN members m USING (gpu_id)
  WHERE {spans.whole_minutes}
), unsummed AS (
  SELECT p.session_id, t.minute
  FROM (SELECT DISTINCT date_trunc('minute', s.ts) AS minute FROM gpu_samples s WHERE {spans.only}) t
  JOIN spans p ON t.minute > p.started_at - INTERVAL 1 MINUTE
    AND t.minute < p.until + INTERVAL {LONGEST_INTERVAL_S} SECOND
  EXCEPT SELECT session_id, minute FROM rolled
)"""  # noqa: S608 (own names and numbers)


def _cells(spans: Spans) -> str:
    return f"""
cells AS (
  SELECT member, gpu_id, util_pct, count(*) AS samples, coalesce(sum(inside_us), 0) AS measured_us,
         {_SUMS_OF_SAMPLES}, min(ts) FILTER ({BUSY}) AS first_busy, max(ts) FILTER ({BUSY}) AS last_busy
  FROM ({_taken(spans, _SUMMED)}) s
  GROUP BY member, gpu_id, util_pct
  UNION ALL BY NAME
  SELECT member, gpu_id, util_pct, sum(util_us) AS measured_us
  FROM (SELECT member, gpu_id, unnest(util_pcts) AS util_pct, unnest(util_us) AS util_us FROM rolled)
  GROUP BY ALL
  UNION ALL BY NAME
  SELECT member, gpu_id, sum(samples) AS samples, {_MERGED},
         min(busy_ts) FILTER (busy) AS first_busy, max(busy_ts) FILTER (busy) AS last_busy
  FROM rolled
  GROUP BY ALL
)"""  # noqa: S608 (own names and numbers)


_PRESENT = """
present AS (
  SELECT n.* FROM named n LEFT JOIN (SELECT DISTINCT member, true AS answered FROM cells) USING (member)
  WINDOW same AS (PARTITION BY session_id, node, coalesce(uuid, gpu_index::VARCHAR))
  QUALIFY answered OR (
    NOT coalesce(bool_or(answered) OVER same, false) AND gpu_id = max(gpu_id) OVER same)
)"""
"""Members of each span, including silent GPUs; one whose index changed has the index of its samples."""


def _of_level(value: str) -> str:
    """Return SQL for a sum over GPUs; that of a MIG instance is part of its GPU's, so totals leave it out."""
    whole = f"sum({value}) FILTER (n.parent_index IS NULL)"
    return f"CASE WHEN grouping(n.member) = 0 THEN sum({value}) ELSE {whole} END"


_OF_LEVEL = ", ".join(f"{_of_level(name)} AS {name}" for name in _SUMS_BY_NAME)
_LEVELS = f"""
levels AS (
  SELECT session_id, node, n.member, util_pct, coalesce(sum(samples), 0)::BIGINT AS samples,
         coalesce(sum(measured_us), 0) AS measured_us,
         arg_max(g.memory_total_mib, mem_used_max_mib) AS mem_total_mib, {_MAXIMA}, {_OF_LEVEL},
         {_of_level("peak_sum * TRY_CAST(1e9 / g.sm_clock_max_mhz AS BIGINT)")} AS of_peak_sum,
         {_of_level("peak_us * (g.sm_clock_max_mhz > 0)::INTEGER")} AS of_peak_us
  FROM present n
  LEFT JOIN cells c USING (member)
  LEFT JOIN gpus g ON g.gpu_id = c.gpu_id
  GROUP BY GROUPING SETS (
    (session_id, util_pct), (session_id, node, util_pct), (session_id, node, n.member, util_pct)
  )
), ranked AS (
  SELECT *, sum(CASE WHEN util_pct IS NOT NULL THEN measured_us END) OVER (
           PARTITION BY session_id, node, member ORDER BY util_pct) AS upto,
         sum(CASE WHEN util_pct IS NOT NULL THEN measured_us END) OVER (
           PARTITION BY session_id, node, member) AS total
  FROM levels
)"""  # noqa: S608 (own names)

_MEANS = ", ".join(f"sum({n}_sum) / 100 / nullif(sum({n}_us), 0) AS {n}_mean_pct" for n in _ACTIVITY)
_SUMS = f"""
sums AS (
  SELECT session_id, node, member, sum(samples)::BIGINT AS samples, sum(measured_us) / 1e6 AS measured_s,
         sum(util_pct * measured_us) / nullif(any_value(total), 0) AS util_mean_pct,
         min(util_pct) FILTER (measured_us > 0 AND 100 * upto >= 50 * total) AS util_median_pct,
         min(util_pct) FILTER (measured_us > 0 AND 100 * upto >= 95 * total) AS util_p95_pct,
         max(util_pct) AS util_max_pct,
         list([util_pct, measured_us]) FILTER (node IS NULL AND util_pct IS NOT NULL) AS util_us,
         sum(power_sum) / 100 / nullif(sum(power_us), 0) AS power_mean_w,
         arg_max(mem_total_mib, mem_used_max_mib) AS mem_total_mib, {_MAXIMA},
         CASE WHEN any_value(total) > 0
           THEN coalesce(sum(measured_us) FILTER ({BUSY}), 0) / 1e6 END AS busy_s,
         CASE WHEN any_value(total) > 0
           THEN coalesce(sum(measured_us) FILTER ({IDLE}), 0) / 1e6 END AS idle_s,
         sum(throttle_power) / 1e10 AS throttle_power_s, sum(throttle_thermal) / 1e10 AS throttle_thermal_s,
         sum(throttle_brake) / 1e10 AS throttle_brake_s, {_MEANS},
         sum(of_peak_sum) / 1e11 / nullif(sum(of_peak_us), 0) AS of_peak
  FROM ranked
  GROUP BY session_id, node, member
)"""  # noqa: S608 (own names and numbers)


def _phases(spans: Spans) -> str:
    """Return idle phases, numbered by the busy samples before them; phase NULL holds all other samples.

    A minute that is summed up takes part as up to three samples.
    """
    return f"""
ordered AS (
  SELECT *, count(*) FILTER ({BUSY}) OVER (ROWS UNBOUNDED PRECEDING) AS busy_samples
  FROM ({_taken(spans, "")}
    UNION ALL SELECT member, gpu_id, before_ts, 0, idle_before_us FROM rolled WHERE idle_before_us > 0
    UNION ALL SELECT member, gpu_id, busy_ts, 100, 0 FROM rolled WHERE busy
    UNION ALL SELECT member, gpu_id, after_ts, 0, idle_after_us FROM rolled WHERE idle_after_us > 0
    ORDER BY member, ts)
), phases AS (
  SELECT member, CASE WHEN {IDLE} THEN busy_samples END AS phase,
         min(ts) AS first_idle, max(ts) AS last_idle, sum(inside_us) AS phase_us
  FROM ordered
  GROUP BY ALL
), busy AS (
  SELECT member, min(first_busy) AS first_busy, max(last_busy) AS last_busy FROM cells GROUP BY member
), marked AS (
  SELECT *, phase IS NOT NULL AND first_idle > first_busy AND last_idle < last_busy AND phase_us > 0 AS bubble
  FROM phases
  LEFT JOIN busy USING (member)
)"""  # noqa: S608 (own names and numbers)


def _energy(spans: Spans) -> str:
    """Return each member's energy; steps over more than the longest interval may end far after the span.

    A span cuts at most two steps of each GPU. Their parts need the power of their samples; those of longer
    steps go by time.
    """
    joules = f"sum(TRY_CAST({energy_mj(*_BOUNDS_US)} AS BIGINT))"
    longest_ms = round(LONGEST_INTERVAL_S * 1000)
    cut, (began, until), since = is_cut(*_BOUNDS_US), _BOUNDS_US, covered_from("s.energy_used_ms")
    return f"""
steps AS (
  SELECT m.member, {joules} FILTER (NOT {cut}) AS used_mj, list({{
           'gpu_id': s.gpu_id, 'mj': s.energy_used_mj, 'since_us': {since}, 'until_us': epoch_us(s.ts),
           'from_us': greatest({since}, {began}), 'to_us': least(epoch_us(s.ts), {until})
         }}) FILTER ({cut}) AS cut
  FROM {_UNSUMMED}
  WHERE {spans.overlapping("s.energy_used_ms")} AND s.energy_used_ms <= {longest_ms}
  GROUP BY m.member
), cut AS (
  SELECT *, unnest(range(since_us // {MINUTE_US}, until_us // {MINUTE_US} + 1)) AS minute
  FROM (SELECT member, unnest(cut, recursive := true) FROM steps)
), energy AS (
  SELECT member, sum(used_mj) AS used_mj FROM (
    SELECT member, used_mj FROM steps
    UNION ALL
    SELECT c.member, TRY_CAST({cut_energy_mj()} AS BIGINT)
    FROM cut c
    JOIN gpu_samples s ON s.gpu_id = c.gpu_id AND epoch_us(s.ts) // {MINUTE_US} = c.minute
      AND epoch_us(s.ts) > c.since_us AND epoch_us(s.ts) <= c.until_us
    WHERE {spans.only}
    GROUP BY c.member, c.gpu_id, c.until_us
    UNION ALL
    SELECT m.member, {joules} AS used_mj
    FROM gpu_samples s JOIN members m USING (gpu_id)
    WHERE s.energy_used_ms > {longest_ms} AND s.ts > m.started_at AND {spans.seen}
      AND {reaches_into(_BOUNDS_US[1], "s.energy_used_ms")}
    GROUP BY m.member
    UNION ALL
    SELECT member, sum(used_mj) FROM rolled GROUP BY member
  ) GROUP BY member
)"""  # noqa: S608 (own names and numbers)


_USED = """
units AS (
  SELECT member, sum(bubbles) AS bubbles, coalesce(sum(bubble_us), 0) AS bubble_us,
         max(longest_us) AS longest_us
  FROM (
    SELECT member, count(*) AS bubbles, sum(phase_us) AS bubble_us, max(phase_us) AS longest_us
    FROM marked WHERE bubble GROUP BY member
    UNION ALL
    SELECT member, sum(bubbles), sum(bubble_us), max(bubble_longest_us) FROM rolled GROUP BY member
  )
  GROUP BY member
), used AS (
  SELECT session_id, node, member, grouping(node, member) AS level, count(*) AS members,
         count(*) FILTER (parent_index IS NULL) AS gpus,
         sum(used_mj) / 1000 AS energy_j,
         coalesce(sum(bubbles), 0)::BIGINT AS bubbles, coalesce(sum(bubble_us), 0) / 1e6 AS bubble_s,
         max(longest_us) / 1e6 AS bubble_longest_s
  FROM present
  LEFT JOIN units USING (member)
  LEFT JOIN energy USING (member)
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
  WHERE {spans.overlapping("s.interval_ms")}
  GROUP BY GROUPING SETS ((m.session_id), (m.session_id, n.node))
)"""  # noqa: S608 (own names and numbers)


def summary(spans: Spans) -> str:
    """Return a query with one row per GPU, node and whole span; ``node`` and ``gpu_id`` are NULL above them.

    The whole has its histogram as pairs of util_pct and measured µs, which several spans can add up.
    A sample counts by the part of its interval that lies in the span. GPUs that never answered have rows
    without figures. A bubble is an idle phase of a GPU between two busy samples; time in a gap doesn't count.
    Its share is of the measured time between the first and the last busy sample.
    """
    relations = (
        spans.relation, MEMBERS, _rolled(spans), _cells(spans), _PRESENT, _LEVELS, _SUMS, _phases(spans),
        _energy(spans), _USED, _hosts(spans),
    )  # fmt: skip
    return f"""
WITH {",".join(relations)}, node_ids AS (
  SELECT session_id, node, max(node_id) AS node_id FROM named GROUP BY ALL
)
SELECT u.session_id, CASE u.level WHEN 3 THEN 'all' WHEN 1 THEN 'node' ELSE 'gpu' END AS scope,
       i.node_id, u.node, n.gpu_id, n.gpu_index, n.rank, p.started_at, p.until AS ended_at,
       epoch(p.until - p.started_at) AS duration_s, u.gpus, s.samples,
       CASE WHEN p.until > p.started_at
         THEN least(1, s.measured_s / (epoch(p.until - p.started_at) * u.members)) END AS coverage,
       s.* EXCLUDE (session_id, node, member, samples, measured_s),
       u.energy_j, u.energy_j / 3.6e6 AS energy_kwh,
       CASE WHEN s.busy_s IS NOT NULL THEN u.bubbles END AS bubbles,
       CASE WHEN s.busy_s IS NOT NULL THEN u.bubble_s END AS bubble_s,
       u.bubble_s / nullif(u.bubble_s + s.busy_s, 0) AS bubble_share,
       u.bubble_longest_s, n.parent_index,
       h.host_cpu_max_pct, h.host_memory_max_mib, h.host_memory_total_mib
FROM used u
JOIN spans p USING (session_id)
JOIN sums s ON s.session_id = u.session_id AND s.node IS NOT DISTINCT FROM u.node
  AND s.member IS NOT DISTINCT FROM u.member
LEFT JOIN node_ids i ON i.session_id = u.session_id AND i.node = u.node
LEFT JOIN named n ON n.member = u.member
LEFT JOIN hosts h ON h.session_id = u.session_id AND h.node IS NOT DISTINCT FROM u.node AND u.member IS NULL
"""  # noqa: S608 (own names and numbers)


def sums(spans: Spans) -> str:
    """Return a query for the sums of each span, in their order: utilisation and power with their seconds, and
    joules.
    """
    relations = spans.relation, MEMBERS, _rolled(spans), _cells(spans), _energy(spans)
    return f"""
WITH {",".join(relations)}, joules AS (
  SELECT session_id, sum(used_mj)::DOUBLE / 1000 AS energy_j
  FROM energy JOIN named USING (member) GROUP BY session_id
)
SELECT coalesce(sum(util_pct * measured_us), 0)::DOUBLE / 1e6,
       coalesce(sum(measured_us) FILTER (util_pct IS NOT NULL), 0)::DOUBLE / 1e6,
       coalesce(sum(power_sum), 0)::DOUBLE / 1e8, coalesce(sum(power_us), 0)::DOUBLE / 1e6,
       coalesce(any_value(energy_j), 0)
FROM spans
LEFT JOIN joules USING (session_id)
LEFT JOIN named n USING (session_id)
LEFT JOIN cells USING (member)
GROUP BY session_id
ORDER BY session_id
"""  # noqa: S608 (own names and numbers)


def totals() -> str:
    """Return a query with a row for each whole recording: its number, GPUs, mean utilisation, joules,
    measured seconds, and members, among them MIG instances.

    The span of a whole recording cuts no sample, so all sums by minute are taken as they are. The figures are
    those of ``summary``, which takes five times as long.
    """
    longest_ms = LONGEST_INTERVAL_S * 1000
    return f"""
WITH spans AS (
  SELECT recording_id AS session_id, recording_id, started_at, started_at AS until FROM recordings
),{MEMBERS}, cells AS (
  SELECT member, unnest(util_pcts) AS util_pct, unnest(util_us) AS us, NULL AS used_mj
  FROM gpu_minutes JOIN members USING (gpu_id)
  UNION ALL SELECT member, NULL, 0, used_mj FROM gpu_minutes JOIN members USING (gpu_id)
  UNION ALL
  SELECT member, util_pct, 1000 * coalesce(interval_ms, 0)::BIGINT,
         CASE WHEN energy_used_ms BETWEEN 1 AND {longest_ms} THEN energy_used_mj END
  FROM gpu_samples JOIN members USING (gpu_id)
  WHERE date_trunc('minute', ts) NOT IN (SELECT minute FROM gpu_minutes)
  UNION ALL
  SELECT member, NULL, 0, energy_used_mj FROM gpu_samples JOIN members USING (gpu_id)
  WHERE energy_used_ms > {longest_ms}
),{_PRESENT}
SELECT session_id, count(DISTINCT member) FILTER (parent_index IS NULL),
       sum(util_pct * us) / nullif(sum(us) FILTER (util_pct IS NOT NULL), 0),
       sum(used_mj) / 1000,
       coalesce(sum(us), 0) / 1e6, count(DISTINCT member)
FROM present LEFT JOIN cells USING (member)
GROUP BY session_id
"""  # noqa: S608 (own names and numbers)


def energy_by_gpu(spans: Spans) -> str:
    """Return a query with one row per GPU of any job: node, index, UUID, whether it counts, and mJ."""
    relations = spans.relation, _members("true"), _rolled(spans), _energy(spans)
    return f"""
WITH {",".join(relations)}
SELECT m.node, m.gpu_index, m.uuid, bool_or(m.{MINE}), coalesce(any_value(e.used_mj), 0)::DOUBLE
FROM members m LEFT JOIN energy e USING (member)
GROUP BY m.member, m.node, m.gpu_index, m.uuid
"""  # noqa: S608 (own names and numbers)


def bubbles(spans: Spans) -> str:
    """Return a query with one row per bubble: an idle phase of a GPU between two busy samples.

    Its duration is the measured time; time in a gap doesn't count.
    """
    spans = replace(spans, sums=False)
    relations = (spans.relation, MEMBERS, _rolled(spans), _cells(spans), _phases(spans))
    return f"""
WITH {",".join(relations)}
SELECT n.session_id, n.node_id, n.node, n.gpu_id, n.gpu_index, n.rank,
       o.ts AS started_at, b.last_idle AS ended_at, b.phase_us / 1e6 AS duration_s
FROM marked b
JOIN ordered o ON o.member = b.member AND o.busy_samples = b.phase AND o.{BUSY}
JOIN named n ON n.member = b.member
WHERE b.bubble
"""  # noqa: S608 (own names and numbers)


def processes(spans: Spans) -> str:
    """Return a query with one row per process and GPU: identity and peaks. Command lines are raw.

    A sample covers the interval of its frame, and counts in a mean by the part that lies in the span.
    """
    covers_ms = "coalesce(h.interval_ms, 0)"
    inside = inside_us(*_BOUNDS_US, covers_ms)
    return f"""
WITH {spans.relation},{MEMBERS}
SELECT n.session_id, n.node_id, n.node, n.gpu_id, n.gpu_index, s.pid, max(s.rank) AS rank,
       max(s.local_rank) AS local_rank, arg_max(s.user_name, s.ts) AS user_name,
       arg_max(s.command, s.ts) AS command, any_value(s.slurm_job_id) AS slurm_job_id,
       any_value(s.slurm_step_id) AS slurm_step_id, any_value(s.framework) AS framework,
       any_value(s.nccl) AS nccl, any_value(s.container) AS container,
       min(s.ts) AS first_seen, max(s.ts) AS last_seen,
       max(s.gpu_memory_mib) AS gpu_memory_max_mib, max(s.sm_pct) AS sm_max_pct,
       sum(s.sm_pct * {inside}) / nullif(sum({inside}) FILTER (s.sm_pct IS NOT NULL), 0) AS sm_mean_pct,
       max(s.cpu_pct) AS cpu_max_pct, max(s.memory_mib) AS memory_max_mib
FROM process_samples s
JOIN members m USING (gpu_id)
JOIN named n USING (member)
LEFT JOIN host_samples h ON h.node_id = m.node_id AND h.ts = s.ts
WHERE {spans.overlapping(covers_ms)}
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
         coalesce(sum({inside_us(*_BOUNDS_US)}), 0) / 1e6 AS stands_for_s,
         median(s.interval_ms) AS usual_ms
  FROM spans m
  JOIN nodes n USING (recording_id)
  JOIN host_samples s USING (node_id)
  WHERE {spans.overlapping("s.interval_ms")}
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
    """The relation ``spans``. With ``sums``, sums by minute are taken, where they exist, instead of samples.

    ``only`` is a condition that all samples ``s`` of the spans and of the steps that they cut fulfil; its
    constants let DuckDB skip others.
    ``seen`` is the condition that a sample was recorded at the time that is looked at.
    """

    relation: str
    only: str = "true"
    seen: str = "true"
    sums: bool = True

    @property
    def whole_minutes(self) -> str:
        """The SQL condition that the sums of the minute ``s.minute`` are taken for a member ``m``.

        A sample of the first minute covers no time before the span.
        """
        if not self.sums:
            return "false"
        longest = f"m.started_at + INTERVAL {LONGEST_INTERVAL_S} SECOND"
        return f"s.minute >= {longest} AND s.minute + INTERVAL 1 MINUTE <= m.until"

    def overlapping(self, covers_ms: str) -> str:
        """Return the SQL condition that a sample's time before ``s.ts`` overlaps the span."""
        return (
            f"{self.only} AND s.ts > m.started_at AND s.ts < m.until + INTERVAL {LONGEST_INTERVAL_S} SECOND "
            f"AND {reaches_into(_BOUNDS_US[1], covers_ms)}"
        )


def spans_of(spans: Sequence[tuple[int, datetime, datetime]], seen: datetime | None = None) -> Spans:
    """Return spans, each of a recording, whose ``session_id`` is their place in the sequence.

    Samples after ``seen`` count as not recorded yet.
    """
    rows = ", ".join(
        f"({place}, {recording_id:d}, {_time(began)}, {_time(until)})"
        for place, (recording_id, began, until) in enumerate(spans)
    )
    first, last = min(began for _, began, _ in spans), max(until for _, _, until in spans)
    longest = f"INTERVAL {LONGEST_INTERVAL_S} SECOND"
    known = "true" if seen is None else f"s.ts <= {_time(seen)}"
    return Spans(
        f"spans AS (SELECT * FROM (VALUES {rows}) v(session_id, recording_id, started_at, until))",  # noqa: S608
        f"s.ts > {_time(first)} - {longest} AND s.ts < {_time(last)} + {longest} AND {known}",
        known,
    )


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


def _members(of_gpus: str) -> str:
    """Return the GPUs of each span that fulfil a condition; after a reboot, one has a new row and stays."""
    return f"""
members AS (
  SELECT p.session_id, p.started_at, p.until, n.node, n.node_id, g.gpu_id, g.gpu_index, g.uuid, g.allocated,
         g.parent_index, g.newest_rank AS rank,
         (dense_rank() OVER (ORDER BY p.session_id, n.node, g.gpu_index, g.uuid))::INTEGER AS member
  FROM spans p
  JOIN nodes n USING (recording_id)
  JOIN gpus g USING (node_id)
  WHERE {of_gpus}
)"""  # noqa: S608 (own names)


MEMBERS = f"""{_members("g." + MINE)}, named AS (
  SELECT member, session_id, node, gpu_index, uuid, parent_index,
         max(gpu_id) AS gpu_id, max(node_id) AS node_id, arg_max(rank, gpu_id) AS rank
  FROM members
  GROUP BY ALL
)"""  # noqa: S608 (own names)
