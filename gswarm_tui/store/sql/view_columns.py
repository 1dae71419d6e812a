"""Columns of the views: one name for each quantity in all views, each with its meaning and unit.

Device memory begins with ``mem``, a node's memory with ``host_memory``, a process's with ``process_memory``.
Energy is in joules. Columns that order and identify rows come first, ids that only join tables come last.
"""

from __future__ import annotations

from dataclasses import dataclass

from gswarm_tui.store.sql import schema

OF_PROFILE, OF_PROFILE_GPU = "profile node rank", "profile node rank gpu_index"

_RENAMED = {
    schema.GPU_SAMPLES: {"energy_j": "energy_counter_j"},
    schema.HOST_SAMPLES: {"memory_used_mib": "host_memory_used_mib"},
    schema.PROCESS_SAMPLES: {
        "gpu_memory_mib": "mem_used_mib",
        "cpu_pct": "process_cpu_pct",
        "memory_mib": "process_memory_mib",
    },
}
"""Names in views for columns whose name in a table is used or spelt differently in another table."""


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its meaning with the unit, and its SQL over the view's query."""

    name: str
    meaning: str
    sql: str


@dataclass(frozen=True)
class View:
    """A view of a recording: what it has, its query, and the columns of that which it shows."""

    meaning: str
    query: str
    columns: tuple[ViewColumn, ...]

    @property
    def rows(self) -> str:
        """The SQL query for its rows."""
        chosen = ", ".join(
            column.sql if column.sql == f'"{column.name}"' else f'{column.sql} AS "{column.name}"'
            for column in self.columns
        )
        return f"SELECT {chosen} FROM ({self.query.strip()})"  # noqa: S608 (own names)


