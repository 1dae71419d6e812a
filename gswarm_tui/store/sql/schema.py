"""The tables of a recording file, made from the catalogue of metrics, and their version.

Times are ``TIMESTAMP`` in UTC with microseconds: ``TIMESTAMPTZ`` would need an extension in some clients.
Several recordings live in one file; ids are unique in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, PROCESS_METRICS, Metric

SCHEMA_VERSION = 2
STORAGE_VERSION = "v1.2.0"
"""The oldest DuckDB that opens the file."""


@dataclass(frozen=True)
class ColumnSchema:
    """One column: its SQL type and what it means, unit included."""

    name: str
    sql: str
    meaning: str

    @property
    def type(self) -> str:
        """The bare SQL type, without constraints."""
        return self.sql.split(" ", 1)[0]


@dataclass(frozen=True)
class TableSchema:
    """One table: one row for each thing if it has a key, else rows that are added."""

    name: str
    meaning: str
    columns: tuple[ColumnSchema, ...]
    key: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> ColumnSchema:
        return next(column for column in self.columns if column.name == name)

    @property
    def create(self) -> str:
        """The statement that makes it."""
        parts = [f"{column.name} {column.sql}" for column in self.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"


def _metrics(metrics: tuple[Metric, ...]) -> tuple[ColumnSchema, ...]:
    return tuple(
        ColumnSchema(m.name, m.sql, f"{m.meaning} [{m.unit}]{_digits(m)}; NULL where not measured")
        for m in metrics
    )


def _digits(metric: Metric) -> str:
    kept = ", whole from 100 on, one digit after the point from 10 on, else two"
    return kept if metric.sql == "FLOAT" else ""


_WHEN = (
    "Time of the reading on the recorder's clock (UTC), to the millisecond; "
    "that of its deadline if it began less than 5 ms after it"
)
_INTERVAL = ColumnSchema(
    "interval_ms",
    "UINTEGER",
    "Time since the frame before, for which the sample stands [ms]; NULL after a start or a gap",
)

RECORDINGS = TableSchema(
    "recordings",
    "One run of gswarm-tui each",
    (
        ColumnSchema("recording_id", "INTEGER", "Number of the recording in this file"),
        ColumnSchema("started_at", "TIMESTAMP", "When it began (UTC)"),
        ColumnSchema(
            "ended_at",
            "TIMESTAMP",
            "When it ended (UTC); NULL while it runs, if it was killed, or if nodes still hold frames of it",
        ),
        ColumnSchema("host", "VARCHAR", "Machine that recorded"),
        ColumnSchema("user_name", "VARCHAR", "User that recorded"),
        ColumnSchema("slurm_job_id", "VARCHAR", "Slurm job, NULL outside one"),
        ColumnSchema("slurm_cluster", "VARCHAR", "Slurm cluster, NULL outside a job"),
        ColumnSchema("command", "VARCHAR", "Command line of gswarm-tui"),
        ColumnSchema("interval_ms", "UINTEGER", "Time between samples at the start [ms]"),
        ColumnSchema("tool_version", "VARCHAR", "Version of gswarm-tui"),
        ColumnSchema("schema_version", "INTEGER", "Version of these tables"),
        ColumnSchema("uid", "VARCHAR", "The recording's name to the agents on its nodes"),
        ColumnSchema(
            "options", "VARCHAR", "JSON object: its nodes and how they are reached, to go on with it"
        ),
    ),
    key=("recording_id",),
)
NODES = TableSchema(
    "nodes",
    "Nodes of each recording; a node that came back with another boot or other GPUs is a new row",
    (
        ColumnSchema("node_id", "INTEGER", "Number of the node in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("node", "VARCHAR", "Name under which it was asked for"),
        ColumnSchema("hostname", "VARCHAR", "Name it gives itself; NULL if its agent never answered"),
        ColumnSchema("boot_id", "VARCHAR", "Identity of its boot"),
        ColumnSchema("cpu_model", "VARCHAR", "CPU model"),
        ColumnSchema("cpus", "INTEGER", "Logical CPUs"),
        ColumnSchema("memory_total_mib", "BIGINT", "Host memory [MiB]"),
        ColumnSchema("kernel", "VARCHAR", "Kernel release"),
        ColumnSchema("driver_version", "VARCHAR", "NVIDIA driver"),
        ColumnSchema("cuda_version", "VARCHAR", "Newest CUDA the driver supports"),
        ColumnSchema("agent_version", "VARCHAR", "Version of the agent"),
        ColumnSchema("simulated", "BOOLEAN", "Whether the node is a simulation"),
        ColumnSchema("capabilities", "VARCHAR", "JSON object: what could not be measured, and why"),
    ),
    key=("node_id",),
)
GPUS = TableSchema(
    "gpus",
    "GPUs of each node",
    (
        ColumnSchema("gpu_id", "INTEGER", "Number of the GPU in this file"),
        ColumnSchema("node_id", "INTEGER", "nodes.node_id"),
        ColumnSchema("gpu_index", "INTEGER", "NVML index on its node"),
        ColumnSchema("uuid", "VARCHAR", "NVML UUID"),
        ColumnSchema("name", "VARCHAR", "Product name"),
        ColumnSchema("pci_bus_id", "VARCHAR", "PCI address"),
        ColumnSchema("memory_total_mib", "UINTEGER", "Device memory [MiB]"),
        ColumnSchema("power_limit_w", "FLOAT", "Enforced power limit [W]"),
        ColumnSchema("sm_clock_max_mhz", "UINTEGER", "Highest SM clock [MHz]"),
        ColumnSchema("mem_clock_max_mhz", "UINTEGER", "Highest memory clock [MHz]"),
        ColumnSchema("mig", "BOOLEAN", "Whether MIG is on"),
        ColumnSchema(
            "allocated", "BOOLEAN", "Whether Slurm granted it to the job; NULL where that isn't known"
        ),
    ),
    key=("gpu_id",),
)
GPU_SAMPLES = TableSchema(
    "gpu_samples",
    "One row for each GPU and frame in which the GPU answered",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        _INTERVAL,
        *_metrics(GPU_METRICS),
    ),
)
HOST_SAMPLES = TableSchema(
    "host_samples",
    "One row for each frame of a node",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("node_id", "INTEGER NOT NULL", "nodes.node_id"),
        ColumnSchema("seq", "BIGINT", "Number of the frame in its agent's life, from 1"),
        _INTERVAL,
        ColumnSchema("late_ms", "FLOAT", "How long after its deadline the reading began [ms]"),
        ColumnSchema("missed", "UINTEGER", "Deadlines passed over since the frame before"),
        *_metrics(HOST_METRICS),
    ),
)
PROCESS_SAMPLES = TableSchema(
    "process_samples",
    "One row for each process on each GPU, in frames that looked at processes",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", _WHEN),
        ColumnSchema("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        ColumnSchema("pid", "BIGINT", "Process id on the node"),
        ColumnSchema("rank", "INTEGER", "Rank in the job, NULL if not told"),
        ColumnSchema("local_rank", "INTEGER", "Rank on the node, NULL if not told"),
        ColumnSchema("user_name", "VARCHAR", "Owner of the process"),
        ColumnSchema("command", "VARCHAR", "Command line"),
        *_metrics(PROCESS_METRICS),
    ),
)
SESSIONS = TableSchema(
    "sessions",
    "Named intervals of a recording; they may overlap",
    (
        ColumnSchema("session_id", "INTEGER", "Number of the session in this file"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("name", "VARCHAR", "Name the user gave"),
        ColumnSchema("started_at", "TIMESTAMP", "Begin (UTC), part of the session"),
        ColumnSchema(
            "ended_at", "TIMESTAMP", "End (UTC), not part of it; NULL while it runs or if it was killed"
        ),
        ColumnSchema("status", "VARCHAR", "running, stopped by the user, or ended with the recording"),
        ColumnSchema("note", "VARCHAR", "What the user wrote about it"),
    ),
    key=("session_id",),
)
EVENTS = TableSchema(
    "events",
    "What happened: links lost and back, gaps, XIDs, throttling, sessions, marks",
    (
        ColumnSchema("ts", "TIMESTAMP NOT NULL", "When (UTC)"),
        ColumnSchema("recording_id", "INTEGER", "recordings.recording_id"),
        ColumnSchema("node_id", "INTEGER", "nodes.node_id, NULL if it is about no node"),
        ColumnSchema("gpu_id", "INTEGER", "gpus.gpu_id, NULL if it is about no GPU"),
        ColumnSchema("kind", "VARCHAR", "One lower-case word"),
        ColumnSchema("severity", "VARCHAR", "info, warning or error"),
        ColumnSchema("message", "VARCHAR", "One sentence"),
        ColumnSchema("detail", "VARCHAR", "More to know, or what to do; mostly NULL"),
    ),
)
LINKS = TableSchema(
    "links",
    "Each agent run on each node, as it was at the last commit",
    (
        ColumnSchema("node_id", "INTEGER", "nodes.node_id"),
        ColumnSchema("life", "VARCHAR", "Agent run"),
        ColumnSchema(
            "last_seq", "BIGINT", "Last frame of that life, committed or lost; NULL before the first"
        ),
        ColumnSchema("last_ts", "TIMESTAMP", "Its time on the node's own clock (UTC); NULL where it is lost"),
        ColumnSchema("frames", "BIGINT", "Frames committed"),
        ColumnSchema("lost_frames", "BIGINT", "Frames missing in the sequence"),
        ColumnSchema("reconnects", "INTEGER", "How often a link came back to it"),
        ColumnSchema("clock_offset_s", "DOUBLE", "The node's clock minus the recorder's [s]"),
        ColumnSchema("round_trip_s", "DOUBLE", "Round trip to the agent [s]"),
    ),
    key=("node_id", "life"),
)

TABLES = (RECORDINGS, NODES, GPUS, GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, SESSIONS, EVENTS, LINKS)


def micros(seconds: float) -> int:
    """Return Unix seconds as the microseconds that are stored."""
    return round(seconds * 1e6)


def literal(text: str) -> str:
    """The text as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def create_statements() -> Iterator[str]:
    """What makes all tables, with their comments, in an empty file."""
    for table in TABLES:
        yield from _create(table)


def upgrade_statements(existing: dict[str, set[str]]) -> Iterator[str]:
    """What adds the columns that an older file lacks; ``existing`` maps tables to columns.

    Until version 2, ``links`` had one row a node.
    """
    if LINKS["last_ts"].name not in existing[LINKS.name]:
        yield "CREATE OR REPLACE TEMP TABLE older_links AS FROM links WHERE life IS NOT NULL"
        yield "DROP TABLE links"
        yield from _create(LINKS)
        yield "INSERT INTO links BY NAME FROM older_links"
        yield "DROP TABLE temp.older_links"
    for table in TABLES:
        if table is LINKS:
            continue
        for column in table.columns:
            if column.name not in existing[table.name]:
                yield f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.type}"
                yield _comment(table, column)


def _create(table: TableSchema) -> Iterator[str]:
    yield table.create
    yield f"COMMENT ON TABLE {table.name} IS {literal(table.meaning)}"
    for column in table.columns:
        yield _comment(table, column)


def _comment(table: TableSchema, column: ColumnSchema) -> str:
    return f"COMMENT ON COLUMN {table.name}.{column.name} IS {literal(column.meaning)}"
