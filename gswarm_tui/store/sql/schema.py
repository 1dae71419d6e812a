"""The tables of a recording file, generated from the catalogue of metrics, and their version.

Times are ``TIMESTAMP`` in UTC with microseconds: ``TIMESTAMPTZ`` would need an extension in some clients.
Several recordings live in one file; ids are unique in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

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


def _columns(text: str) -> Iterator[ColumnSchema]:
    """Yield a column for each line with name, type and meaning, which are two or more spaces apart.

    A line that is indented further continues the meaning above it.
    """
    for line in re.sub(r"\n {8,}", " ", text).strip().splitlines():
        yield ColumnSchema(*re.split(" {2,}", line.strip(), maxsplit=2))


def _metrics(metrics: tuple[Metric, ...]) -> Iterator[ColumnSchema]:
    digits = {"FLOAT": ", rounded: whole from 100, one digit after the point from 10, else two"}
    for m in metrics:
        meaning = f"{m.meaning}{f' [{m.unit}]' * bool(m.unit)}{digits.get(m.sql, '')}"
        yield ColumnSchema(m.name, m.sql, f"{meaning}; NULL where not measured")


def _table(name: str, meaning: str, *parts: str | tuple[Metric, ...], key: str = "") -> TableSchema:
    """Return a table with the columns of all parts: lines with name, type and meaning, or metrics."""
    columns = chain.from_iterable(
        _columns(part) if isinstance(part, str) else _metrics(part) for part in parts
    )
    return TableSchema(name, meaning, tuple(columns), tuple(key.split()))


_WHEN = (
    "Time of the sample on the recorder's clock (UTC), to the millisecond; "
    "the time of its deadline if sampling began less than 5 ms later"
)
_INTERVAL = (
    "Time that the sample represents [ms]: since the previous frame, at most 1.5 sampling intervals; "
    "NULL after a start or a gap"
)

# fmt: off
RECORDINGS = _table("recordings", "One row per run of gswarm-tui", """
    recording_id    INTEGER    Number of the recording in this file
    started_at      TIMESTAMP  Start (UTC)
    ended_at        TIMESTAMP  End (UTC); NULL while it runs, if it was killed, or if nodes still hold frames
        of it
    host            VARCHAR    Machine of the recorder
    user_name       VARCHAR    User of the recorder
    slurm_job_id    VARCHAR    Slurm job, NULL outside one
    slurm_cluster   VARCHAR    Slurm cluster, NULL outside a job
    command         VARCHAR    Command line of gswarm-tui
    interval_ms     INTEGER    Time between samples at the start [ms]
    tool_version    VARCHAR    Version of gswarm-tui
    schema_version  INTEGER    Version of these tables
    uid             VARCHAR    Identifier of the recording for the agents on its nodes
    options         VARCHAR    JSON object: its nodes and how to reach them, to resume it
    thinned_at      TIMESTAMP  When gswarm-tui thin removed its samples (UTC); NULL if it has them
""", key="recording_id")
NODES = _table("nodes", "Nodes of each recording; a node with another boot or other GPUs gets a new row", """
    node_id           INTEGER  Number of the node in this file
    recording_id      INTEGER  recordings.recording_id
    node              VARCHAR  Name given to gswarm-tui
    hostname          VARCHAR  The node's own host name; NULL if its agent never answered
    boot_id           VARCHAR  Identifier of its boot
    cpu_model         VARCHAR  CPU model
    cpus              INTEGER  Logical CPUs
    memory_total_mib  BIGINT   Host memory [MiB]
    kernel            VARCHAR  Kernel release
    driver_version    VARCHAR  NVIDIA driver
    cuda_version      VARCHAR  Newest CUDA version that the driver supports
    agent_version     VARCHAR  Version of the agent
    simulated         BOOLEAN  Whether the node is simulated
    capabilities      VARCHAR  JSON object: reasons by metric that could not be measured