_AS_IN_TABLE = {
    schema.NODES: "node node_id",
    schema.GPUS: "gpu_id gpu_index uuid parent_index mig_profile power_limit_w newest_rank",
    schema.RECORDINGS: "recording_id",
    schema.PROCESS_SAMPLES: "pid rank local_rank user_name command slurm_step_id framework nccl container",
    schema.PROFILES: "profile_id",
    schema.PROFILE_NAMES: "name",
    schema.PROFILE_KERNEL_EVENTS: "device start_ns duration_ns",
    schema.PROFILE_RANGE_EVENTS: "style",
    schema.PROFILE_METRIC_VALUES: "launch metric unit number",
    schema.TRACE_KERNEL_EVENTS: "collective process_group group_ranks sequence group_size",
}
"""Columns that have the same name and meaning in a table."""
MEANINGS = {
    **{name: table[name].meaning for table, names in _AS_IN_TABLE.items() for name in names.split()},
    "slurm_job_id": schema.PROCESS_SAMPLES["slurm_job_id"].meaning,
    "ts": "Time (UTC)",
    "gpu_name": schema.GPUS["name"].meaning,
    "gpu_numa_node": schema.GPUS["numa_node"].meaning,
    "allocated": "Whether the GPU is certainly the job's; NULL where Slurm reports no GPUs",
    "mem_used_pct": "Device memory in use, of all [%]",
    "mem_total_mib": schema.GPUS["memory_total_mib"].meaning,
    "host_memory_total_mib": schema.NODES["memory_total_mib"].meaning,
    "session": "Name of the session",
    "in_session_ms": "Part of the sample's interval that lies in the session [ms]",
    "session_id": "Number of the session in this file",
    "scope": "Scope of the row: gpu, node or all",
    "started_at": "Start (UTC), included",
    "ended_at": "End (UTC), excluded; of a running session its newest sample",
    "duration_s": "Time from start to end [s]",
    "frames": "Frames of the node in the session",
    "covered_s": "Time that the frames cover [s]",
    "coverage": "Share of the time that is measured, 0 to 1",
    "complete": "Whether at most three intervals are missing",
    "gpus": "Number of GPUs",
    "samples": "Number of samples",
    "util_mean_pct": "Mean of util_pct over the measured time [%]",
    "util_median_pct": "Median of util_pct over the measured time [%]",
    "util_p95_pct": "Smallest util_pct that reaches 95 % of the measured time [%]",
    "util_max_pct": "Highest util_pct [%]",
    "sm_active_mean_pct": "Mean of sm_active_pct over the time in which it was measured [%]",
    "tensor_active_mean_pct": "Mean of tensor_active_pct over the time in which it was measured [%]",
    "dram_active_mean_pct": "Mean of dram_active_pct over the time in which it was measured [%]",
    "of_peak": "Use of tensor cores' peak, about: mean tensor active times SM clock / its maximum, 0 to 1",
    "power_mean_w": "Mean power of a GPU over the time in which it was measured [W]",
    "power_max_w": "Highest power of a GPU [W]",
    "mem_used_max_mib": "Most device memory in use on one GPU [MiB]",
    "temp_max_c": "Highest temperature of a GPU [°C]",
    "mem_temp_max_c": "Highest temperature of device memory [°C]",
    "busy_s": "Busy time, summed over GPUs [s]",
    "idle_s": "Idle time, summed over GPUs [s]",
    "energy_j": "Energy used from start to end [J]",
    "energy_kwh": "Energy used from start to end [kWh]",
    "throttle_power_s": "Time in which the power limit held clocks down, summed over GPUs [s]",
    "throttle_thermal_s": "Time in which temperature held clocks down, summed over GPUs [s]",
    "throttle_brake_s": "Time in which an external power brake held clocks down, summed over GPUs [s]",
    "bubbles": "Number of idle phases between two busy samples",
    "bubble_s": "Time in bubbles, summed over GPUs [s]",
    "bubble_share": "Share of bubbles in the time between the first and the last busy sample, 0 to 1",
    "bubble_longest_s": "Longest bubble [s]",
    "host_cpu_max_pct": "Highest share of all cores' time that was neither idle nor iowait [%]",
    "host_memory_max_mib": "Most host memory in use on one node [MiB]",
    "partial": "Number of nodes that cover the whole session, if not all do",
    "mark": "Name of the mark",
    "values": "Values of the mark as a JSON object",
    "key": "Name of the value",
    "value": "The value, if it is a number",
    "text": "The value, if it is no number",
    "process_cpu_max_pct": "Highest CPU time of the process; 100 is one core [%]",
    "process_memory_max_mib": "Most host memory of the process [MiB]",
    "sm_max_pct": "Highest sm_pct [%]",
    "sm_mean_pct": "Mean of sm_pct [%]",
    "first_seen": "Time of the first sample (UTC)",
    "last_seen": "Time of the last sample (UTC)",
    "profile": "Name of the profile's report, without its folder",
    "short_name": "Name of the kernel without its arguments",
    "traced_name": "Name of the call as it was traced, with the version of its layer",
    "layer": "Layer of the call: CUDA runtime, CUDA driver, CUDA backtrace or OS runtime",
    "time_pct": "Share of the profile's total in this view [%]",
    "total_ns": "Time of all [ns]",
    "calls": "Number of calls, launches or operations",
    "avg_ns": "Mean time [ns]",
    "median_ns": "Median time [ns]",
    "min_ns": "Shortest time [ns]",
    "max_ns": "Longest time [ns]",
    "stddev_ns": "Standard deviation of the time, as of a sample [ns]",
    "total_mb": "Size of all [MB]",
    "avg_mb": "Mean size [MB]",
    "median_mb": "Median size [MB]",
    "min_mb": "Smallest size [MB]",
    "max_mb": "Largest size [MB]",
    "stddev_mb": "Standard deviation of the size, as of a sample [MB]",
    "grid": "Blocks of the launch in x, y and z",
    "block": "Threads of a block in x, y and z",
    "kernels": "Number of kernels that ran",
    "captured_s": "Time of the capture [s]",
    "kernel_s": "Time in which at least one kernel of the profile ran on the GPU [s]",
    "no_kernel_pct": "Share of the capture in which no kernel of the profile ran on the GPU [%]",
    "kernel": "Name of the kernel",
    "kind": "compute or communication, by the kernel's name; NULL for a CUDA graph",
    "iteration": "Number of the iteration; NULL if the trace has none",
    "end_ns": "End after profiles.zero_at [ns]",
    "duration_ms": "Time from start to end; of an iteration, between the ends of the GPU's work [ms]",
    "compute_ms": "Time in which compute kernels ran [ms]",
    "communication_ms": "Time in which only communication kernels, or copies beside them, ran [ms]",
    "copy_ms": "Time in which only copies and memory sets ran [ms]",
    "idle_ms": "Time of the duration in which none of its work ran on the GPU [ms]",
    "overlapped_ms": "Time in which communication and compute kernels ran at once [ms]",
    "ranks": "Number of traced ranks that took part; 1 without a partner",
    "wait_ms": "Time that this rank waited in the collective for the last one; NULL without a partner [ms]",
    "last_rank": "Rank that joined last: its collective was the shortest",
    "trial": "Identifier of the trial",
    "plan": "Plan of the trial as a JSON object",
    "run": "Number of the run in the order of the plan, from 1",
    "nodes": "Number of nodes",
    "gpus_per_node": "Number of GPUs on each node",
    "placement": "packed (on the fewest nodes) or spread (the same GPUs on as many nodes as there are)",
    "repeat": "Number of the repeat of this placement, from 1",
    "warm_up": "Whether it is the warm-up run, which isn't compared",
    "status": "ok, failed, refused (by Slurm), timeout or interrupted",
    "wall_s": "Wall time of the command [s]",
    "throughput": "Throughput that the command printed, in its unit; NULL without one",
    "exit_status": "Exit status of the command; NULL if it didn't start or was ended",
    "reason": "Why the run isn't ok",
    "node_list": "Names of its nodes, as a host list",
    "job": "Slurm job of the run",
}


def columns(names: str, **sql: str) -> tuple[ViewColumn, ...]:
    """Return columns by name, each taken as it is or computed by an entry of ``sql``."""
    return tuple(ViewColumn(name, MEANINGS[name], sql.get(name, f'"{name}"')) for name in names.split())


def table_columns(table: schema.TableSchema, first: str, last: str, **sql: str) -> tuple[ViewColumn, ...]:
    """Return the columns ``first``, then those of a table, then ``last``, each once."""
    known = {column.name: column for column in columns(" ".join(MEANINGS), **sql)}
    middle = []
    for column in table.columns:
        name, value = column.name, f'"{column.name}"'
        meaning = column.meaning.replace("_mj", "_j")
        if name.endswith("_mj"):  # joules, as summaries, Prometheus and OpenTelemetry have them
            name, value, meaning = f"{name[:-3]}_j", f"{value} / 1000", meaning.replace("[mJ]", "[J]")
        name = _RENAMED.get(table, {}).get(name, name)
        if name not in last.split():
            middle.append(name)
            known[name] = ViewColumn(name, meaning, value)
    return tuple(known[name] for name in dict.fromkeys([*first.split(), *middle, *last.split()]))


def event_columns(table: schema.TableSchema, first: str, last: str = "") -> tuple[ViewColumn, ...]:
    """Return the columns of a view of a profile's events, with names in the place of their ids."""
    found = table_columns(table, f"ts {first} name duration_ns", f"{last} profile_id node_id recording_id")
    return tuple(column for column in found if column.name not in ("name_id", "short_name_id"))
