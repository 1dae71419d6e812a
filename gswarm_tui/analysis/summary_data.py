"""Figures of a period by GPU, by node and in all, and the peaks of each process, loaded from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from gswarm_agent.frame import gpu_label
from gswarm_tui.analysis.periods import Period
from gswarm_tui.fleet.names import natural_key
from gswarm_tui.store.querying.results import QuerySource, Result
from gswarm_tui.store.sql import summaries
from gswarm_tui.store.sql.summaries import Spans, spans_of

T = TypeVar("T")


@dataclass(frozen=True)
class Figures:
    """Figures of one GPU, of a node's GPUs, or of all: ``scope`` is gpu, node or all. None is unmeasured.

    Means and quantiles are over the measured time of single GPUs, maxima are of the GPU with the highest
    value; times are summed over GPUs. A silent GPU has 0 samples. Coverage is the share of the GPUs' time
    that samples cover. A bubble is an idle phase between two busy samples of a GPU; ``bubble_share`` is of
    the measured time between the first and the last busy sample. The host's maxima are None for a GPU.
    """

    scope: str
    node: str | None
    gpu_index: int | None
    rank: int | None
    gpus: int
    samples: int
    coverage: float | None
    util_mean_pct: float | None
    util_median_pct: float | None
    util_p95_pct: float | None
    util_max_pct: int | None
    sm_active_mean_pct: float | None
    tensor_active_mean_pct: float | None
    dram_active_mean_pct: float | None
    of_peak: float | None
    power_mean_w: float | None
    power_max_w: float | None
    mem_used_max_mib: int | None
    mem_total_mib: int | None
    temp_max_c: int | None
    mem_temp_max_c: int | None
    busy_s: float | None
    idle_s: float | None
    energy_j: float | None
    energy_kwh: float | None
    throttle_power_s: float | None
    throttle_thermal_s: float | None
    throttle_brake_s: float | None
    bubbles: int | None
    bubble_s: float | None
    bubble_share: float | None
    bubble_longest_s: float | None
    host_cpu_max_pct: float | None
    host_memory_max_mib: int | None
    host_memory_total_mib: int | None

    @property
    def measured_s(self) -> float | None:
        """Seconds covered by samples that have a utilisation."""
        return None if self.busy_s is None or self.idle_s is None else self.busy_s + self.idle_s

    @property
    def label(self) -> str:
        """Name of the GPU, node or whole: "gpu03:5", "gpu03" or "all"."""
        if self.node is None:
            return "all"
        return self.node if self.gpu_index is None else f"{self.node}:{gpu_label(self.gpu_index)}"


@dataclass(frozen=True)
class RecordingTotals:
    """The figures of a whole recording that a list of many shows, as in its ``Figures`` of scope all."""

    gpus: int = 0
    util_mean_pct: float | None = None
    energy_j: float | None = None
    coverage: float | None = None


@dataclass(frozen=True)
class ProcessPeaks:
    """A process on one GPU and its peaks; times are naive UTC."""

    node: str
    gpu_index: int
    pid: int
    rank: int | None
    local_rank: int | None
    user_name: str | None
    command: str | None
    first_seen: datetime
    last_seen: datetime
    gpu_memory_max_mib: int | None
    sm_max_pct: int | None
    sm_mean_pct: float | None
    cpu_max_pct: float | None
    memory_max_mib: int | None


@dataclass(frozen=True)
class NodeCoverage:
    """Share of a period that a node's frames cover; ``complete`` if no significant part is missing."""

    node: str
    frames: int
    covered_s: float
    coverage: float | None
    complete: bool


@dataclass(frozen=True)
class Summary:
    """Figures of a period; ``whole`` is None if no GPU was sampled, ``running`` while it is recorded.

    ``util_us`` is the measured time of all GPUs in µs by utilisation in percent.
    """

    period: Period
    running: bool
    whole: Figures | None
    nodes: tuple[Figures, ...]
    gpus: tuple[Figures, ...]
    covered: tuple[NodeCoverage, ...]
    util_us: Mapping[int, int] = field(default_factory=dict)

    @property
    def silent(self) -> tuple[str, ...]:
        """The nodes without GPU samples, and the GPUs without samples of other nodes."""
        answered = {one.node for one in self.nodes if one.samples}
        gpus = [gpu.label for gpu in self.gpus if not gpu.samples and gpu.node in answered]
        return (*(one.node for one in self.covered if one.node not in answered), *gpus)

    @property
    def partial(self) -> tuple[str, ...]:
        """The nodes that don't cover the whole period."""
        return tuple(one.node for one in self.covered if not one.complete)