""", key="node_id")
GPUS = _table("gpus", "GPUs of each node", f"""
    gpu_id             INTEGER  Number of the GPU in this file
    node_id            INTEGER  nodes.node_id
    gpu_index          INTEGER  NVML index on its node; of MIG instance n of GPU g {MIG_INDEX} + 10 g + n
        (on screens g.n)
    uuid               VARCHAR  NVML UUID
    name               VARCHAR  Product name
    pci_bus_id         VARCHAR  PCI address
    memory_total_mib   INTEGER  Device memory [MiB]
    power_limit_w      FLOAT    Enforced power limit [W]
    sm_clock_max_mhz   INTEGER  Highest SM clock [MHz]
    mem_clock_max_mhz  INTEGER  Highest memory clock [MHz]
    mig                BOOLEAN  Whether MIG is enabled
    allocated          BOOLEAN  Whether it is certainly the job's; NULL where Slurm reports no GPUs
    parent_index       INTEGER  gpu_index of the GPU of a MIG instance; NULL for a GPU
    mig_profile        VARCHAR  Profile of a MIG instance, as in 1g.10gb; NULL for a GPU
    numa_node          INTEGER  NUMA node that it is attached to; NULL if unknown
    newest_rank        INTEGER  Rank on it last, the lowest of several; process_samples has those of each
        time
""", key="gpu_id")
GPU_SAMPLES = _table("gpu_samples", "One row per GPU and frame in which something was measured", f"""
    ts           TIMESTAMP NOT NULL  {_WHEN}
    gpu_id       INTEGER NOT NULL    gpus.gpu_id
    interval_ms  INTEGER             {_INTERVAL}
""", GPU_METRICS, """
    energy_used_mj  BIGINT  Energy used since the last reading [mJ]: growth of the counter, else power times
        time; NULL between readings, after a start, and in a late sample, whose energy is in a later one
    energy_used_ms  BIGINT  Time that energy_used_mj covers [ms]; counters are read every 10 s
""")
HOST_SAMPLES = _table("host_samples", "One row per frame of a node", f"""
    ts           TIMESTAMP NOT NULL  {_WHEN}
    node_id      INTEGER NOT NULL    nodes.node_id
    seq          BIGINT              Number of the frame in its agent run, from 1
    interval_ms  INTEGER             {_INTERVAL}
    late_ms      FLOAT               Delay of the sample after its deadline [ms]
    missed       INTEGER             Missed deadlines since the previous frame
""", HOST_METRICS)
PROCESS_SAMPLES = _table(
    "process_samples", "One row per process and GPU, in frames that list processes", f"""
    ts          TIMESTAMP NOT NULL  {_WHEN}
    gpu_id      INTEGER NOT NULL    gpus.gpu_id
    pid         BIGINT              Process id on the node
    rank        INTEGER             Rank in the job, NULL if unknown
    local_rank  INTEGER             Rank on the node, NULL if unknown
    user_name   VARCHAR             Owner of the process
    command     VARCHAR             Command line
""", PROCESS_METRICS, """
    cpus_allowed   VARCHAR  CPUs that its main thread may use, such as 0-7,64-71
    state          VARCHAR  State of its main thread as ps prints it: R runs, S or D waits
    wchan          VARCHAR  Kernel function in which its main thread waits; NULL if hidden
    slurm_job_id   VARCHAR  Slurm job of the process; NULL outside one
    slurm_step_id  VARCHAR  Step of that job: a number, batch, interactive or extern; NULL if unknown
    framework      VARCHAR  Framework with its version, as in torch 2.14.1, from the libraries that it has
        loaded; NULL if unknown
    nccl           VARCHAR  Version of the NCCL that it has loaded; NULL if unknown
    container      VARCHAR  Container, as in apptainer torch.sif; NULL outside one, or if unknown
""")
PROCESS_KEYS = (
    *("pid", "user_name", "command", "rank", "local_rank", "cpus_allowed", "state", "wchan"),
    *("slurm_job_id", "slurm_step_id", "framework", "nccl", "container"),
)
"""Columns of a process without the GPU and the numbers, in the order of ``PROCESS_FIELDS``."""
LISTING_TABLES = {
    kind: _table(f"{ROW_NAMES[kind]}_samples", meaning, f"""
    ts                 TIMESTAMP NOT NULL  {_WHEN}
    node_id            INTEGER NOT NULL    nodes.node_id
    {ROW_NAMES[kind]}  VARCHAR             {named}
""", LISTINGS[kind])
    for kind, meaning, named in (
        (PORTS, "One row per network port of a node, every 10 s; counters are since boot or since a reset",
         "Adapter and port, as mlx5_0/1, or network interface"),
        (MOUNTS, "One row per file system that the job uses, every 10 s", "Folder in the file system"),
    )
}
"""The tables of listings."""
SESSIONS = _table("sessions", "Named intervals of a recording; they may overlap", """
    session_id    INTEGER    Number of the session in this file
    recording_id  INTEGER    recordings.recording_id
    name          VARCHAR    Name
    started_at    TIMESTAMP  Start (UTC), included
    ended_at      TIMESTAMP  End (UTC), excluded; NULL while it runs or if it was killed
    status        VARCHAR    running, stopped by the user, or ended with the recording
    note          VARCHAR    Note of the user
