"""The views of a recording file: samples with names, samples and summaries by session, marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gswarm_tui.fleet.thresholds import BUSY_FROM_PCT
from gswarm_tui.store.figures.definitions import MINE, inside_us, reaches_into
from gswarm_tui.store.sql import profile_views, trace_views, trial_views
from gswarm_tui.store.sql.schema import (
    EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    PROCESS_SAMPLES,
    PROFILE_API_EVENTS,
    PROFILE_KERNEL_EVENTS,
    PROFILE_MEMORY_EVENTS,
    PROFILE_RANGE_EVENTS,
    TABLES,
    TRACE_KERNEL_EVENTS,
    TRACE_OP_EVENTS,
    TableSchema,
    literal,
)
from gswarm_tui.store.sql.summaries import SESSION_SPANS, bubbles, coverage, processes, summary
from gswarm_tui.store.sql.view_columns import ViewColumn, columns, table_columns

_GPU = "g.gpu_index, g.uuid, g.name AS gpu_name, g.node_id, g.allocated"
_SAMPLES = f"""
SELECT s.*, n.recording_id, n.node, {_GPU}, g.memory_total_mib AS mem_total_mib, g.power_limit_w
FROM gpu_samples s
JOIN gpus g USING (gpu_id)
JOIN nodes n USING (node_id)
"""  # noqa: S608 (own names)
_OWN = f"WHERE g.{MINE}"

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
{_OWN}
"""  # noqa: S608 (own names)

_EVENT_LOG = """
SELECT e.*, n.node, g.gpu_index
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

_GPU_FACTS = "uuid gpu_name mem_total_mib power_limit_w node_id gpu_id recording_id"
_SAMPLE_COLUMNS = table_columns(
    GPU_SAMPLES,
    "ts node gpu_index util_pct mem_used_pct power_w allocated",
    _GPU_FACTS,
    mem_used_pct="round(100 * mem_used_mib / nullif(mem_total_mib, 0), 1)",
)
_SESSION_SAMPLE_COLUMNS = (
    *columns("ts session"),
    *(replace(column, sql=f'"{column.name}"') for column in _SAMPLE_COLUMNS if column.name != "ts"),
    *columns("in_session_ms session_id"),
)

_OF_PROFILE = "profile node rank"
_OF_PROFILE_GPU = f"{_OF_PROFILE} gpu_index"
_TIMES = "time_pct total_ns calls avg_ns median_ns min_ns max_ns stddev_ns"


def _event_columns(table: TableSchema, first: str, last: str = "") -> tuple[ViewColumn, ...]:
    """Return the columns of a view of a profile's events, with names in the place of their ids."""
    found = table_columns(table, f"ts {first} name duration_ns", f"{last} profile_id node_id recording_id")
    return tuple(column for column in found if column.name not in ("name_id", "short_name_id"))


@dataclass(frozen=True)
class _View:
    meaning: str
    query: str
    columns: tuple[ViewColumn, ...]


