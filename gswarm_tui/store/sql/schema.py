"""The tables of a recording file, generated from the catalogue of metrics, and their version.

Times are ``TIMESTAMP`` in UTC with microseconds: ``TIMESTAMPTZ`` would need an extension in some clients.
Several recordings live in one file; ids are unique in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

from gswarm_agent.frame import MIG_INDEX
from gswarm_agent.metrics import (
    GPU_METRICS,
    HOST_METRICS,
    LISTINGS,
    MOUNTS,
    PORTS,
    PROCESS_METRICS,
    ROW_NAMES,
    Metric,
)

SCHEMA_VERSION = 6
STORAGE_VERSION = "v1.2.0"
"""The oldest DuckDB that opens the file."""


@dataclass(frozen=True)
class ColumnSchema:
    """A column with its SQL type and meaning, unit included."""

    name: str
    sql: str
    meaning: str

    @property
    def type(self) -> str:
        """The bare SQL type, without constraints."""
        return self.sql.split(" ", 1)[0]


@dataclass(frozen=True)
class TableSchema:
    """A table. With a key, rows are replaced by key; without, rows are only added."""

    name: str
    meaning: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ColumnSchema:
        return next(column for column in self.columns if column.name == name)

    @property
    def create(self) -> str:
        """The CREATE TABLE statement."""
        parts = [f"{column.name} {column.sql}" for column in self.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"


def _metrics(metrics: tuple[Metric, ...]) -> tuple[ColumnSchema, ...]:
    digits = {"FLOAT": ", rounded: whole from 100, one digit after the point from 10, else two"}
    return tuple(
        ColumnSchema(
            m.name,
            m.sql,
            f"{m.meaning}{f' [{m.unit}]' * bool(m.unit)}{digits.get(m.sql, '')}; NULL where not measured",
        )
        for m in metrics
    )


_WHEN = (
    "Time of the sample on the recorder's clock (UTC), to the millisecond; "
    "the time of its deadline if sampling began less than 5 ms later"
)
_INTERVAL = ColumnSchema(
    "interval_ms",
    "INTEGER",
    "Time that the sample represents [ms]: since the previous frame, at most 1.5 sampling intervals; "
    "NULL after a start or a gap",
)

RECORDINGS = TableSchema(
    "recordings",
    "One row per run of gswarm-tui",
    (
        ColumnSchema("recording_id", "INTEGER", "Number of the recording in this file"),
        ColumnSchema("started_at", "TIMESTAMP", "Start (UTC)"),
        ColumnSchema(
            "ended_at",
            "TIMESTAMP",
            "End (UTC); NULL while it runs, if it was killed, or if nodes still hold frames of it",
        ),
        ColumnSchema("host", "VARCHAR", "Machine of the recorder"),
        ColumnSchema("user_name", "VARCHAR", "User of the recorder"),
        ColumnSchema("slurm_job_id", "VARCHAR", "Slurm job, NULL outside one"),
        ColumnSchema("slurm_cluster", "VARCHAR", "Slurm cluster, NULL outside a job"),
        ColumnSchema("command", "VARCHAR", "Command line of gswarm-tui"),
        ColumnSchema("interval_ms", "INTEGER", "Time between samples at the start [ms]"),
        ColumnSchema("tool_version", "VARCHAR", "Version of gswarm-tui"),
        ColumnSchema("schema_version", "INTEGER", "Version of these tables"),
        ColumnSchema("uid", "VARCHAR", "Identifier of the recording for the agents on its nodes"),
        ColumnSchema("options", "VARCHAR", "JSON object: its nodes and how to reach them, to resume it"),
    ),
    key=("recording_id",),
)
NODES = TableSchema(
    "nodes",
    "Nodes of each recording; a node with another boot or other GPUs gets a new row",
    (
        ColumnSchema("node_id", "INTEGER", "Number of the node in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("node", "VARCHAR", "Name given to gswarm-tui"),
        ColumnSchema("hostname", "VARCHAR", "The node's own host name; NULL if its agent never answered"),
        ColumnSchema("boot_id", "VARCHAR", "Identifier of its boot"),
        ColumnSchema("cpu_model", "VARCHAR", "CPU model"),
        ColumnSchema("cpus", "INTEGER", "Logical CPUs"),
        ColumnSchema("memory_total_mib", "BIGINT", "Host memory [MiB]"),
        ColumnSchema("kernel", "VARCHAR", "Kernel release"),
        ColumnSchema("driver_version", "VARCHAR", "NVIDIA driver"),
        ColumnSchema("cuda_version", "VARCHAR", "Newest CUDA version that the driver supports"),
        ColumnSchema("agent_version", "VARCHAR", "Version of the agent"),
        ColumnSchema("simulated", "BOOLEAN", "Whether the node is simulated"),
        ColumnSchema(
            "capabilities",
            "VARCHAR",
            "JSON object: reasons by metric that could not be measured",
        ),
    ),
    key=("node_id",),
)
GPUS = TableSchema(
    "gpus",
    "GPUs of each node",
    (
        ColumnSchema("gpu_id", "INTEGER", "Number of the GPU in this file"),
        ColumnSchema("node_id", "INTEGER", "nodes.node_id"),
        ColumnSchema(
            "gpu_index",
            "INTEGER",
            f"NVML index on its node; of MIG instance n of GPU g {MIG_INDEX} + 10 g + n (on screens g.n)",
        ),
        ColumnSchema("uuid", "VARCHAR", "NVML UUID"),
        ColumnSchema("name", "VARCHAR", "Product name"),
        ColumnSchema("pci_bus_id", "VARCHAR", "PCI address"),
        ColumnSchema("memory_total_mib", "INTEGER", "Device memory [MiB]"),
        ColumnSchema("power_limit_w", "FLOAT", "Enforced power limit [W]"),
        ColumnSchema("sm_clock_max_mhz", "INTEGER", "Highest SM clock [MHz]"),
        ColumnSchema("mem_clock_max_mhz", "INTEGER", "Highest memory clock [MHz]"),
        ColumnSchema("mig", "BOOLEAN", "Whether MIG is enabled"),
        ColumnSchema(
            "allocated", "BOOLEAN", "Whether it is certainly the job's; NULL where Slurm reports no GPUs"
        ),
        ColumnSchema("parent_index", "INTEGER", "gpu_index of the GPU of a MIG instance; NULL for a GPU"),
        ColumnSchema("mig_profile", "VARCHAR", "Profile of a MIG instance, as in 1g.10gb; NULL for a GPU"),
        ColumnSchema("numa_node", "INTEGER", "NUMA node that it is attached to; NULL if unknown"),
    ),
    key=("gpu_id",),
)
GPU_SAMPLES = TableSchema(
    "gpu_samples",
    "One row per GPU and frame in which something was measured",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        _INTERVAL,
        *_metrics(GPU_METRICS),
        ColumnSchema(
            "energy_used_mj",
            "BIGINT",
            "Energy used since the last reading [mJ]: growth of the counter, else power times time; NULL "
            "between readings, after a start, and in a late sample, whose energy is in a later one",
        ),
        ColumnSchema(
            "energy_used_ms",
            "BIGINT",
            "Time that energy_used_mj covers [ms]; counters are read every 10 s",
        ),
    ),
)
HOST_SAMPLES = TableSchema(
    "host_samples",
    "One row per frame of a node",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("node_id", "INTEGER NOT NULL", "nodes.node_id"),
        ColumnSchema("seq", "BIGINT", "Number of the frame in its agent run, from 1"),
        _INTERVAL,
        ColumnSchema("late_ms", "FLOAT", "Delay of the sample after its deadline [ms]"),
        ColumnSchema("missed", "INTEGER", "Missed deadlines since the previous frame"),
        *_metrics(HOST_METRICS),
    ),
)
PROCESS_SAMPLES = TableSchema(
    "process_samples",
    "One row per process and GPU, in frames that list processes",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        ColumnSchema("pid", "BIGINT", "Process id on the node"),
        ColumnSchema("rank", "INTEGER", "Rank in the job, NULL if unknown"),
        ColumnSchema("local_rank", "INTEGER", "Rank on the node, NULL if unknown"),
        ColumnSchema("user_name", "VARCHAR", "Owner of the process"),
        ColumnSchema("command", "VARCHAR", "Command line"),
        *_metrics(PROCESS_METRICS),
        ColumnSchema("cpus_allowed", "VARCHAR", "CPUs that its main thread may use, such as 0-7,64-71"),
        ColumnSchema("state", "VARCHAR", "State of its main thread as ps prints it: R runs, S or D waits"),
        ColumnSchema("wchan", "VARCHAR", "Kernel function in which its main thread waits; NULL if hidden"),
    ),
)
PROCESS_KEYS = ("pid", "user_name", "command", "rank", "local_rank", "cpus_allowed", "state", "wchan")
"""Columns of a process without the GPU and the numbers, in the order of the fields of ``Processes``."""


_LISTED = {
    PORTS: (
        "One row per network port of a node, every 10 s; counters are since boot or since a reset",
        "Adapter and port, as mlx5_0/1, or network interface",
    ),
    MOUNTS: ("One row per file system that the job uses, every 10 s", "Folder in the file system"),
}
LISTING_TABLES = {
    kind: TableSchema(
        f"{ROW_NAMES[kind]}_samples",
        meaning,
        (
            *HOST_SAMPLES.columns[:2],
            ColumnSchema(ROW_NAMES[kind], "VARCHAR", named),
            *_metrics(LISTINGS[kind]),
        ),
    )
    for kind, (meaning, named) in _LISTED.items()
}
"""The tables of listings."""
SESSIONS = TableSchema(
    "sessions",
    "Named intervals of a recording; they may overlap",
    (
        ColumnSchema("session_id", "INTEGER", "Number of the session in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("name", "VARCHAR", "Name"),
        ColumnSchema("started_at", "TIMESTAMP", "Start (UTC), included"),
        ColumnSchema("ended_at", "TIMESTAMP", "End (UTC), excluded; NULL while it runs or if it was killed"),
        ColumnSchema("status", "VARCHAR", "running, stopped by the user, or ended with the recording"),
        ColumnSchema("note", "VARCHAR", "Note of the user"),
    ),
    key=("session_id",),
)
EVENTS = TableSchema(
    "events",
    "Events: lost and restored links, gaps, XIDs, findings, sessions, marks",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", "Time (UTC)"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("node_id", "INTEGER", "nodes.node_id, NULL if not about a node"),
        ColumnSchema("gpu_id", "INTEGER", "gpus.gpu_id, NULL if not about a GPU"),
        ColumnSchema("kind", "VARCHAR", "One lower-case word"),
        ColumnSchema("severity", "VARCHAR", "info, warning or error"),
        ColumnSchema("message", "VARCHAR", "One sentence"),
        ColumnSchema("detail", "VARCHAR", "Details or a remedy, mostly NULL; JSON values of a mark"),
    ),
)
FINDINGS = TableSchema(
    "findings",
    "What the rules found: who is at fault, since when, by which numbers, at what cost, and what to do",
    (
        ColumnSchema("finding_id", "INTEGER", "Number of the finding in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("kind", "VARCHAR", "Kind of the rule, as in thermal"),
        ColumnSchema("severity", "VARCHAR", "fault, waste or note"),
        ColumnSchema("node", "VARCHAR", "Node at fault; NULL if it names none"),
        ColumnSchema("gpu_index", "INTEGER", "NVML index of the GPU at fault; NULL for a whole node"),
        ColumnSchema("rank", "INTEGER", "Rank on that GPU; NULL if unknown"),
        ColumnSchema("nodes", "VARCHAR", "JSON list of all nodes that it is about"),
        ColumnSchema("since", "TIMESTAMP", "Start (UTC)"),
        ColumnSchema("until", "TIMESTAMP", "End (UTC); NULL while it holds"),
        ColumnSchema("gpu_hours", "DOUBLE", "GPU-hours that it has cost so far"),
        ColumnSchema("sentence", "VARCHAR", "The finding in one sentence"),
        ColumnSchema("evidence", "VARCHAR", "JSON list: metric, value, that of the peers, unit"),
        ColumnSchema("advice", "VARCHAR", "What to do"),
        ColumnSchema("source", "VARCHAR", "Source of the rule and its threshold"),
        ColumnSchema("dismissed", "BOOLEAN", "Whether a user dismissed it in this recording"),
    ),
    key=("finding_id",),
)
LINKS = TableSchema(
    "links",
    "One row per agent run on a node, as of the last commit",
    (
        ColumnSchema("node_id", "INTEGER", "nodes.node_id"),
        ColumnSchema("life", "VARCHAR", "Identifier of the agent run"),
        ColumnSchema("last_seq", "BIGINT", "Last frame of the run, committed or lost; NULL before the first"),
        ColumnSchema(
            "last_ts", "TIMESTAMP", "Time of that frame on the node's clock (UTC); NULL if it is lost"
        ),
        ColumnSchema("frames", "BIGINT", "Frames committed"),
        ColumnSchema("lost_frames", "BIGINT", "Frames missing in the sequence"),
        ColumnSchema("reconnects", "INTEGER", "Number of reconnects to it"),
        ColumnSchema("clock_offset_s", "DOUBLE", "Clock of the node minus clock of the recorder [s]"),
        ColumnSchema("round_trip_s", "DOUBLE", "Round trip to the agent [s]"),
    ),
    key=("node_id", "life"),
)
GPU_LINKS = TableSchema(
    "gpu_links",
    "How the GPUs of a node are connected; all rows of a node again when something has changed",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", "Time at which this was read (UTC)"),
        ColumnSchema("node_id", "INTEGER NOT NULL", "nodes.node_id"),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        ColumnSchema("peer", "VARCHAR", "GPU and its NVML index, NVSwitch, a network adapter, or host"),
        ColumnSchema("peer_index", "INTEGER", "NVML index of a peer that is a GPU, else NULL"),
        ColumnSchema("kind", "VARCHAR", "As in nvidia-smi topo -m: NV18, PIX, PXB, PHB, NODE, SYS; or PCIe"),
        ColumnSchema("links", "INTEGER", "Number of NVLinks that are up, for the host of PCIe lanes; else 0"),
        ColumnSchema("version", "VARCHAR", "Version of NVLink, for the host of PCIe; NULL if unknown"),
        ColumnSchema("gb_s", "DOUBLE", "Bandwidth in one direction [GB/s]; NULL if unknown"),
    ),
)
GPU_MINUTES = TableSchema(
    "gpu_minutes",
    "Sums over the samples of one GPU and minute, so that summaries needn't read them. A minute without rows "
    "isn't summed up yet",
    (
        ColumnSchema(
            "minute", "TIMESTAMP NOT NULL", "Start of the minute (UTC) in which the samples were taken"
        ),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        ColumnSchema("samples", "BIGINT", "Number of samples"),
        ColumnSchema("util_pcts", "SMALLINT[]", "Values of util_pct, ascending; NULL stands for unmeasured"),
        ColumnSchema("util_us", "BIGINT[]", "Time of the samples with each of util_pcts [µs]"),
        ColumnSchema("power_us", "BIGINT", "Time of the samples with a power [µs]"),
        ColumnSchema("power_sum", "BIGINT", "Sum of power times time [cW µs]"),
        ColumnSchema("power_max_w", "FLOAT", "Highest power_w [W]"),
        ColumnSchema("mem_used_max_mib", "INTEGER", "Highest mem_used_mib [MiB]"),
        ColumnSchema("temp_max_c", "SMALLINT", "Highest temp_c [°C]"),
        ColumnSchema("mem_temp_max_c", "SMALLINT", "Highest mem_temp_c [°C]"),
        ColumnSchema("throttle_power", "BIGINT", "Time throttled by the power cap [1e-10 s]"),
        ColumnSchema("throttle_thermal", "BIGINT", "Time throttled by temperature [1e-10 s]"),
        ColumnSchema("throttle_brake", "BIGINT", "Time throttled by the power brake [1e-10 s]"),
        ColumnSchema(
            "used_mj", "BIGINT", "Sum of the energy_used_mj read in it, over at most 61 s each [mJ]"
        ),
        ColumnSchema("busy", "BOOLEAN", "Whether any sample is busy"),
        ColumnSchema(
            "idle_before_us", "BIGINT", "Idle time before the first busy sample, else all of it [µs]"
        ),
        ColumnSchema("idle_after_us", "BIGINT", "Idle time after the last busy sample [µs]"),
        ColumnSchema("bubbles", "BIGINT", "Number of idle phases between two busy samples"),
        ColumnSchema("bubble_us", "BIGINT", "Time of these phases [µs]"),
        ColumnSchema("bubble_longest_us", "BIGINT", "Longest of them [µs]"),
        *(
            ColumnSchema(f"{name}_{what}", "BIGINT", meaning.format(f"{name}_pct"))
            for name in ("sm_active", "tensor_active", "dram_active")
            for what, meaning in (("sum", "Sum of {} times time [0.01 % µs]"), ("us", "Time with a {} [µs]"))
        ),
        ColumnSchema(
            "peak_sum", "BIGINT", "Sum of tensor_active_pct times sm_clock_mhz times time [% MHz µs]"
        ),
        ColumnSchema("peak_us", "BIGINT", "Time of the samples with both [µs]"),
    ),
)

_PROFILE_ID = ColumnSchema("profile_id", "INTEGER NOT NULL", "profiles.profile_id")
_EVENT = (
    _PROFILE_ID,
    ColumnSchema("start_ns", "BIGINT", "Start in the report, which is after profiles.zero_at [ns]"),
    ColumnSchema("duration_ns", "BIGINT", "Time from start to end [ns]"),
    ColumnSchema("name_id", "INTEGER", "profile_names.name_id of its name"),
)
_DEVICE = (
    ColumnSchema("device", "INTEGER", "CUDA device in the process, from 0"),
    ColumnSchema("stream", "BIGINT", "CUDA stream"),
)
_EVENT_GPU = (
    ColumnSchema("gpu_id", "INTEGER", "gpus.gpu_id; NULL if this file doesn't have the GPU"),
    *_DEVICE,
)
_PROCESS_ID = ColumnSchema("pid", "BIGINT", "Process id on the node")
_THREAD_ID = ColumnSchema("tid", "BIGINT", "Thread id on the node")
_CORRELATION = ColumnSchema(
    "correlation_id", "BIGINT", "The same number for a CUDA call and the kernel or copy that it started"
)
PROFILES = TableSchema(
    "profiles",
    "Imported reports of Nsight Systems and Nsight Compute, and traces of PyTorch",
    (
        ColumnSchema("profile_id", "INTEGER", "Number of the profile in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("node_id", "INTEGER", "nodes.node_id; NULL if the recording doesn't have the node"),
        ColumnSchema("node", "VARCHAR", "Name of the node: in the recording, else in the report"),
        ColumnSchema("rank", "INTEGER", "Rank of the profiled process; NULL if unknown"),
        ColumnSchema("tool", "VARCHAR", "nsys, ncu or pytorch"),
        ColumnSchema("tool_version", "VARCHAR", "Version of the tool that exported the report"),
        ColumnSchema("file", "VARCHAR", "Name of the report, without its folder"),
        ColumnSchema("digest", "VARCHAR", "SHA-256 hash that identifies the report"),
        ColumnSchema("zero_at", "TIMESTAMP", "Time 0 of the report on the recorder's clock (UTC)"),
        ColumnSchema("started_at", "TIMESTAMP", "Start of the capture on the recorder's clock (UTC)"),
        ColumnSchema("ended_at", "TIMESTAMP", "End of the capture on the recorder's clock (UTC)"),
        ColumnSchema(
            "clock_offset_s",
            "DOUBLE",
            "Clock of the node minus clock of the recorder, which was subtracted from the report's times "
            "[s]; NULL if unknown",
        ),
        ColumnSchema(
            "messages",
            "VARCHAR",
            "JSON list: warnings and errors that the tool reported, and what the import left out",
        ),
        ColumnSchema(
            "unread",
            "VARCHAR",
            "Tables with GPU events that gswarm-tui doesn't know; NULL if it knows all",
        ),
    ),
    key=("profile_id",),
)
PROFILE_NAMES = TableSchema(
    "profile_names",
    "Names of kernels, calls, memory operations and ranges in profiles",
    (
        ColumnSchema("name_id", "INTEGER", "Number of the name in this file"),
        ColumnSchema("name", "VARCHAR", "The name; of paths in it only the last part"),
    ),
    key=("name_id",),
)
PROFILE_API_EVENTS = TableSchema(
    "profile_api_events",
    "Calls of CUDA and of the operating system's libraries in profiles",
    (
        *_EVENT,
        ColumnSchema(
            "event_class",
            "SMALLINT",
            "Layer that was traced: 0 CUDA runtime, 1 CUDA driver, 67 CUDA backtrace, 27 OS runtime",
        ),
        _PROCESS_ID,
        _THREAD_ID,
        _CORRELATION,
    ),
)
PROFILE_KERNEL_EVENTS = TableSchema(
    "profile_kernel_events",
    "Kernels that ran on GPUs in profiles",
    (
        *_EVENT,
        ColumnSchema("short_name_id", "INTEGER", "profile_names.name_id of its name without arguments"),
        *_EVENT_GPU,
        _PROCESS_ID,
        _CORRELATION,
        *(
            ColumnSchema(f"{what}_{axis}", "INTEGER", f"{meaning} in {axis}")
            for what, meaning in (("grid", "Blocks of the launch"), ("block", "Threads of a block"))
            for axis in "xyz"
        ),
    ),
)
PROFILE_MEMORY_EVENTS = TableSchema(
    "profile_memory_events",
    "Copies and memory sets on GPUs in profiles",
    (
        *_EVENT,
        ColumnSchema("bytes", "BIGINT", "Size of the operation [byte]"),
        *_EVENT_GPU,
        _PROCESS_ID,
        _CORRELATION,
    ),
)
PROFILE_RANGE_EVENTS = TableSchema(
    "profile_range_events",
    "NVTX ranges in profiles",
    (
        *_EVENT,
        ColumnSchema("style", "VARCHAR", "PushPop or StartEnd"),
        _PROCESS_ID,
        _THREAD_ID,
    ),
)
PROFILE_METRIC_VALUES = TableSchema(
    "profile_metric_values",
    "Metrics of single kernels, measured by Nsight Compute",
    (
        _PROFILE_ID,
        ColumnSchema("launch", "INTEGER", "Number of the profiled launch in the report, from 0"),
        ColumnSchema("name_id", "INTEGER", "profile_names.name_id of the kernel's name"),
        ColumnSchema("metric", "VARCHAR", "Name of the metric"),
        ColumnSchema("unit", "VARCHAR", "Its unit; NULL without one"),
        ColumnSchema("number", "DOUBLE", "The value, if it is a number"),
        ColumnSchema("text", "VARCHAR", "The value, if it is no number"),
    ),
)
TRACE_OP_EVENTS = TableSchema(
    "trace_op_events",
    "Operators, annotations, calls and Python functions on the CPU, in traces of PyTorch",
    (
        *_EVENT,
        ColumnSchema("category", "VARCHAR", "As in the trace: cpu_op, user_annotation, python_function …"),
        _PROCESS_ID,
        _THREAD_ID,
        _CORRELATION,
    ),
)
TRACE_KERNEL_EVENTS = TableSchema(
    "trace_kernel_events",
    "Kernels, copies and memory sets on GPUs, in traces of PyTorch",
    (
        *_EVENT,
        ColumnSchema("kind", "VARCHAR", "compute, communication or copy"),
        *_DEVICE,
        _CORRELATION,
        ColumnSchema("collective", "VARCHAR", "Name of the collective, as all_reduce; else NULL"),
        ColumnSchema("process_group", "VARCHAR", "Name of its process group"),
        ColumnSchema("sequence", "BIGINT", "Number of the collective in its process group; NULL if unknown"),
        ColumnSchema("group_size", "INTEGER", "Number of ranks in its process group"),
        ColumnSchema("group_ranks", "VARCHAR", "Ranks in its process group, as 0, 1; NULL if unknown"),
        ColumnSchema("src_rank", "INTEGER", "Rank from which it receives; NULL if it isn't point-to-point"),
        ColumnSchema("dst_rank", "INTEGER", "Rank to which it sends; NULL if it isn't point-to-point"),
    ),
)
PROFILE_EVENTS = (
    TRACE_OP_EVENTS,
    TRACE_KERNEL_EVENTS,
    PROFILE_API_EVENTS,
    PROFILE_KERNEL_EVENTS,
    PROFILE_MEMORY_EVENTS,
    PROFILE_RANGE_EVENTS,
    PROFILE_METRIC_VALUES,
)
"""The tables whose rows belong to profiles, of which one may have millions."""

TABLES = (
    RECORDINGS,
    NODES,
    GPUS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    PROCESS_SAMPLES,
    *LISTING_TABLES.values(),
    SESSIONS,
    EVENTS,
    FINDINGS,
    LINKS,
    GPU_LINKS,
    GPU_MINUTES,
    PROFILES,
    PROFILE_NAMES,
    *PROFILE_EVENTS,
)


def micros(seconds: float) -> int:
    """Return Unix seconds as the microseconds that are stored."""
    return round(seconds * 1e6)


def literal(text: str) -> str:
    """Return the text as a SQL string."""
    return "'" + text.replace("'", "''") + "'"