""", key="session_id")
EVENTS = _table("events", "Events: lost and restored links, gaps, XIDs, findings, sessions, marks", """
    ts            TIMESTAMP NOT NULL  Time (UTC)
    recording_id  INTEGER             recordings.recording_id
    node_id       INTEGER             nodes.node_id, NULL if not about a node
    gpu_id        INTEGER             gpus.gpu_id, NULL if not about a GPU
    kind          VARCHAR             One lower-case word
    severity      VARCHAR             info, warning or error
    message       VARCHAR             One sentence
    detail        VARCHAR             Details or a remedy, mostly NULL; JSON values of a mark
""")
FINDINGS = _table("findings",
    "What the rules found: who is at fault, since when, by which numbers, at what cost, and what to do", """
    finding_id    INTEGER    Number of the finding in this file
    recording_id  INTEGER    recordings.recording_id
    kind          VARCHAR    Kind of the rule, as in thermal
    severity      VARCHAR    fault, waste or note
    node          VARCHAR    Node at fault; NULL if it names none
    gpu_index     INTEGER    NVML index of the GPU at fault; NULL for a whole node
    rank          INTEGER    Rank on that GPU; NULL if unknown
    nodes         VARCHAR    JSON list of all nodes that it is about
    since         TIMESTAMP  Start (UTC)
    until         TIMESTAMP  End (UTC); NULL while it holds
    gpu_hours     DOUBLE     GPU-hours that it has cost so far
    sentence      VARCHAR    The finding in one sentence
    evidence      VARCHAR    JSON list: metric, value, that of the peers, unit
    advice        VARCHAR    What to do
    source        VARCHAR    Source of the rule and its threshold
    dismissed     BOOLEAN    Whether a user dismissed it in this recording
""", key="finding_id")
LINKS = _table("links", "One row per agent run on a node, as of the last commit", """
    node_id         INTEGER    nodes.node_id
    life            VARCHAR    Identifier of the agent run
    last_seq        BIGINT     Last frame of the run, committed or lost; NULL before the first
    last_ts         TIMESTAMP  Time of that frame on the node's clock (UTC); NULL if it is lost
    frames          BIGINT     Frames committed
    lost_frames     BIGINT     Frames missing in the sequence
    reconnects      INTEGER    Number of reconnects to it
    clock_offset_s  DOUBLE     Clock of the node minus clock of the recorder [s]
    round_trip_s    DOUBLE     Round trip to the agent [s]
""", key="node_id life")
GPU_LINKS = _table("gpu_links",
    "How the GPUs of a node are connected; all rows of a node again when something has changed", """
    ts          TIMESTAMP NOT NULL  Time at which this was read (UTC)
    node_id     INTEGER NOT NULL    nodes.node_id
    gpu_id      INTEGER NOT NULL    gpus.gpu_id
    peer        VARCHAR             GPU and its NVML index, NVSwitch, a network adapter, or host
    peer_index  INTEGER             NVML index of a peer that is a GPU, else NULL
    kind        VARCHAR             As in nvidia-smi topo -m: NV18, PIX, PXB, PHB, NODE, SYS; or PCIe
    links       INTEGER             Number of NVLinks that are up, for the host of PCIe lanes; else 0
    version     VARCHAR             Version of NVLink, for the host of PCIe; NULL if unknown
    gb_s        DOUBLE              Bandwidth in one direction [GB/s]; NULL if unknown
