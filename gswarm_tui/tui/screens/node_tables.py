"""Rows of the tables on the node and GPU screens."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gswarm_agent.frame import Hello, ProcessSample
from gswarm_agent.metrics import (
    ACTIVITY_COLUMNS,
    COUNTER_RIGHTS,
    CPU_COUNTERS,
    GPU_BY_NAME,
    GPU_COLUMNS,
    GPU_COUNTERS,
    GPU_METRICS,
    HEALTH,
    HOST_BY_NAME,
    PROCESS_COLUMNS,
    PROCESS_METRICS,
    PROCESSES,
    SWITCHED_OFF,
    Metric,
)
from gswarm_tui.common.quantities import DASH
from gswarm_tui.common.units import shown_unit
from gswarm_tui.fleet.gpu_links import HOST, capacity, gpu_index, peers, share_pct
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.program import program
from gswarm_tui.fleet.throttling import HARMFUL
from gswarm_tui.tui.drawing.node_status import THROTTLED
from gswarm_tui.tui.drawing.numbers import cell
from gswarm_tui.tui.drawing.ramp import UNMEASURED, buckets, fractions, ramp_of, tops
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.widgets.table import Row, TableColumn

FROZEN = 2
"""Columns before the metrics: the GPU's index and rank."""
_REASONS = GPU_BY_NAME["clock_reasons"]
_BESIDE = {
    "util_pct": ("sm_active_pct", "tensor_active_pct"),
    "mem_util_pct": ("dram_active_pct",),
    "sm_clock_mhz": ("clock_reasons",),
}
"""Metrics that stand beside another: what the chip does beside its utilisation, reasons beside the clock."""
_MOVED = [name for names in _BESIDE.values() for name in names]
LISTED_METRICS = [
    GPU_BY_NAME[name]
    for metric in GPU_METRICS
    if metric.name not in _MOVED
    for name in (metric.name, *_BESIDE.get(metric.name, ()))
]
"""All metrics in the order of the list of a GPU."""


def listed_metrics(node: NodeState) -> list[Metric]:
    """Return the metrics to list for a node: without health, and the activity that its GPUs can't measure."""
    lacking = [name for name in node.unmeasured if name in ACTIVITY_COLUMNS]
    return [metric for metric in LISTED_METRICS if metric.group != HEALTH and metric.name not in lacking]


def gpu_columns(metrics: Iterable[Metric]) -> list[TableColumn]:
    """Return the columns of the table of GPUs."""
    columns = (TableColumn(m.short, max(len(m.short), 5), shown_unit(m).name) for m in metrics)
    return [TableColumn("GPU", 4, frozen=True), TableColumn("rank", 4, frozen=True), *columns]


def gpu_rows(node: NodeState, picked: Metric, now: float) -> list[Row]:
    """Return a row per GPU: the picked metric is coloured, stale data and others' GPUs are faint.

    A throttled GPU has a sign.
    """
    old = node.standing(now) is not Standing.LIVE
    values = node.gpus
    column = GPU_METRICS.index(picked)
    levels = fractions(picked, values[:, column], tops(picked, node.facts))
    steps = buckets(levels).tolist()
    rows = []
    listed, ranks = listed_metrics(node), node.ranks
    for at, facts in enumerate(node.facts):
        dim = "dim" if old or not node.mine[at] else ""
        row = dict(zip(GPU_METRICS, values[at].tolist(), strict=True))
        held = int(np.nan_to_num(row[_REASONS])) & HARMFUL and not dim
        spans = [Span(f"{THROTTLED} {facts.label}", "warning") if held else Span(facts.label, "dim")]
        spans.append(Span(f"{ranks.get(at, DASH)}", "dim"))
        for metric in listed:
            text = cell(row[metric], metric)
            role = dim or ("dim" if text == DASH else "text")
            if metric is picked and steps[at] != UNMEASURED and not old:
                role = f"heat{ramp_of(picked)}{steps[at]}"
            spans.append(Span(text, role))
        rows.append(tuple(spans))
    return rows


UNMEASURED_TABLE = (
    TableColumn("not measured", 24, left=True, frozen=True),
    TableColumn("scope", 8, left=True),
    TableColumn("reason", 20, left=True, grows=True),
)


def unmeasured_rows(node: NodeState) -> list[Row]:
    """Return a row per unmeasured metric with its reason."""
    rows: list[Row] = []
    labels = {"mig": "MIG instances"} | {f"gpu{facts.index}": f"gpu{facts.label}" for facts in node.facts}
    for name, why in sorted(node.unmeasured.items()):
        where, _, metric = name.rpartition(".")
        known = GPU_BY_NAME.get(metric) or HOST_BY_NAME.get(metric)
        other = COUNTER_RIGHTS.get(name, labels.get(name, metric.replace("_", " ")))
        label = other if known is None else known.label
        of_host = metric in HOST_BY_NAME or name == CPU_COUNTERS
        of_gpus = metric in GPU_BY_NAME or name == GPU_COUNTERS
        place = labels.get(where, where) or ("host" if of_host else "all GPUs" if of_gpus else "")
        rows.append((Span(clean(label)), Span(clean(place), "dim"), Span(clean(why))))
    return rows