_VIEWS = {
    "samples": _View(
        "GPU samples with the names of node and GPU, without GPUs that Slurm gave to others",
        f"{_SAMPLES}{_OWN}",
        _SAMPLE_COLUMNS,
    ),
    "all_samples": _View(
        "samples of all GPUs of the nodes, also of those that Slurm gave to others", _SAMPLES, _SAMPLE_COLUMNS
    ),
    "hosts": _View(
        "Host samples with the names of nodes",
        _HOSTS,
        table_columns(HOST_SAMPLES, "ts node", "host_memory_total_mib node_id recording_id"),
    ),
    "processes": _View(
        "Samples of GPU processes with the names of nodes, without GPUs that Slurm gave to others",
        _PROCESSES,
        table_columns(
            PROCESS_SAMPLES, "ts node gpu_index pid", "uuid gpu_name allocated node_id gpu_id recording_id"
        ),
    ),
    "event_log": _View(
        "Events with the names of nodes and the indexes of GPUs",
        _EVENT_LOG,
        table_columns(EVENTS, "ts node gpu_index", "node_id gpu_id recording_id"),
    ),
    "session_samples": _View(
        "samples of each session; each counts for in_session_ms, the part of its interval in the session",
        _SESSION_SAMPLES,
        _SESSION_SAMPLE_COLUMNS,
    ),
    "session_coverage": _View(
        "The time of each session that the frames of each node cover; complete if no more than three "
        "intervals are missing. Nodes that never answered are included.",
        _with_names(coverage(SESSION_SPANS)),
        columns(
            "session node started_at ended_at duration_s frames covered_s coverage complete "
            "session_id recording_id"
        ),
    ),
    "session_summary": _View(
        "Each session by scope 'gpu', 'node' and 'all', without GPUs that Slurm gave to others. Mean, "
        "median and p95 are over the measured time of single GPUs; a sample counts by the part of its "
        "interval in the session. A GPU that never answered has a row with 0 samples. Times are summed over "
        f"GPUs; busy means util_pct >= {BUSY_FROM_PCT:g}. Energy is the sum of energy_used_j. Coverage is "
        "the share of the session's GPU time that samples cover; partial is set if some nodes don't cover "
        "all of it. Bubbles are explained at session_bubbles; bubble_share is their share of the measured "
        "time between the first and the last busy sample. Host columns are NULL for scope 'gpu'.",
        _SESSION_SUMMARY,
        columns(
            "session scope node gpu_index started_at ended_at duration_s gpus samples coverage "
            "util_mean_pct util_median_pct util_p95_pct util_max_pct power_mean_w power_max_w "
            "mem_used_max_mib mem_total_mib temp_max_c mem_temp_max_c busy_s idle_s energy_j energy_kwh "
            "throttle_power_s throttle_thermal_s throttle_brake_s "
            "bubbles bubble_s bubble_share bubble_longest_s "
            "host_cpu_max_pct host_memory_max_mib host_memory_total_mib partial "
            "session_id recording_id node_id gpu_id"
        ),
    ),
    "session_bubbles": _View(
        "Each idle phase of a GPU between two busy samples of a session, from the busy sample before to the "
        "last idle sample. duration_s is its measured time; time in a gap doesn't count.",
        _with_names(bubbles(SESSION_SPANS)),
        columns("session node gpu_index started_at ended_at duration_s session_id node_id gpu_id"),
    ),
    "session_processes": _View(
        "Each process on each GPU of a session, with its maxima and the times of its first and last sample",
        _with_names(processes(SESSION_SPANS)),
        columns(
            "session node gpu_index pid rank local_rank user_name command mem_used_max_mib sm_max_pct "
            "sm_mean_pct process_cpu_max_pct process_memory_max_mib first_seen last_seen "
            "session_id node_id gpu_id",
            mem_used_max_mib="gpu_memory_max_mib",
            process_cpu_max_pct="cpu_max_pct",
            process_memory_max_mib="memory_max_mib",
        ),
    ),
    "marks": _View(
        "Marks set by a job or a person; values is a JSON object",
        MARKS,
        columns("ts node mark values node_id recording_id"),
    ),
    "mark_values": _View(
        "One row per value of each mark: numbers in value, other values in text",
        MARK_VALUES,
        columns("ts node mark key value text node_id recording_id"),
    ),
    "trials": _View(
        "Each trial: its command, and its plan as a JSON object",
        trial_views.TRIALS,
        columns("ts trial command plan recording_id"),
    ),
    "trial_runs": _View(
        "Each run of a trial that ended, with its session; only those with status ok are compared",
        trial_views.TRIAL_RUNS,
        columns(
            "ts trial run nodes gpus_per_node placement repeat warm_up status wall_s throughput exit_status "
            "reason node_list job session_id recording_id"
        ),
    ),
    "profile_api": _View(
        "Each call of CUDA, and of the operating system's libraries, in profiles",
        profile_views.API,
        _event_columns(PROFILE_API_EVENTS, f"{_OF_PROFILE} layer", "traced_name"),
    ),
    "profile_kernels": _View(
        "Each kernel in profiles",
        profile_views.KERNELS,
        _event_columns(PROFILE_KERNEL_EVENTS, _OF_PROFILE_GPU, "short_name gpu_id"),
    ),
    "profile_memory": _View(
        "Each copy and memory set in profiles",
        profile_views.MEMORY,
        _event_columns(PROFILE_MEMORY_EVENTS, _OF_PROFILE_GPU, "gpu_id"),
    ),
    "profile_ranges": _View(
        "Each NVTX range in profiles, named as by nsys: after its domain, if it has one",
        profile_views.RANGES,
        _event_columns(PROFILE_RANGE_EVENTS, _OF_PROFILE),
    ),
    "trace_ops": _View(
        "Each operator, annotation, call and Python function in traces of PyTorch",
        trace_views.OPS,
        _event_columns(TRACE_OP_EVENTS, _OF_PROFILE),
    ),
    "trace_kernels": _View(
        "Each kernel, copy and memory set in traces of PyTorch",
        trace_views.KERNELS,
        _event_columns(TRACE_KERNEL_EVENTS, _OF_PROFILE),
    ),
    "trace_iterations": _View(
        "Each iteration in traces of PyTorch: ProfilerStep with its number, else from one optimizer step "
        "to the next, from 0, alike on all ranks traced at one time. A trace without any has one row for all "
        "of it",
        trace_views.ITERATIONS,
        columns(f"ts {_OF_PROFILE} iteration duration_ns start_ns end_ns profile_id recording_id"),
    ),
    "trace_ranks": _View(
        "Time of each rank's GPU in each traced iteration: computing, communicating without computing, "
        "copying without both, idle; NULL if the trace has no GPU. overlapped_ms is communication beside "
        "computing",
        trace_views.RANKS,
        columns(
            f"ts {_OF_PROFILE} iteration duration_ms compute_ms communication_ms copy_ms idle_ms "
            "overlapped_ms profile_id recording_id"
        ),
    ),
    "trace_waits": _View(
        "Each collective of each traced rank: it waited for last_rank, which joined last. Ranks are matched "
        "by the number of the collective in its process group, else by when it ended, among traces "
        "whose times overlap. With fewer "
        "ranks than group_size, one without a trace may have joined even later",
        trace_views.WAITS,
        columns(
            f"ts {_OF_PROFILE} collective process_group sequence ranks group_size duration_ms wait_ms "
            "last_rank profile_id recording_id"
        ),
    ),
    "profile_metrics": _View(
        "Each metric of each kernel that Nsight Compute profiled",
        profile_views.METRICS,
        columns(f"{_OF_PROFILE} launch kernel metric unit number text profile_id recording_id"),
    ),
    "profile_gpus": _View(
        "Each GPU of a profile: the time in which its kernels ran, and the share in which none did",
        profile_views.GPUS,
        columns(
            f"{_OF_PROFILE_GPU} device kernels captured_s kernel_s no_kernel_pct "
            "profile_id gpu_id recording_id"
        ),
    ),
    "profile_api_sum": _View(
        "CUDA calls by name, as nsys stats prints them for cuda_api_sum",
        profile_views.API_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} name layer traced_name profile_id recording_id"),
    ),
    "profile_os_sum": _View(
        "Calls of the operating system's libraries by name, as nsys stats prints them for osrt_sum",
        profile_views.OS_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} name profile_id recording_id"),
    ),
    "profile_kernel_sum": _View(
        "Kernels by name, as nsys stats prints them for cuda_gpu_kern_sum",
        profile_views.KERNEL_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} name profile_id recording_id"),
    ),
    "profile_kernel_launch_sum": _View(
        "Kernels by name and size of the launch, as nsys stats prints them for cuda_gpu_kern_gb_sum, and "
        "until 2022 for gpukernsum",
        profile_views.KERNEL_LAUNCH_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} grid block name profile_id recording_id"),
    ),
    "profile_memory_time_sum": _View(
        "Copies and memory sets by time, as nsys stats prints them for cuda_gpu_mem_time_sum",
        profile_views.MEMORY_TIME_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} name profile_id recording_id"),
    ),
    "profile_memory_size_sum": _View(
        "Copies and memory sets by size, as nsys stats prints them for cuda_gpu_mem_size_sum",
        profile_views.MEMORY_SIZE_SUM,
        columns(
            f"{_OF_PROFILE} total_mb calls avg_mb median_mb min_mb max_mb stddev_mb name "
            "profile_id recording_id"
        ),
    ),
    "profile_range_sum": _View(
        "NVTX ranges by name and style, as nsys stats prints them for nvtx_sum",
        profile_views.RANGE_SUM,
        columns(f"{_OF_PROFILE} {_TIMES} style name profile_id recording_id"),
    ),
}

