"""The views of a recording file: samples with names, samples and summaries by session, marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gswarm_agent.metrics import LISTINGS, ROW_NAMES
from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.store.figures.definitions import MINE, inside_us, reaches_into
from gswarm_tui.store.sql import profile_views, schema, trace_views, trial_views
from gswarm_tui.store.sql.schema import literal
from gswarm_tui.store.sql.summaries import SESSION_SPANS, Spans, bubbles, coverage, processes, summary
from gswarm_tui.store.sql.view_columns import View, columns, table_columns

_GPU = (
    "g.gpu_index, g.uuid, g.name AS gpu_name, g.numa_node AS gpu_numa_node, g.node_id, g.allocated, "
    "g.parent_index, g.mig_profile"
)
_SAMPLES = f"""
SELECT s.*, n.recording_id, n.node, {_GPU}, g.newest_rank,
       g.memory_total_mib AS mem_total_mib, g.power_limit_w
FROM gpu_samples s
JOIN gpus g USING (gpu_id)
JOIN nodes n USING (node_id)
"""  # noqa: S608 (own names)
OWN = f"WHERE g.{MINE}"
"""Leaves out the GPUs that Slurm gave to others, in a view's query."""

_HOSTS = """
SELECT s.*, n.recording_id, n.node, n.memory_total_mib AS host_memory_total_mib
FROM host_samples s
JOIN nodes n USING (node_id)
"""

_PROCESSES = f"""
SELECT s.*, n.recording_id, n.node, {_GPU}
FROM process_samples s
JOIN gpus g USING (gpu_id)
JOIN nodes n USING (node_id)
{OWN}
"""  # noqa: S608 (own names)


def _listing(kind: str) -> View:
    """Return the view of a listing, with the words of codes."""
    table = schema.LISTING_TABLES[kind]
    words = [f"{[*m.words]}[{m.name} + 1] AS {m.name}" for m in LISTINGS[kind] if m.words]
    replaced = f"REPLACE ({', '.join(words)})" if words else ""
    query = f"SELECT s.* {replaced}, n.recording_id, n.node FROM {table.name} s JOIN nodes n USING (node_id)"  # noqa: S608
    first = f"ts node {ROW_NAMES[kind]}"
    return View(table.meaning, query, table_columns(table, first, "node_id recording_id"))


_EVENT_LOG = """
SELECT e.*, n.node, g.gpu_index, g.newest_rank
FROM events e
LEFT JOIN nodes n USING (node_id)
LEFT JOIN gpus g USING (gpu_id)
"""

_SESSION_SAMPLES = f"""
SELECT e.session_id, e.name AS session, s.*,
       {inside_us("epoch_us(e.started_at)", "coalesce(epoch_us(e.ended_at), epoch_us(s.ts))")}
         / 1000 AS in_session_ms
FROM sessions e
JOIN samples s ON s.recording_id = e.recording_id
  AND s.ts > e.started_at
  AND (e.ended_at IS NULL OR {reaches_into("epoch_us(e.ended_at)")})
"""  # noqa: S608 (own names)


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
SELECT s.session_id, e.name AS session, e.recording_id, s.* EXCLUDE (session_id, util_us),
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

# Names without their digits join "epoch 1" and "epoch 2"; each rank of each node has marks of its own.
_INTERVALS = f"""
mark_ends AS (
  SELECT *, row_number() OVER (ORDER BY ts, node_id, mark, "values"::VARCHAR) AS session_id,
         lag(ts) OVER (PARTITION BY recording_id, node_id, "values" ->> 'rank',
           regexp_replace(mark, '[0-9]+', '', 'g') ORDER BY ts) AS started_at
  FROM ({MARKS})
), spans AS (
  SELECT session_id, recording_id, started_at, ts AS until FROM mark_ends WHERE started_at < ts
)"""  # noqa: S608 (own names)
_MARK_INTERVALS = f"""
WITH {_INTERVALS}
SELECT m.mark, m.node, m.node_id, m.recording_id, m."values", s.* EXCLUDE (node, node_id)
FROM ({summary(Spans(_INTERVALS)).strip()}) s
JOIN mark_ends m USING (session_id)
WHERE s.scope = 'all'
"""  # noqa: S608 (own names)

