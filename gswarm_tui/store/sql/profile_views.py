"""Queries of the views of profiles: events with names and times, and the statistics of ``nsys stats``.

The statistics have the rows and the rounding of NVIDIA's scripts: a percentage is of the listed total, the
deviation is that of a sample, 0 for one row, and MB are 10**6 bytes. CUDA calls are listed by the name that
was traced, so that a call of two layers has two rows.
"""

from __future__ import annotations

from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.view_columns import OF_PROFILE, OF_PROFILE_GPU, View, columns, event_columns

OS_RUNTIME = 27
"""Event class of calls of the operating system's libraries."""

COMMUNICATION = (
    r"(?i:nccl|rccl|nvshmem|rocshmem|msccl|multimem|userbuffers|symm(etric)?_?mem|cross_device|quick_?reduce|"
    r"reduce_?scatter|all_?to_?all|moe_?(a2a|comm)|lamport|(intra|inter)node|deep_ep::elastic)|"
    r"(^|[^A-Za-z])all_?([Rr]educe|[Gg]ather)|(^|[^kp])All_?([Rr]educe|[Gg]ather)|ALL_?(REDUCE|GATHER)"
)
"""Names of kernels that communicate, for Python and for DuckDB.

Libraries have kernels of their own: cross_device_reduce (vLLM, SGLang, AITER), allreduce_fusion_kernel,
moeA2ADispatchKernel (FlashInfer, TensorRT-LLM), deep_ep::internode, mscclpp::collective (MSCCL++),
multimem_all_reduce_kernel (PyTorch's symmetric memory), kuserbuffers (Transformer Engine). No letter precedes
"all": small_reduce computes. No "k" or "p" precedes "All": BlockAllReduce and WarpAllReduce compute.
"""
FUSED = "triton_"
"""Start of names of PyTorch's compiled kernels: triton_poi_fused_add_all_reduce_wait_tensor_1 computes.

The name lists what it was fused with, also the result of a collective.
"""
_KIND = f"""
       CASE WHEN starts_with(name, '[CUDA graph') THEN NULL
            WHEN regexp_matches(name, '{COMMUNICATION}') AND NOT starts_with(name, '{FUSED}')
              THEN 'communication' ELSE 'compute' END AS kind
"""
_LAYERS = f"map {{0: 'CUDA runtime', 1: 'CUDA driver', 67: 'CUDA backtrace', {OS_RUNTIME}: 'OS runtime'}}"
_WITHOUT_VERSION = "regexp_replace(n.name, '_v....$', '')"
_TIMES = "time_pct total_ns calls avg_ns median_ns min_ns max_ns stddev_ns"
_GRID = "format('{:>4} {:>4} {:>4}', grid_x, grid_y, grid_z)"
_BLOCK = "format('{:>4} {:>4} {:>4}', block_x, block_y, block_z)"


def events(table: str, *, on_gpu: bool) -> str:
    """Return a query for the events of a table with times, names, and profile, node, rank and GPU."""
    gpu = "g.gpu_index, " if on_gpu else ""
    return f"""
SELECT make_timestamp(epoch_us(p.zero_at) + e.start_ns // 1000) AS ts,
       p.file AS profile, p.node, p.rank, {gpu}n.name, e.* EXCLUDE (name_id), p.node_id, p.recording_id
FROM {table} e
JOIN profiles p USING (profile_id)
LEFT JOIN profile_names n USING (name_id)
{"LEFT JOIN gpus g USING (gpu_id)" if on_gpu else ""}
"""  # noqa: S608 (own names)


API = f"""
SELECT * REPLACE ({_WITHOUT_VERSION.replace("n.name", "name")} AS name), name AS traced_name,
       {_LAYERS}[event_class] AS layer
FROM ({events("profile_api_events", on_gpu=False).strip()})
"""  # noqa: S608 (own names)
KERNELS = f"""
SELECT k.*, s.name AS short_name, {_KIND.replace("(name,", "(k.name,")}
FROM ({events("profile_kernel_events", on_gpu=True).strip()}) k
LEFT JOIN profile_names s ON s.name_id = k.short_name_id
"""  # noqa: S608 (own names)
MEMORY = events("profile_memory_events", on_gpu=True)
RANGES = events("profile_range_events", on_gpu=False)
METRICS = """
SELECT p.started_at AS ts, p.file AS profile, p.node, p.rank, e.launch, n.name AS kernel, e.metric, e.unit,
       e.number, e.text, e.profile_id, p.recording_id
FROM profile_metric_values e
JOIN profiles p USING (profile_id)
LEFT JOIN profile_names n USING (name_id)
"""