VIEW_NAMES = tuple(_VIEWS)


def meanings(names: Sequence[str]) -> dict[str, str]:
    """Return the meanings of columns in the view or table that has most of them."""
    known = [{column.name: column.meaning for column in view.columns} for view in _VIEWS.values()]
    known += [{column.name: column.meaning for column in table.columns} for table in TABLES]
    best = max(known, key=lambda one: len(one.keys() & set(names)))
    return {name: best[name] for name in names if name in best}


def view_statements() -> Iterator[str]:
    """Return the statements that create the views, replacing those of an older version."""
    for name, view in _VIEWS.items():
        chosen = ", ".join(
            column.sql if column.sql == f'"{column.name}"' else f'{column.sql} AS "{column.name}"'
            for column in view.columns
        )
        yield f"CREATE OR REPLACE VIEW {name} AS SELECT {chosen} FROM ({view.query.strip()})"  # noqa: S608


def described() -> Iterator[str]:
    """Return the statements that store the meanings of tables, views and columns; they take 0.1 s."""
    for table in TABLES:
        yield f"COMMENT ON TABLE {table.name} IS {literal(table.meaning)}"
        for column in table.columns:
            yield f"COMMENT ON COLUMN {table.name}.{column.name} IS {literal(column.meaning)}"
    for name, view in _VIEWS.items():
        yield f"COMMENT ON VIEW {name} IS {literal(view.meaning)}"
        for shown in view.columns:
            yield f'COMMENT ON COLUMN {name}."{shown.name}" IS {literal(shown.meaning)}'