""")
GPU_MINUTES = _table("gpu_minutes",
    "Sums over the samples of one GPU and minute, so that summaries needn't read them. A minute without "
    "rows isn't summed up yet", """
    minute             TIMESTAMP NOT NULL  Start of the minute (UTC) in which the samples were taken
    gpu_id             INTEGER NOT NULL    gpus.gpu_id
    samples            BIGINT              Number of samples
    util_pcts          SMALLINT[]          Values of util_pct, ascending; NULL stands for unmeasured
    util_us            BIGINT[]            Time of the samples with each of util_pcts [µs]
    power_us           BIGINT              Time of the samples with a power [µs]
    power_sum          BIGINT              Sum of power times time [cW µs]
    power_max_w        FLOAT               Highest power_w [W]
    mem_used_max_mib   INTEGER             Highest mem_used_mib [MiB]
    temp_max_c         SMALLINT            Highest temp_c [°C]
    mem_temp_max_c     SMALLINT            Highest mem_temp_c [°C]
    throttle_power     BIGINT              Time throttled by the power cap [1e-10 s]
    throttle_thermal   BIGINT              Time throttled by temperature [1e-10 s]
    throttle_brake     BIGINT              Time throttled by the power brake [1e-10 s]
    used_mj            BIGINT              Sum of the energy_used_mj read in it, over at most 61 s each [mJ]
    busy               BOOLEAN             Whether any sample is busy
    idle_before_us     BIGINT              Idle time before the first busy sample, else all of it [µs]
    idle_after_us      BIGINT              Idle time after the last busy sample [µs]
    bubbles            BIGINT              Number of idle phases between two busy samples
    bubble_us          BIGINT              Time of these phases [µs]
    bubble_longest_us  BIGINT              Longest of them [µs]
    sm_active_sum      BIGINT              Sum of sm_active_pct times time [0.01 % µs]
    sm_active_us       BIGINT              Time with a sm_active_pct [µs]
    tensor_active_sum  BIGINT              Sum of tensor_active_pct times time [0.01 % µs]
    tensor_active_us   BIGINT              Time with a tensor_active_pct [µs]
    dram_active_sum    BIGINT              Sum of dram_active_pct times time [0.01 % µs]
    dram_active_us     BIGINT              Time with a dram_active_pct [µs]
    peak_sum           BIGINT              Sum of tensor_active_pct times sm_clock_mhz times time [% MHz µs]
    peak_us            BIGINT              Time of the samples with both [µs]
""")
PROFILES = _table("profiles",
    "Imported reports of Nsight Systems and Nsight Compute, and traces of PyTorch", """
    profile_id      INTEGER    Number of the profile in this file
    recording_id    INTEGER    recordings.recording_id
    node_id         INTEGER    nodes.node_id; NULL if the recording doesn't have the node
    node            VARCHAR    Name of the node: in the recording, else in the report
    rank            INTEGER    Rank of the profiled process; NULL if unknown
    tool            VARCHAR    nsys, ncu or pytorch
    tool_version    VARCHAR    Version of the tool that exported the report
    file            VARCHAR    Name of the report, without its folder
    digest          VARCHAR    SHA-256 hash that identifies the report
    zero_at         TIMESTAMP  Time 0 of the report on the recorder's clock (UTC)
    started_at      TIMESTAMP  Start of the capture on the recorder's clock (UTC)
    ended_at        TIMESTAMP  End of the capture on the recorder's clock (UTC)
    clock_offset_s  DOUBLE     Clock of the node minus clock of the recorder, which was subtracted from the
        report's times [s]; NULL if unknown
    messages        VARCHAR    JSON list: warnings and errors that the tool reported, and what the import left
        out
    unread          VARCHAR    Tables with GPU events that gswarm-tui doesn't know; NULL if it knows all
""", key="profile_id")
PROFILE_NAMES = _table("profile_names",
    "Names of kernels, calls, memory operations and ranges in profiles", """
    name_id  INTEGER  Number of the name in this file
    name     VARCHAR  The name; of paths in it only the last part
""", key="name_id")

_EVENT = """
    profile_id   INTEGER NOT NULL  profiles.profile_id
    start_ns     BIGINT            Start in the report, which is after profiles.zero_at [ns]
    duration_ns  BIGINT            Time from start to end [ns]
    name_id      INTEGER           profile_names.name_id of its name
"""
_GPU_ID = "gpu_id  INTEGER  gpus.gpu_id; NULL if this file doesn't have the GPU"
_DEVICE = """
    device  INTEGER  CUDA device in the process, from 0
    stream  BIGINT   CUDA stream
"""
_PROCESS_ID = "pid  BIGINT  Process id on the node"
_THREAD = f"""
    {_PROCESS_ID}
    tid  BIGINT  Thread id on the node
"""
_CORRELATION = """
    correlation_id  BIGINT  The same number for a CUDA call and the kernel or copy that it started
