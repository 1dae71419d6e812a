"""Samples of many GPUs or nodes, aggregated by the database in bins of equal time.

A sample covers the interval before it. A bin holds the mean of the samples in it, weighted
by how much of the bin they cover, and NaN without any. So values don't depend on where samples fall in bins,
and gaps longer than a bin stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import Metric
from gswarm_tui.analysis.periods import Period
from gswarm_tui.common.units import shown_unit
from gswarm_tui.store.figures.definitions import LONGEST_INTERVAL_S, MINE, covered_from
from gswarm_tui.store.querying.results import QuerySource

Floats = npt.NDArray[np.float32]

MAX_BINS, MIN_BINS, MAX_CELLS = 1500, 300, 1_500_000


@dataclass(frozen=True)
class Device:
    """A row of a grid: a GPU of a node, or with ``gpu`` None the node itself; ``facts`` are its limits."""

    node: str
    gpu: int | None
    facts: dict[str, float | None]


@dataclass(frozen=True, eq=False)
class MetricGrid:
    """One metric of all devices: ``values`` has a row for each device and a column for each bin.

    Values are in the unit shown, NaN is unmeasured. Bins begin with the period and are ``width_s`` wide; the
    last one may end after it.
    """

    metric: Metric
    host: bool
    devices: tuple[Device, ...]
    width_s: float
    values: Floats

    @property
    def measured(self) -> bool:
        """Whether it has any value."""
        return bool(np.isfinite(self.values).any())


_GPUS = f"""
SELECT g.gpu_id AS id, n.node, g.gpu_index AS gpu, coalesce(g.uuid, '') AS uuid,
       g.memory_total_mib, g.power_limit_w, g.sm_clock_max_mhz, g.mem_clock_max_mhz
FROM gpus g JOIN nodes n USING (node_id)
WHERE n.recording_id = ? AND g.{MINE}
ORDER BY min(n.node_id) OVER (PARTITION BY n.node), coalesce(g.parent_index, g.gpu_index), gpu, id
"""  # noqa: S608 (own names)
_NODES = """
SELECT node_id AS id, node, NULL AS gpu, '' AS uuid, memory_total_mib
FROM nodes WHERE recording_id = ?
ORDER BY min(node_id) OVER (PARTITION BY node), node_id
"""
_FACTS = ("memory_total_mib", "power_limit_w", "sm_clock_max_mhz", "mem_clock_max_mhz")


def _devices(source: QuerySource, recording_id: int, *, host: bool) -> tuple[list[Device], dict[int, int]]:
    """Return the devices of a recording, and the row of each id in the database. Raises StoreError.

    A GPU or node with a new id, as after a reboot, keeps its row.
    """
    devices: list[Device] = []
    row_of: dict[int, int] = {}
    rows: dict[tuple[object, ...], int] = {}
    for row in source.query(_NODES if host else _GPUS, recording_id).dicts():
        key = (row["node"], row["gpu"], row["uuid"])
        if key not in rows:
            rows[key] = len(devices)
            devices.append(Device(row["node"], row["gpu"], {name: row.get(name) for name in _FACTS}))
        row_of[row["id"]] = rows[key]
    return devices, row_of


def bins_for(period: Period, rows: int, interval_ms: int, most: int = MAX_BINS) -> tuple[int, int]:
    """Return the number of bins and their width in µs, no finer than the samples or the picture's pixels."""
    whole = max(1, round(period.seconds * 1e6))
    seen = min(most, max(MIN_BINS, MAX_CELLS // max(1, rows)))
    width = max(interval_ms * 1000, -(-whole // seen))
    return -(-whole // width), width


def load_grids(
    source: QuerySource, period: Period, metrics: Sequence[Metric], *, host: bool, most: int = MAX_BINS
) -> list[MetricGrid]:
    """Load a grid for each metric, all of GPUs or all of nodes; none without devices. Raises StoreError."""
    devices, row_of = _devices(source, period.recording_id, host=host)
    if not devices:
        return []
    [(interval_ms,)] = source.query(
        "SELECT greatest(100, coalesce(interval_ms, 1000)) FROM recordings WHERE recording_id = ?",
        period.recording_id,
    ).rows()
    count, width = bins_for(period, len(devices), interval_ms, most)
    values = np.full((len(metrics), len(devices), count), np.nan, dtype=np.float32)
    sql = _binned(metrics, host=host, whole=round(period.seconds * 1e6), width=width)
    result = source.query(sql, period.started_at, sorted(row_of), period.started_at, period.until)
    for device, bins, *columns in chain.from_iterable(result.batches):
        for at, column in enumerate(columns):
            row = values[at, row_of[device]]
            # None becomes NaN, which replaces no value of the same device under another id.
            found = np.array(column, dtype=np.float32)
            row[bins] = np.where(np.isfinite(found), found, row[bins])
    return [
        MetricGrid(metric, host, tuple(devices), width / 1e6, of_one * np.float32(shown_unit(metric).factor))
        for metric, of_one in zip(metrics, values, strict=True)
    ]


def _binned(metrics: Sequence[Metric], *, host: bool, whole: int, width: int) -> str:
    """Return the query for a row for each device: its bins, and their values for each metric.

    Its parameters are the period's start, the ids, the start again and the end.
    """
    table, key = ("host_samples", "node_id") if host else ("gpu_samples", "gpu_id")
    names = ", ".join(m.name for m in metrics)
    within = f"(least(e, (bin + 1) * {width}) - greatest(b, bin * {width}))"
    mean = f"sum({{0}} * {within}) / sum({within}) FILTER ({{0}} IS NOT NULL) AS {{0}}"
    binned = ", ".join(mean.format(m.name) for m in metrics)
    lists = ", ".join(f"list({m.name}::FLOAT ORDER BY bin)" for m in metrics)
    # A sample after a start or a gap covers an unknown time: it counts as a moment.
    return f"""
WITH read AS (
  SELECT {key} AS id, epoch_us(ts) - epoch_us(?::TIMESTAMP) AS until,
         greatest(1, epoch_us(ts) - {covered_from("s.interval_ms")}) AS length, {names}
  FROM {table} s
  WHERE {key} IN (SELECT unnest(?::INTEGER[]))
    AND ts >= ?::TIMESTAMP AND ts < ?::TIMESTAMP + INTERVAL {LONGEST_INTERVAL_S} SECOND
), inside AS (
  SELECT id, greatest(0, until - length) AS b, least({whole}, until) AS e, {names}
  FROM read WHERE until > 0 AND until - length < {whole}
), parts AS (
  SELECT *, unnest(range(b // {width}, (e - 1) // {width} + 1)) AS bin FROM inside
), binned AS (
  SELECT id, bin, {binned} FROM parts GROUP BY id, bin
)
SELECT id, list(bin ORDER BY bin), {lists} FROM binned GROUP BY id
"""  # noqa: S608 (numbers and names of this project only)