def _rounded(value: str) -> str:
    """Return a value rounded to one decimal as SQLite does: 0.35 to 0.4. DuckDB's own gives 0.3."""
    return f"round(10 * ({value})) / 10"


def _measures(value: str) -> str:
    """Return the SQL of a group's number of events, and of the statistics of one of their values."""
    return (
        f"sum({value}) AS total, count(*) AS calls, avg({value}) AS mean, median({value}) AS middle, "
        f"min({value}) AS least, max({value}) AS most, stddev_samp({value}::DOUBLE) AS deviation"
    )


def _statistics(table: str, by: str = "", more: str = "", where: str = "true", name: str = "n.name") -> str:
    """Return a query for the times of events by profile and name, and by the further keys ``by``."""
    keys = f"profile_id, name_id{', ' if by else ''}{by}"
    return f"""
SELECT p.file AS profile, p.node, p.rank,
       {_rounded("total * 100.0 / nullif(sum(total) OVER (PARTITION BY profile_id), 0)")} AS time_pct,
       TRY_CAST(total AS BIGINT) AS total_ns, calls, {_rounded("mean")} AS avg_ns,
       {_rounded("middle")} AS median_ns, least AS min_ns, most AS max_ns,
       {_rounded("coalesce(deviation, 0)")} AS stddev_ns,
       {name} AS name, n.name AS traced_name, s.* EXCLUDE (profile_id), profile_id, p.recording_id
FROM (
  SELECT {keys}{more}, {_measures("duration_ns")} FROM {table} WHERE {where} GROUP BY {keys}
) s
JOIN profiles p USING (profile_id)
LEFT JOIN profile_names n USING (name_id)
ORDER BY profile_id, total DESC, name
"""  # noqa: S608 (own names)


API_SUM = _statistics(
    "profile_api_events",
    more=f", {_LAYERS}[min(event_class)] AS layer",
    where=f"event_class <> {OS_RUNTIME}",
    name=_WITHOUT_VERSION,
)
OS_SUM = _statistics("profile_api_events", where=f"event_class = {OS_RUNTIME}")
KERNEL_SUM = f"SELECT *, {_KIND} FROM ({_statistics('profile_kernel_events').strip()})"  # noqa: S608 (own names)
KERNEL_LAUNCH_SUM = _statistics(
    "profile_kernel_events",
    by="grid_x, grid_y, grid_z, block_x, block_y, block_z",
    more=f", {_GRID} AS grid, {_BLOCK} AS block",
)
MEMORY_TIME_SUM = _statistics("profile_memory_events")
RANGE_SUM = _statistics("profile_range_events", by="style")
MEMORY_SIZE_SUM = f"""
SELECT p.file AS profile, p.node, p.rank, round(total / 1e6, 3) AS total_mb, calls,
       round(mean / 1e6, 3) AS avg_mb, round(middle / 1e6, 3) AS median_mb, round(least / 1e6, 3) AS min_mb,
       round(most / 1e6, 3) AS max_mb, round(coalesce(deviation, 0) / 1e6, 3) AS stddev_mb, n.name,
       profile_id, p.recording_id
FROM (
  SELECT profile_id, name_id, {_measures("bytes")} FROM profile_memory_events GROUP BY ALL
) s
JOIN profiles p USING (profile_id)
LEFT JOIN profile_names n USING (name_id)
ORDER BY profile_id, total DESC, n.name
"""  # noqa: S608 (own names)


