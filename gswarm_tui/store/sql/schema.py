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
class Column:
    """One column: its SQL type and what it means, unit included."""

    name: str
    sql: str
    meaning: str

    @property
    def type(self) -> str:
        """The bare SQL type, without constraints."""
        return self.sql.split(" ", 1)[0]


@dataclass(frozen=True)
class Table:
    """One table: one row for each thing if it has a key, else rows that are added."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def create(self) -> str:
        """The statement that makes it."""
        parts = [f"{column.name} {column.sql}" for column in self.columns]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TABLE {self.name} ({', '.join(parts)})"


def _metrics(metrics: tuple[Metric, ...]) -> tuple[Column, ...]:
    return tuple(
        Column(m.name, m.sql, f"{m.meaning} [{m.unit}]{_digits(m)}; NULL where not measured") for m in metrics
    )


def _digits(metric: Metric) -> str:
    kept = ", whole from 100 on, one digit after the point from 10 on, else two"
    return kept if metric.sql == "FLOAT" else ""


_WHEN = (
    "Time of the reading on the recorder's clock (UTC), to the millisecond; "
    "that of its deadline if it began less than 5 ms after it"
)
_INTERVAL = Column(
    "interval_ms",
    "UINTEGER",
    "Time since the frame before, for which the sample stands [ms]; NULL after a start or a gap",
)

RECORDINGS = Table(
    "recordings",
    "One run of gswarm-tui each",
    (
        Column("recording_id", "INTEGER", "Number of the recording in this file"),
        Column("started_at", "TIMESTAMP", "When it began (UTC)"),
        Column(
            "ended_at",
            "TIMESTAMP",
            "When it ended (UTC); NULL while it runs, if it was killed, or if nodes still hold frames of it",
        ),
        Column("host", "VARCHAR", "Machine that recorded"),
        Column("user_name", "VARCHAR", "User that recorded"),
        Column("slurm_job_id", "VARCHAR", "Slurm job, NULL outside one"),
        Column("slurm_cluster", "VARCHAR", "Slurm cluster, NULL outside a job"),
        Column("command", "VARCHAR", "Command line of gswarm-tui"),
        Column("interval_ms", "UINTEGER", "Time between samples at the start [ms]"),
        Column("tool_version", "VARCHAR", "Version of gswarm-tui"),
        Column("schema_version", "INTEGER", "Version of these tables"),
        Column("uid", "VARCHAR", "The recording's name to the agents on its nodes"),
        Column("options", "VARCHAR", "JSON object: its nodes and how they are reached, to go on with it"),
    ),
    key=("recording_id",),
)
NODES = Table(
    "nodes",
    "Nodes of each recording; a node that came back with another boot or other GPUs is a new row",
    (
        Column("node_id", "INTEGER", "Number of the node in this file"),
        Column("recording_id", "INTEGER", "recordings.recording_id"),
        Column("node", "VARCHAR", "Name under which it was asked for"),
        Column("hostname", "VARCHAR", "Name it gives itself; NULL if its agent never answered"),
        Column("boot_id", "VARCHAR", "Identity of its boot"),
        Column("cpu_model", "VARCHAR", "CPU model"),
        Column("cpus", "INTEGER", "Logical CPUs"),
        Column("memory_total_mib", "BIGINT", "Host memory [MiB]"),
        Column("kernel", "VARCHAR", "Kernel release"),
        Column("driver_version", "VARCHAR", "NVIDIA driver"),
        Column("cuda_version", "VARCHAR", "Newest CUDA the driver supports"),
        Column("agent_version", "VARCHAR", "Version of the agent"),
        Column("simulated", "BOOLEAN", "Whether the node is a simulation"),
        Column("capabilities", "VARCHAR", "JSON object: what could not be measured, and why"),
    ),
    key=("node_id",),
)
GPUS = Table(
    "gpus",
    "GPUs of each node",
    (
        Column("gpu_id", "INTEGER", "Number of the GPU in this file"),
        Column("node_id", "INTEGER", "nodes.node_id"),
        Column("gpu_index", "INTEGER", "NVML index on its node"),
        Column("uuid", "VARCHAR", "NVML UUID"),
        Column("name", "VARCHAR", "Product name"),
        Column("pci_bus_id", "VARCHAR", "PCI address"),
        Column("memory_total_mib", "UINTEGER", "Device memory [MiB]"),
        Column("power_limit_w", "FLOAT", "Enforced power limit [W]"),
        Column("sm_clock_max_mhz", "UINTEGER", "Highest SM clock [MHz]"),
        Column("mem_clock_max_mhz", "UINTEGER", "Highest memory clock [MHz]"),
        Column("mig", "BOOLEAN", "Whether MIG is on"),
        Column("allocated", "BOOLEAN", "Whether Slurm granted it to the job; NULL where that isn't known"),
    ),
    key=("gpu_id",),
)
GPU_SAMPLES = Table(
    "gpu_samples",
    "One row for each GPU and frame in which the GPU answered",
    (
        Column("ts", "TIMESTAMP NOT NULL", _WHEN),
        Column("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        _INTERVAL,
        *_metrics(GPU_METRICS),
    ),
)
HOST_SAMPLES = Table(
    "host_samples",
    "One row for each frame of a node",
    (
        Column("ts", "TIMESTAMP NOT NULL", _WHEN),
        Column("node_id", "INTEGER NOT NULL", "nodes.node_id"),
        Column("seq", "BIGINT", "Number of the frame in its agent's life, from 1"),
        _INTERVAL,
        Column("late_ms", "FLOAT", "How long after its deadline the reading began [ms]"),
        Column("missed", "UINTEGER", "Deadlines passed over since the frame before"),
        *_metrics(HOST_METRICS),
    ),
)
PROCESS_SAMPLES = Table(
    "process_samples",
    "One row for each process on each GPU, in frames that looked at processes",
    (
        Column("ts", "TIMESTAMP NOT NULL", _WHEN),
        Column("gpu_id", "INTEGER NOT NULL", "gpus.gpu_id"),
        Column("pid", "BIGINT", "Process id on the node"),
        Column("rank", "INTEGER", "Rank in the job, NULL if not told"),
        Column("local_rank", "INTEGER", "Rank on the node, NULL if not told"),
        Column("user_name", "VARCHAR", "Owner of the process"),
        Column("command", "VARCHAR", "Command line"),
        *_metrics(PROCESS_METRICS),
    ),
)
SESSIONS = Table(
    "sessions",
    "Named intervals of a recording; they may overlap",
    (
        Column("session_id", "INTEGER", "Number of the session in this file"),
        Column("recording_id", "INTEGER", "recordings.recording_id"),
        Column("name", "VARCHAR", "Name the user gave"),
        Column("started_at", "TIMESTAMP", "Begin (UTC), part of the session"),
        Column("ended_at", "TIMESTAMP", "End (UTC), not part of it; NULL while it runs or if it was killed"),
        Column("status", "VARCHAR", "running, stopped by the user, or ended with the recording"),
        Column("note", "VARCHAR", "What the user wrote about it"),
    ),
    key=("session_id",),
)
EVENTS = Table(
    "events",
    "What happened: links lost and back, gaps, XIDs, throttling, sessions, marks",
    (
        Column("ts", "TIMESTAMP NOT NULL", "When (UTC)"),
        Column("recording_id", "INTEGER", "recordings.recording_id"),
        Column("node_id", "INTEGER", "nodes.node_id, NULL if it is about no node"),
        Column("gpu_id", "INTEGER", "gpus.gpu_id, NULL if it is about no GPU"),
        Column("kind", "VARCHAR", "One lower-case word"),
        Column("severity", "VARCHAR", "info, warning or error"),
        Column("message", "VARCHAR", "One sentence"),
        Column("detail", "VARCHAR", "More to know, or what to do; mostly NULL"),
    ),
)
LINKS = Table(
    "links",
    "Each agent run on each node, as it was at the last commit",
    (
        Column("node_id", "INTEGER", "nodes.node_id"),
        Column("life", "VARCHAR", "Agent run"),
        Column("last_seq", "BIGINT", "Last frame of that life, committed or lost; NULL before the first"),
        Column("last_ts", "TIMESTAMP", "Its time on the node's own clock (UTC); NULL where it is lost"),
        Column("frames", "BIGINT", "Frames committed"),
        Column("lost_frames", "BIGINT", "Frames missing in the sequence"),
        Column("reconnects", "INTEGER", "How often a link came back to it"),
        Column("clock_offset_s", "DOUBLE", "The node's clock minus the recorder's [s]"),
        Column("round_trip_s", "DOUBLE", "Round trip to the agent [s]"),
    ),
    key=("node_id", "life"),
)

TABLES = (RECORDINGS, NODES, GPUS, GPU_SAMPLES, HOST_SAMPLES, PROCESS_SAMPLES, SESSIONS, EVENTS, LINKS)


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


def _create(table: Table) -> Iterator[str]:
    yield table.create
    yield f"COMMENT ON TABLE {table.name} IS {literal(table.meaning)}"
    for column in table.columns:
        yield _comment(table, column)


def _comment(table: Table, column: Column) -> str:
    return f"COMMENT ON COLUMN {table.name}.{column.name} IS {literal(column.meaning)}"