"""
PROFILE_API_EVENTS = _table("profile_api_events",
    "Calls of CUDA and of the operating system's libraries in profiles", _EVENT, """
    event_class  SMALLINT  Layer that was traced: 0 CUDA runtime, 1 CUDA driver, 67 CUDA backtrace,
        27 OS runtime
""", _THREAD, _CORRELATION)
PROFILE_KERNEL_EVENTS = _table("profile_kernel_events", "Kernels that ran on GPUs in profiles", _EVENT, """
    short_name_id  INTEGER  profile_names.name_id of its name without arguments
""", _GPU_ID, _DEVICE, _PROCESS_ID, _CORRELATION, """
    grid_x   INTEGER  Blocks of the launch in x
    grid_y   INTEGER  Blocks of the launch in y
    grid_z   INTEGER  Blocks of the launch in z
    block_x  INTEGER  Threads of a block in x
    block_y  INTEGER  Threads of a block in y
    block_z  INTEGER  Threads of a block in z
""")
PROFILE_MEMORY_EVENTS = _table("profile_memory_events",
    "Copies and memory sets on GPUs in profiles", _EVENT, """
    bytes  BIGINT  Size of the operation [byte]
""", _GPU_ID, _DEVICE, _PROCESS_ID, _CORRELATION)
PROFILE_RANGE_EVENTS = _table("profile_range_events", "NVTX ranges in profiles", _EVENT, """
    style  VARCHAR  PushPop or StartEnd
""", _THREAD)
PROFILE_METRIC_VALUES = _table("profile_metric_values",
    "Metrics of single kernels, measured by Nsight Compute", """
    profile_id  INTEGER NOT NULL  profiles.profile_id
    launch      INTEGER           Number of the profiled launch in the report, from 0
    name_id     INTEGER           profile_names.name_id of the kernel's name
    metric      VARCHAR           Name of the metric
    unit        VARCHAR           Its unit; NULL without one
    number      DOUBLE            The value, if it is a number
    text        VARCHAR           The value, if it is no number
""")
TRACE_OP_EVENTS = _table("trace_op_events",
    "Operators, annotations, calls and Python functions on the CPU, in traces of PyTorch", _EVENT, """
    category  VARCHAR  As in the trace: cpu_op, user_annotation, python_function …
""", _THREAD, _CORRELATION)
TRACE_KERNEL_EVENTS = _table("trace_kernel_events",
    "Kernels, copies and memory sets on GPUs, in traces of PyTorch", _EVENT, """
    kind  VARCHAR  compute, communication or copy
""", _DEVICE, _CORRELATION, """
    collective     VARCHAR  Name of the collective, as all_reduce; else NULL
    process_group  VARCHAR  Name of its process group
    sequence       BIGINT   Number of the collective in its process group; NULL if unknown
    group_size     INTEGER  Number of ranks in its process group
    group_ranks    VARCHAR  Ranks in its process group, as 0, 1; NULL if unknown
    src_rank       INTEGER  Rank from which it receives; NULL if it isn't point-to-point
    dst_rank       INTEGER  Rank to which it sends; NULL if it isn't point-to-point
""")
PROFILE_EVENTS = (
    TRACE_OP_EVENTS, TRACE_KERNEL_EVENTS, PROFILE_API_EVENTS, PROFILE_KERNEL_EVENTS, PROFILE_MEMORY_EVENTS,
    PROFILE_RANGE_EVENTS, PROFILE_METRIC_VALUES,
)
"""The tables whose rows belong to profiles, of which one may have millions."""
TABLES = (
    RECORDINGS, NODES, GPUS, GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, *LISTING_TABLES.values(), SESSIONS,
    EVENTS, FINDINGS, LINKS, GPU_LINKS, GPU_MINUTES, PROFILES, PROFILE_NAMES, *PROFILE_EVENTS,
)
# fmt: on

ID_TABLES = {
    "recording_id": "recordings",
    "node_id": "nodes",
    "gpu_id": "gpus",
    "session_id": "sessions",
    "finding_id": "findings",
    "profile_id": "profiles",
    "name_id": "profile_names",
}
"""Ids, which count the rows of a table of one file."""
REFERENCES = {name: name for name in ID_TABLES} | {"short_name_id": "name_id"}
"""The id that each column has."""


def micros(seconds: float) -> int:
    """Return Unix seconds as the microseconds that are stored."""
    return round(seconds * 1e6)


def literal(text: str) -> str:
    """Return the text as a SQL string."""
    return "'" + text.replace("'", "''") + "'"