def _gpus(kernels: str) -> str:
    """Return a query for the GPUs of profiles and the time in which their kernels ran."""
    return f"""
WITH ordered AS (
  SELECT profile_id, gpu_id, device, start_ns, start_ns + duration_ns AS end_ns,
         max(start_ns + duration_ns) OVER (PARTITION BY profile_id, gpu_id, device ORDER BY start_ns
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
  FROM {kernels}
), busy AS (
  SELECT profile_id, gpu_id, device, count(*) AS kernels,
         sum(greatest(0, end_ns - greatest(start_ns, coalesce(covered_ns, start_ns)))) AS busy_ns,
         epoch_us(any_value(p.ended_at)) - epoch_us(any_value(p.started_at)) AS captured_us
  FROM ordered JOIN profiles p USING (profile_id)
  GROUP BY ALL
)
SELECT p.file AS profile, p.node, p.rank, g.gpu_index, b.device, kernels,
       captured_us / 1e6 AS captured_s, busy_ns / 1e9 AS kernel_s,
       CASE WHEN p.unread IS NULL
         THEN round(100 * greatest(0, 1 - busy_ns / nullif(captured_us * 1000.0, 0)), 1) END AS no_kernel_pct,
       profile_id, gpu_id, p.recording_id
FROM busy b
JOIN profiles p USING (profile_id)
LEFT JOIN gpus g USING (gpu_id)
ORDER BY profile_id, b.device
"""  # noqa: S608 (own names)


GPUS = _gpus("profile_kernel_events")
TRACE_GPUS = _gpus("(SELECT *, NULL::INTEGER AS gpu_id FROM trace_kernel_events WHERE kind <> 'copy')")

# fmt: off
VIEWS = {
    "profile_api": View("Each call of CUDA, and of the operating system's libraries, in profiles", API,
        event_columns(schema.PROFILE_API_EVENTS, f"{OF_PROFILE} layer", "traced_name")),
    "profile_kernels": View("Each kernel in profiles", KERNELS,
        event_columns(schema.PROFILE_KERNEL_EVENTS, f"{OF_PROFILE_GPU} kind", "short_name gpu_id")),
    "profile_memory": View("Each copy and memory set in profiles", MEMORY,
        event_columns(schema.PROFILE_MEMORY_EVENTS, OF_PROFILE_GPU, "gpu_id")),
    "profile_ranges": View("Each NVTX range in profiles, named as by nsys: after its domain, if it has one",
        RANGES, event_columns(schema.PROFILE_RANGE_EVENTS, OF_PROFILE)),
    "profile_metrics": View("Each metric of each kernel that Nsight Compute profiled, at the start of the "
        "profile", METRICS,
        columns(f"ts {OF_PROFILE} launch kernel metric unit number text profile_id recording_id")),
    "profile_gpus": View("Each GPU of a profile: the time in which its kernels ran, and the share in which "
        "none did; NULL if the report has GPU events in tables that gswarm-tui doesn't know", GPUS,
        columns(f"{OF_PROFILE_GPU} device kernels captured_s kernel_s no_kernel_pct profile_id gpu_id "
            "recording_id")),
    "profile_api_sum": View("CUDA calls by name, as nsys stats prints them for cuda_api_sum", API_SUM,
        columns(f"{OF_PROFILE} {_TIMES} name layer traced_name profile_id recording_id")),
    "profile_os_sum": View("Calls of the operating system's libraries by name, as nsys stats prints them for "
        "osrt_sum", OS_SUM, columns(f"{OF_PROFILE} {_TIMES} name profile_id recording_id")),
    "profile_kernel_sum": View("Kernels by name, as nsys stats prints them for cuda_gpu_kern_sum, with their "
        "kind", KERNEL_SUM, columns(f"{OF_PROFILE} {_TIMES} name kind profile_id recording_id")),
    "profile_kernel_launch_sum": View("Kernels by name and size of the launch, as nsys stats prints them for "
        "cuda_gpu_kern_gb_sum, and until 2022 for gpukernsum", KERNEL_LAUNCH_SUM,
        columns(f"{OF_PROFILE} {_TIMES} grid block name profile_id recording_id")),
    "profile_memory_time_sum": View("Copies and memory sets by time, as nsys stats prints them for "
        "cuda_gpu_mem_time_sum", MEMORY_TIME_SUM,
        columns(f"{OF_PROFILE} {_TIMES} name profile_id recording_id")),
    "profile_memory_size_sum": View("Copies and memory sets by size, as nsys stats prints them for "
        "cuda_gpu_mem_size_sum", MEMORY_SIZE_SUM,
        columns(f"{OF_PROFILE} total_mb calls avg_mb median_mb min_mb max_mb stddev_mb name profile_id "
            "recording_id")),
    "profile_range_sum": View("NVTX ranges by name and style, as nsys stats prints them for nvtx_sum",
        RANGE_SUM, columns(f"{OF_PROFILE} {_TIMES} style name profile_id recording_id")),
}
# fmt: on