_GPU_FACTS = (
    "uuid gpu_name gpu_numa_node mem_total_mib power_limit_w parent_index mig_profile "
    "node_id gpu_id recording_id"
)
_SAMPLE_COLUMNS = table_columns(
    schema.GPU_SAMPLES,
    "ts node gpu_index newest_rank util_pct mem_used_pct power_w allocated",
    _GPU_FACTS,
    mem_used_pct="round(100 * mem_used_mib / nullif(mem_total_mib, 0), 1)",
)
_SESSION_SAMPLE_COLUMNS = (
    *columns("ts session"),
    *(replace(column, sql=f'"{column.name}"') for column in _SAMPLE_COLUMNS if column.name != "ts"),
    *columns("in_session_ms session_id"),
)

# fmt: off
VIEWS: dict[str, View] = {
    "samples": View("GPU samples with the names of node and GPU, without GPUs that Slurm gave to others",
        f"{_SAMPLES}{OWN}", _SAMPLE_COLUMNS),
    "all_samples": View("samples of all GPUs of the nodes, also of those that Slurm gave to others", _SAMPLES,
        _SAMPLE_COLUMNS),
    "hosts": View("Host samples with the names of nodes", _HOSTS,
        table_columns(schema.HOST_SAMPLES, "ts node", "host_memory_total_mib node_id recording_id")),
    "processes": View("Samples of GPU processes with the names of nodes, without GPUs that Slurm gave to "
        "others", _PROCESSES,
        table_columns(schema.PROCESS_SAMPLES, "ts node gpu_index pid",
            "uuid gpu_name gpu_numa_node allocated parent_index mig_profile node_id gpu_id recording_id")),
    **{kind: _listing(kind) for kind in schema.LISTING_TABLES},
    "event_log": View("Events with the names of nodes and the indexes of GPUs", _EVENT_LOG,
        table_columns(schema.EVENTS, "ts node gpu_index newest_rank", "node_id gpu_id recording_id")),
    "session_samples": View("samples of each session; each counts for in_session_ms, the part of its "
        "interval in the session", _SESSION_SAMPLES, _SESSION_SAMPLE_COLUMNS),
    "session_coverage": View("The time of each session that the frames of each node cover; complete if no "
        "more than three intervals are missing. Nodes that never answered are included.",
        _with_names(coverage(SESSION_SPANS)),
        columns("session node started_at ended_at duration_s frames covered_s coverage complete session_id "
            "recording_id")),
    "session_summary": View("Each session by scope 'gpu', 'node' and 'all', without GPUs that Slurm gave to "
        "others. Mean, median and p95 are over the measured time of single GPUs; a sample counts by the "
        "part of its interval in the session. A GPU that never answered has a row with 0 samples. Times are "
        f"summed over GPUs; busy means util_pct >= {BUSY_FROM_PCT:g}. A MIG instance has a row of scope "
        "'gpu', but gpus doesn't count it. Energy is the sum of energy_used_j. Coverage is the share of the "
        "session's GPU time that samples cover; partial is set if some nodes don't cover all of it. Bubbles "
        "are explained at session_bubbles; bubble_share is their share of the measured time between the "
        "first and the last busy sample. Host columns are NULL for scope 'gpu'.", _SESSION_SUMMARY,
        columns("session scope node gpu_index rank started_at ended_at duration_s gpus samples coverage "
        "util_mean_pct util_median_pct util_p95_pct util_max_pct sm_active_mean_pct tensor_active_mean_pct "
            "dram_active_mean_pct of_peak power_mean_w power_max_w mem_used_max_mib mem_total_mib temp_max_c "
            "mem_temp_max_c busy_s idle_s energy_j energy_kwh throttle_power_s throttle_thermal_s "
            "throttle_brake_s bubbles bubble_s bubble_share bubble_longest_s host_cpu_max_pct "
            "host_memory_max_mib host_memory_total_mib partial parent_index session_id recording_id node_id "
            "gpu_id")),
    "session_bubbles": View("Each idle phase of a GPU between two busy samples of a session, from the busy "
        "sample before to the last idle sample. duration_s is its measured time; time in a gap doesn't "
        "count.", _with_names(bubbles(SESSION_SPANS)),
        columns("session node gpu_index rank started_at ended_at duration_s session_id node_id gpu_id")),
    "session_processes": View("Each process on each GPU of a session, with its maxima and the times of its "
        "first and last sample", _with_names(processes(SESSION_SPANS)),
        columns("session node gpu_index pid rank local_rank user_name command slurm_job_id slurm_step_id "
            "framework nccl container mem_used_max_mib sm_max_pct "
            "sm_mean_pct process_cpu_max_pct process_memory_max_mib first_seen last_seen session_id node_id "
            "gpu_id", mem_used_max_mib="gpu_memory_max_mib", process_cpu_max_pct="cpu_max_pct",
            process_memory_max_mib="memory_max_mib")),
    "marks": View("Marks set by a job or a person; values is a JSON object", MARKS,
        columns("ts node mark values node_id recording_id")),
    "mark_values": View("One row per value of each mark: numbers in value, other values in text", MARK_VALUES,
        columns("ts node mark key value text node_id recording_id")),
    "mark_intervals": View("The time from each mark to the next of its rank and name; digits in names don't "
        "count, so epoch 2 follows epoch 1. Each row is named by the mark at its end and has the figures of "
        "session_summary for all GPUs.", _MARK_INTERVALS,
        columns("mark started_at ended_at duration_s gpus energy_j energy_kwh util_mean_pct power_mean_w "
            "mem_used_max_mib busy_s idle_s coverage node values node_id recording_id")),
    **trial_views.VIEWS,
    **profile_views.VIEWS,
    **trace_views.VIEWS,
}
# fmt: on