_NUMBERS = tuple(TableColumn(m.short, max(len(m.short), 5), shown_unit(m).name) for m in PROCESS_METRICS)
_BEFORE_COMMAND = 4

PROCESS_TABLE_COLUMNS = (
    TableColumn("GPU", 4, frozen=True),
    TableColumn("rank", 5),
    TableColumn("pid", 8),
    TableColumn("user", 10, left=True),
    *_NUMBERS[:_BEFORE_COMMAND],
    TableColumn("S", 1),
    TableColumn("command", 32, left=True, grows=True),
    *_NUMBERS[_BEFORE_COMMAND:],
    TableColumn("wchan", 24, left=True),
    TableColumn("CPUs allowed", 24, left=True),
    TableColumn("local", 5),
    TableColumn("job", 12, left=True),
    TableColumn("framework", 17, left=True),
    TableColumn("NCCL", 8, left=True),
    TableColumn("container", 24, left=True),
)


def link_columns(hello: Hello) -> tuple[TableColumn, ...]:
    """Return the columns of the GPUs' connections: capacity, traffic, the way to each peer."""
    ways = (TableColumn(peer, max(5, len(peer))) for peer in peers(hello.links))
    nvlink, pcie = TableColumn("NVLink", 6, "GB/s"), TableColumn("PCIe", 5, "GB/s")
    shares = TableColumn("tx", 4, "%"), TableColumn("rx", 4, "%")
    return (TableColumn("GPU", 4, frozen=True), nvlink, *shares, pcie, *shares, *ways)


def link_rows(node: NodeState, hello: Hello, *, old: bool) -> list[Row]:
    """Return a row per GPU; ways that carry less than those of other GPUs to such a peer stand out."""
    kinds = {(link.gpu, link.peer): link.kind for link in hello.links}
    names = peers(hello.links)
    best = max((link.links for link in hello.links if link.kind.startswith("NV")), default=0)
    fewer = {(link.gpu, link.peer) for link in hello.links if 0 < link.links < best and link.peer != HOST}
    rows = []
    for at, facts in enumerate(hello.gpus):
        nvlink, pcie = capacity(hello.links, at)
        row = dict(zip(GPU_COLUMNS, node.gpus[at].tolist(), strict=True)) if at < len(node.gpus) else {}
        if facts.parent_index is not None:
            continue
        texts = [Span(facts.label, "dim")]
        for gb_s, kind in ((nvlink, "nvlink"), (pcie, "pcie")):
            texts.append(Span(DASH if gb_s is None else f"{gb_s:.0f}"))
            for way in ("tx", "rx"):
                share = share_pct(row.get(f"{kind}_{way}_mb_s", math.nan), gb_s)
                texts.append(Span(DASH if math.isnan(share) else f"{share:.0f}"))
        for peer in names:
            own = gpu_index(peer) == facts.index
            kind = "X" if own else kinds.get((at, peer), DASH)
            texts.append(Span(clean(kind), "warning" if (at, peer) in fewer else "dim" if own else "text"))
        rows.append(tuple(Span(span.text, "dim") if old or span.text == DASH else span for span in texts))
    return rows


def no_processes(node: NodeState, words: str) -> str:
    """Return the words for an empty list of processes, or that they are switched off."""
    return words if PROCESSES in node.metrics else f"processes: {SWITCHED_OFF}"


def process_rows(hello: Hello, processes: Iterable[ProcessSample], *, old: bool) -> list[Row]:
    """Return a row per process and GPU, sorted by GPU and memory; stale data is faint.

    A process that runs far from its GPU has both NUMA nodes, as "1≠0".
    """
    rows = []
    measured = [(p, dict(zip(PROCESS_COLUMNS, p.row, strict=True))) for p in processes]
    measured.sort(key=lambda pair: (pair[0].gpu, -(pair[1]["gpu_memory_mib"] or 0), pair[0].pid))
    for process, values in measured:
        facts = hello.gpus[process.gpu] if process.gpu < len(hello.gpus) else None
        numbers = [cell(value, metric) for value, metric in zip(process.row, PROCESS_METRICS, strict=True)]
        near = None if facts is None else facts.numa_node
        if near is not None and values["numa_node"] not in (None, near):
            numbers[PROCESS_COLUMNS.index("numa_node")] += f"≠{near}"
        texts = [
            f"{process.gpu}" if facts is None else facts.label,
            DASH if process.rank is None else f"{process.rank}",
            f"{process.pid}",
            clean(process.user) if process.user else DASH,
            *numbers[:_BEFORE_COMMAND],
            clean(process.state or DASH),
            clean(program(process.command)) if process.command else DASH,
            *numbers[_BEFORE_COMMAND:],
            clean(process.wchan or DASH),
            clean(process.cpus or DASH),
            DASH if process.local_rank is None else f"{process.local_rank}",
            clean(".".join(filter(None, (process.slurm_job, process.slurm_step))) or DASH),
            *(clean(text or DASH) for text in (process.framework, process.nccl, process.container)),
        ]
        rows.append(tuple(Span(text, "dim" if old or text == DASH else "text") for text in texts))
    return rows
