"""The fleet at one moment as metric families for Prometheus, and their text by prometheus_client. No I/O.

Names and help texts come from the catalogue of metrics, values are in base units, and labels are those of
NVIDIA's dcgm-exporter. A value that is stale or that wasn't measured is NaN here and has no series.
docs/guide/prometheus.md lists all families.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from prometheus_client import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from gswarm_agent import __version__
from gswarm_agent.frame import gpu_label
from gswarm_agent.metrics import COUNTER, GAUGE, GPU_METRICS, HOST_METRICS, LISTINGS, ROW_NAMES, Metric
from gswarm_tui.common.errors import printable
from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.fleet.findings import holding
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.state import Fleet

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_MIB = 1024 * 1024
_DIGITS = 7
"""Significant digits of values in single precision, as ``once`` prints them."""
_LONGEST = 200
"""Characters of a label: a hostile node could send texts that no scrape can carry."""


class _BaseUnit(NamedTuple):
    """Base unit of a catalogue unit, whose columns end in ``suffix``: values are × ``times`` / ``per``."""

    suffix: str
    name: str
    times: float = 1
    per: float = 1


_BASE_UNITS = {
    "%": _BaseUnit("_pct", "ratio", per=100),
    "MiB": _BaseUnit("_mib", "bytes", times=_MIB),
    "W": _BaseUnit("_w", "watts"),
    "°C": _BaseUnit("_c", "celsius"),
    "MHz": _BaseUnit("_mhz", "hertz", times=1e6),
    "MB/s": _BaseUnit("_mb_s", "bytes_per_second", times=1e6),
    "mJ": _BaseUnit("_mj", "joules", per=1000),
    "G/s": _BaseUnit("_g_s", "per_second", times=1e9),
    "GFLOP/s": _BaseUnit("_g_s", "per_second", times=1e9),
    "M/s": _BaseUnit("_m_s", "per_second", times=1e6),
    "1/s": _BaseUnit("_s", "per_second"),
    "Gbit/s": _BaseUnit("_gbit_s", "bytes_per_second", times=1e9, per=8),
    "ms": _BaseUnit("_ms", "seconds", per=1000),
}
_NO_UNIT = _BaseUnit("", "")
_WORDS = {
    "util": "utilization", "mem": "memory", "temp": "temperature", "tx": "transmit", "rx": "receive",
    "net": "network", "ib": "infiniband", "psi": "pressure",
}  # fmt: skip
"""Words of column names that are written in full."""


class MetricFamily(NamedTuple):
    """A name with its help; ``kind`` is gauge or counter, and a counter's series end in ``_total``."""

    name: str
    help: str
    kind: str = GAUGE

    @property
    def series(self) -> str:
        """Name of the family's series."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


class FamilyTable(NamedTuple):
    """Families whose series have the same labels: a row for each set of labels, a column for each family."""

    families: tuple[MetricFamily, ...]
    labels: list[dict[str, str]]
    values: Floats


class RecorderHealth(NamedTuple):
    """State of a recorder beside its fleet.

    ``connected`` is whether the recorder answers, ``disk_free_bytes`` the space left for its recording, None
    if unknown.
    """

    uid: str
    started_at: float
    status: RecorderStatus | None
    connected: bool
    disk_free_bytes: int | None


def catalogue_family(subject: str, metric: Metric) -> MetricFamily:
    """Return the family of a metric of the catalogue; ``subject`` is gpu or host."""
    unit = _BASE_UNITS.get(metric.unit, _NO_UNIT)
    words = [_WORDS.get(word, word) for word in metric.name.removesuffix(unit.suffix).split("_")]
    words += [word for word in (unit.name, "errors" if metric.unit == "errors" else "") if word]
    kind = COUNTER if metric.kind == COUNTER else GAUGE
    return MetricFamily("_".join(("gswarm", subject, *words)), metric.meaning, kind)


GPU_FAMILIES = (
    *(catalogue_family("gpu", metric) for metric in GPU_METRICS),
    MetricFamily("gswarm_gpu_memory_total_bytes", "Device memory of the GPU"),
    MetricFamily("gswarm_gpu_power_limit_watts", "Power limit of the board"),
)
HOST_FAMILIES = (
    *(catalogue_family("host", metric) for metric in HOST_METRICS),
    MetricFamily("gswarm_host_memory_total_bytes", "Memory of the host"),
    MetricFamily("gswarm_host_cpus", "Logical CPUs of the host"),
)
LISTING_FAMILIES = {
    kind: tuple(catalogue_family(ROW_NAMES[kind], metric) for metric in metrics)
    for kind, metrics in LISTINGS.items()
}
NODE_FAMILIES = (
    MetricFamily("gswarm_node_up", "Whether samples of the node arrive: 1 if it is live, else 0"),
    MetricFamily("gswarm_node_lag_seconds", "Delay of the node's newest sample"),
    MetricFamily("gswarm_node_sample_age_seconds", "Time since a sample of the node arrived"),
    MetricFamily("gswarm_node_lost_frames", "Frames of the node that are missing in the recording", COUNTER),
    MetricFamily("gswarm_node_missed_ticks", "Ticks that the node's agent skipped", COUNTER),
    MetricFamily("gswarm_node_reconnects", "Times that the node's link reconnected", COUNTER),
    MetricFamily("gswarm_node_round_trip_seconds", "Round trip of the node's link, newest measurement"),
    MetricFamily("gswarm_node_clock_offset_seconds", "Node's clock minus the recorder's clock"),
)
RECORDER_FAMILIES = (
    MetricFamily("gswarm_recorder_up", "Whether the recorder answers and can write its recording: 1 or 0"),
    MetricFamily("gswarm_recorder_rows", "Rows committed to the recording", COUNTER),
    MetricFamily("gswarm_recorder_waiting_events", "Events that aren't committed yet"),
    MetricFamily("gswarm_recorder_file_bytes", "Size of the recording with its write-ahead log"),
    MetricFamily("gswarm_recorder_disk_free_bytes", "Space left where the recording is written"),
    MetricFamily("gswarm_recording_start_time_seconds", "Unix time of the recording's start"),
    MetricFamily("gswarm_recording_interval_seconds", "Time between samples"),
    MetricFamily(
        "gswarm_recording_energy_joules", "Energy that the job's GPUs used in this recording", COUNTER
    ),
)
FINDING_FAMILIES = (
    MetricFamily("gswarm_finding", "Findings of this kind that hold now and aren't dismissed"),
)
LEDGER_FAMILIES = (MetricFamily("gswarm_ledger_gpu_seconds", "Time of the job's GPUs so far, by its cause"),)
INFO_FAMILIES = (
    MetricFamily("gswarm_recording_info", "Recording and version of gswarm-tui as labels; always 1"),
)


class _Tables(Collector):
    """The series of tables that have a value, for prometheus_client."""

    def __init__(self, tables: Sequence[FamilyTable]) -> None:
        self._tables = tables

    def collect(self) -> Iterator[Family]:
        """Yield the families that have series."""
        for table in self._tables:
            for family, column in zip(table.families, table.values.T, strict=True):
                made = Family(family.name, family.help, family.kind)
                for labels, value in zip(table.labels, column.tolist(), strict=True):
                    if math.isfinite(value):
                        made.add_sample(family.series, labels, value)
                if made.samples:
                    yield made


def exposition_text(tables: Sequence[FamilyTable]) -> bytes:
    """Return the families with all series that have a value; 8,192 GPUs take some 3 s."""
    return generate_latest(_Tables(tables))


def fleet_tables(fleet: Fleet, now: float, job_id: str, health: RecorderHealth | None) -> list[FamilyTable]:
    """Return the families of a fleet at a time; ``health`` is None where nothing is recorded.

    ``job_id`` is the job of the fleet's own GPUs, empty without one.
    """
    nodes = list(fleet.nodes.values())
    up = [node for node in nodes if node.standing(now) is Standing.LIVE]
    tables = [_gpus(up, job_id), _hosts(up, job_id), _nodes(nodes, now, job_id)]
    tables += [_listing(kind, up, job_id) for kind in LISTINGS]
    tables.append(_findings(fleet, job_id))
    if fleet.examined is not None:
        causes = [_labels(cause=cause, hpc_job=job_id) for cause in fleet.examined.ledger]
        seconds = _column(fleet.examined.ledger.values()).reshape(-1, 1)
        tables.append(FamilyTable(LEDGER_FAMILIES, causes, seconds))
    return tables if health is None else [*tables, *_recorder(fleet, job_id, health)]


def _gpus(nodes: Sequence[NodeState], job_id: str) -> FamilyTable:
    facts = [fact for node in nodes for fact in node.facts]
    values = np.concatenate([np.empty((0, len(GPU_METRICS))), *(_gpu_values(node) for node in nodes)])
    columns = (
        _base_units(GPU_METRICS, values),
        _column(fact.memory_total_mib for fact in facts) * _MIB,
        _column(fact.power_limit_w for fact in facts),
    )
    labels = [labels for node in nodes for labels in _gpu_labels(node, job_id)]
    return FamilyTable(GPU_FAMILIES, labels, np.column_stack(columns))


def _gpu_values(node: NodeState) -> Floats:
    """Return the GPUs' values with the drivers' energy counters; NaN for old ones."""
    values = node.gpus.copy()
    values[:, ENERGY] = np.where(node.energy_is_recent, node.energy.counter_mj, np.nan)
    return values


def _gpu_labels(node: NodeState, job_id: str) -> Iterator[dict[str, str]]:
    ranks: dict[int, set[int]] = {}
    if (processes := node.process_table) is not None:
        for gpu, rank in zip(processes.gpus, processes.ranks, strict=True):
            if rank is not None:
                ranks.setdefault(gpu, set()).add(rank)
    for position, (fact, own) in enumerate(zip(node.facts, node.mine, strict=True)):
        yield _labels(
            hostname=node.name,
            gpu=fact.label,
            UUID=fact.uuid,
            modelName=fact.name,
            GPU_I_PROFILE=fact.mig_profile or "",
            hpc_job=job_id if own else "",
            rank=",".join(map(str, sorted(ranks.get(position, ())))),
        )


def _hosts(nodes: Sequence[NodeState], job_id: str) -> FamilyTable:
    facts = [node.hello.host for node in nodes if node.hello is not None]  # live nodes have one
    columns = (
        _base_units(HOST_METRICS, np.array([node.host for node in nodes]).reshape(-1, len(HOST_METRICS))),
        _column(fact.memory_total_mib for fact in facts) * _MIB,
        _column(fact.cpus for fact in facts),
    )
    return FamilyTable(HOST_FAMILIES, _node_labels(nodes, job_id), np.column_stack(columns))


def _listing(kind: str, nodes: Sequence[NodeState], job_id: str) -> FamilyTable:
    metrics, column = LISTINGS[kind], ROW_NAMES[kind]
    found = [(node.name, name, row) for node in nodes for name, row in node.listed(kind).items()]
    values = [_column(row.get(metric.name) for metric in metrics) for _, _, row in found]
    labels = [_labels(hostname=node, hpc_job=job_id, **{column: name}) for node, name, _ in found]
    based = _base_units(metrics, np.array(values).reshape(-1, len(metrics)))
    return FamilyTable(LISTING_FAMILIES[kind], labels, based)


def _findings(fleet: Fleet, job_id: str) -> FamilyTable:
    counts = Counter(
        (one.kind, one.severity, one.node or "", "" if one.gpu is None else gpu_label(one.gpu))
        for one in holding(fleet.findings.values())
    )
    labels = [
        _labels(kind=kind, severity=severity, node=node, gpu=gpu, hpc_job=job_id)
        for kind, severity, node, gpu in counts
    ]
    return FamilyTable(FINDING_FAMILIES, labels, _column(counts.values()).reshape(-1, 1))


def _nodes(nodes: Sequence[NodeState], now: float, job_id: str) -> FamilyTable:
    values = np.array([_node_values(node, now) for node in nodes]).reshape(-1, len(NODE_FAMILIES))
    return FamilyTable(NODE_FAMILIES, _node_labels(nodes, job_id), values)


def _node_values(node: NodeState, now: float) -> tuple[float, ...]:
    """Return the values of ``NODE_FAMILIES``."""
    up, age, round_trip = node.standing(now) is Standing.LIVE, node.age(now), node.round_trip_s
    measured = up and round_trip is not None
    return (
        float(up),
        round(node.late_ms / 1000, 6) if up else math.nan,
        math.nan if age is None else round(age, 3),
        node.lost_frames,
        node.missed_ticks,
        node.reconnects,
        round(round_trip, 6) if measured and round_trip is not None else math.nan,
        round(node.offset_s, 6) if measured else math.nan,
    )


def _recorder(fleet: Fleet, job_id: str, health: RecorderHealth) -> list[FamilyTable]:
    status = health.status
    writes = health.connected and status is not None and not status.error
    values = (
        float(writes),
        math.nan if status is None else status.rows,
        math.nan if status is None else status.waiting,
        math.nan if status is None else status.file_bytes,
        math.nan if health.disk_free_bytes is None else health.disk_free_bytes,
        health.started_at,
        fleet.interval_s,
        fleet.energy_j,
    )
    info = _labels(recording=health.uid, version=__version__, hpc_job=job_id)
    return [
        FamilyTable(RECORDER_FAMILIES, [{}], np.array([values])),
        FamilyTable(INFO_FAMILIES, [info], np.array([[1.0]])),
    ]


def _node_labels(nodes: Iterable[NodeState], job_id: str) -> list[dict[str, str]]:
    return [_labels(hostname=node.name, hpc_job=job_id) for node in nodes]


def _labels(**labels: str) -> dict[str, str]:
    """Return labels without control characters; empty ones are left out, as Prometheus does."""
    return {
        name: (value if value.isprintable() else printable(value))[:_LONGEST]
        for name, value in labels.items()
        if value
    }


def _column(values: Iterable[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _base_units(metrics: Sequence[Metric], values: Floats) -> Floats:
    """Return values of the catalogue's columns in base units."""
    units = [_BASE_UNITS.get(metric.unit, _NO_UNIT) for metric in metrics]
    based: Floats = values * [unit.times for unit in units] / [unit.per for unit in units]
    singles = [metric.sql == "FLOAT" for metric in metrics]
    # 350.3 in single precision would be shown as 350.29998779296875.
    rounded = [float(f"{value:.{_DIGITS}g}") for value in based[:, singles].flat]
    based[:, singles] = np.array(rounded).reshape(-1, sum(singles))
    return based