VIEW_NAMES = tuple(VIEWS)


def meanings(names: Sequence[str]) -> dict[str, str]:
    """Return the meanings of columns in the view or table that has most of them."""
    known = [{column.name: column.meaning for column in view.columns} for view in VIEWS.values()]
    known += [{column.name: column.meaning for column in table.columns} for table in schema.TABLES]
    best = max(known, key=lambda one: len(one.keys() & set(names)))
    return {name: best[name] for name in names if name in best}


def view_statements(*, by_run: bool = False) -> Iterator[str]:
    """Return the statements that create the views, replacing those of an older version.

    With ``by_run``, views have the column ``run`` of their tables.
    """
    for name, view in VIEWS.items():
        yield f"CREATE OR REPLACE VIEW {name} AS {_with_run(view) if by_run else view.rows}"


def _with_run(view: View) -> str:
    names = [column.name for column in view.columns]
    if "run" in names:  # the number of a trial's run
        return view.rows
    of_recording = "recordings t USING (recording_id)"
    named = of_recording if "recording_id" in names else "sessions t USING (session_id)"
    return f"SELECT t.run, v.* FROM ({view.rows}) v JOIN {named}"  # noqa: S608 (own names)


def described() -> Iterator[str]:
    """Return the statements that store the meanings of tables, views and columns; it takes 0.1 s."""
    for table in schema.TABLES:
        yield f"COMMENT ON TABLE {table.name} IS {literal(table.meaning)}"
        for column in table.columns:
            yield f"COMMENT ON COLUMN {table.name}.{column.name} IS {literal(column.meaning)}"
    for name, view in VIEWS.items():
        yield f"COMMENT ON VIEW {name} IS {literal(view.meaning)}"
        for shown in view.columns:
            yield f'COMMENT ON COLUMN {name}."{shown.name}" IS {literal(shown.meaning)}'