def summarize(source: QuerySource, period: Period) -> Summary:
    """Summarize a period. Raises StoreError."""
    return summarize_all(source, [period])[0]


def summarize_all(source: QuerySource, periods: Sequence[Period]) -> list[Summary]:
    """Summarize periods with one query. Raises StoreError."""
    spans = _spans(*periods)
    found: list[list[Mapping[str, Any]]] = [[] for _ in periods]
    for row in source.query(summaries.summary(spans)).dicts():
        found[row["session_id"]].append(row)
    return [
        _summary(source, period, rows, covered)
        for period, rows, covered in zip(periods, found, _coverage(source, spans, periods), strict=True)
    ]


def _summary(
    source: QuerySource, period: Period, rows: list[Mapping[str, Any]], covered: tuple[NodeCoverage, ...]
) -> Summary:
    by_scope: dict[str, list[Figures]] = {"all": [], "node": [], "gpu": []}
    for one in sorted((_from_row(Figures, row) for row in rows), key=lambda one: natural_key(one.label)):
        by_scope[one.scope].append(one)
    return Summary(
        period,
        period.ended_at is None and source.running,
        next((whole for whole in by_scope["all"] if whole.samples), None),
        tuple(by_scope["node"]),
        tuple(by_scope["gpu"]),
        covered,
        dict(next((row["util_us"] for row in rows if row["util_us"]), ())),
    )


def load_coverage(source: QuerySource, period: Period) -> tuple[NodeCoverage, ...]:
    """Return the coverage of a period by each node. Raises StoreError."""
    return _coverage(source, _spans(period), [period])[0]


def load_totals(source: QuerySource, recordings: Sequence[Period]) -> dict[int, RecordingTotals]:
    """Return the totals of whole recordings by number; those without GPUs have none. Raises StoreError."""
    found = {}
    seconds = {one.recording_id: one.seconds for one in recordings}
    for number, gpus, util_mean_pct, energy_j, measured_s, members in source.query(summaries.totals()).rows():
        gpu_s = seconds[number] * members
        coverage = min(1.0, measured_s / gpu_s) if gpu_s else None
        found[number] = RecordingTotals(gpus, util_mean_pct, energy_j, coverage)
    return found


def _coverage(source: QuerySource, spans: Spans, periods: Sequence[Period]) -> list[tuple[NodeCoverage, ...]]:
    """Return each period's coverage by each node."""
    found: list[list[NodeCoverage]] = [[] for _ in periods]
    for row in source.query(summaries.coverage(spans)).dicts():
        found[row["session_id"]].append(_from_row(NodeCoverage, row))
    return [tuple(sorted(nodes, key=lambda one: natural_key(one.node))) for nodes in found]


def processes(source: QuerySource, period: Period) -> list[ProcessPeaks]:
    """Return the processes on a period's GPUs, most GPU memory first. Raises StoreError."""
    rows = source.query(summaries.processes(_spans(period))).dicts()
    return sorted(
        (_from_row(ProcessPeaks, row) for row in rows),
        key=lambda one: (-(one.gpu_memory_max_mib or 0), natural_key(one.node), one.gpu_index, one.pid),
    )


def figures_result(source: QuerySource, period: Period, scope: str = "") -> Result:
    """Return the figures of a period as data, all or of one scope (gpu, node, all). Raises StoreError."""
    rows = f"(SELECT * EXCLUDE (util_us) FROM ({summaries.summary(_spans(period))}))"  # noqa: S608 (own names)
    chosen = f"FROM {rows} WHERE scope = ? OR ? = '' ORDER BY scope, node, gpu_index"
    return _labelled(source, period, chosen, scope, scope)


def processes_result(source: QuerySource, period: Period) -> Result:
    """Return the processes of a period and their peaks as data. Raises StoreError."""
    order = "gpu_memory_max_mib DESC NULLS LAST, node, gpu_index, pid"
    rows = summaries.processes(_spans(period))
    return _labelled(source, period, f"FROM ({rows}) ORDER BY {order}")


def _labelled(source: QuerySource, period: Period, sql: str, *values: object) -> Result:
    """Return a query's rows with the period's name and recording instead of the session's id."""
    columns = "SELECT ?::VARCHAR AS session, ?::INTEGER AS recording_id, * EXCLUDE (session_id) "
    return source.query(columns + sql, period.name, period.recording_id, *values)


def _spans(*periods: Period) -> Spans:
    return spans_of([(one.recording_id, one.started_at, one.until) for one in periods])


def _from_row(kind: type[T], row: Mapping[str, Any]) -> T:
    """Build a dataclass from the columns of a row that are its fields."""
    columns: Any = kind
    return kind(**{field.name: row[field.name] for field in fields(columns)})
