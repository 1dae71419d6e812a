"""The fleet at one moment as plain data for JSON and CSV, named as the columns of a recording. No I/O."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from typing import Any

from gswarm_agent.frame import GpuFacts, ProcessSample
from gswarm_agent.metrics import GPU_METRICS, HOST_METRICS, LISTINGS, PROCESS_METRICS, ROW_NAMES, Metric
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.health import gpu_health
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.state import Fleet

Object = dict[str, Any]
"""A JSON object."""

_HOST_FACTS = (
    "hostname", "kernel", "cpu_model", "cpus", "memory_total_mib", "driver_version", "cuda_version",
)  # fmt: skip
GPU_FACTS = {
    "gpu_index": "INTEGER", "uuid": "VARCHAR", "name": "VARCHAR", "pci_bus_id": "VARCHAR",
    "memory_total_mib": "INTEGER", "power_limit_w": "FLOAT",
    "parent_index": "INTEGER", "mig_profile": "VARCHAR", "allocated": "BOOLEAN",
}  # fmt: skip
"""The fields of a GPU beside its metrics, and their types, as in the table ``gpus``."""
GPU_ROW = {
    "node": "VARCHAR",
    "state": "VARCHAR",
    "reason": "VARCHAR",
    **GPU_FACTS,
    **{metric.name: metric.sql for metric in GPU_METRICS},
}
"""The columns of ``gpu_rows`` and their types."""


def node_objects(fleet: Fleet, now: float) -> list[Object]:
    """Return an object for each node: its state, facts, host metrics, GPUs …; None if unknown."""
    return [node_object(fleet, node, now) for node in fleet.nodes.values()]


def gpu_rows(nodes: Iterable[Object]) -> list[tuple[Any, ...]]:
    """Return a row for each GPU in the columns ``GPU_ROW``; a node without GPUs has one row."""
    return [
        tuple({**node, **dict.fromkeys(GPU_FACTS), **gpu}.get(column) for column in GPU_ROW)
        for node in nodes
        for gpu in node["gpus"] or [{}]
    ]


def metric_values(node: NodeState, chosen: Container[str] | None = None) -> tuple[Object, list[Object]]:
    """Return a node's newest metrics, and those of each GPU; only the ``chosen`` ones, all if None."""
    return (
        _values(HOST_METRICS, node.host.tolist(), chosen),
        [_values(GPU_METRICS, _gpu_values(node, row), chosen) for row in range(len(node.facts))],
    )


def _gpu_values(node: NodeState, row: int) -> list[float]:
    """Return a GPU's newest metrics."""
    values: list[float] = node.gpus[row].tolist()
    values[ENERGY] = node.energy.gpus[row].counter_mj  # the fleet keeps the energy since its own start
    return values


def node_object(fleet: Fleet, node: NodeState, now: float) -> Object:
    """Return an object for a node of the fleet, as ``node_objects`` does."""
    hello = node.hello
    granted = node.name in fleet.allocation
    known = node.round_trip_s is not None
    return {
        "node": node.name,
        "state": node.standing(now).value,
        "reason": node.reason or None,
        "remedy": node.remedy or None,
        "simulated": None if hello is None else hello.simulated,
        "agent_version": None if hello is None else hello.agent_version,
        "sampled_at": node.last_ts,
        "clock_offset_ms": round(node.offset_s * 1000, 3) if known else None,
        "round_trip_ms": round((node.round_trip_s or 0.0) * 1000, 3) if known else None,
        **{name: None if hello is None else getattr(hello.host, name) for name in _HOST_FACTS},
        "host": _values(HOST_METRICS, node.host.tolist()),
        "gpus": [
            _gpu(node, row, fact, node.mine[row] if granted else None) for row, fact in enumerate(node.facts)
        ],
        "processes": [_process(node.facts, process) for process in node.processes],
        **{
            kind: [
                {ROW_NAMES[kind]: name, **_values(metrics, (row.get(metric.name) for metric in metrics))}
                for name, row in node.listed(kind).items()
            ]
            for kind, metrics in LISTINGS.items()
        },
        "unmeasured": {} if hello is None else dict(node.unmeasured),
    }


def _gpu(node: NodeState, row: int, fact: GpuFacts, allocated: bool | None) -> Object:
    facts = {name: getattr(fact, name, None) for name in GPU_FACTS}
    values = _values(GPU_METRICS, _gpu_values(node, row))
    health = gpu_health(node, row)._asdict()
    named = {"gpu_index": fact.index, "rank": node.ranks.get(row), "allocated": allocated}
    return {**facts, **named, **values, "health": health}


def _process(gpus: Sequence[GpuFacts], process: ProcessSample) -> Object:
    return {
        "gpu_index": gpus[process.gpu].index,
        "pid": process.pid,
        "user_name": process.user,
        "command": process.command,
        "rank": process.rank,
        "local_rank": process.local_rank,
        "cpus_allowed": process.cpus,
        "state": process.state,
        "wchan": process.wchan,
        "slurm_job_id": process.slurm_job,
        "slurm_step_id": process.slurm_step,
        "framework": process.framework,
        "nccl": process.nccl,
        "container": process.container,
        **_values(PROCESS_METRICS, process.row),
    }


def _values(
    metrics: Sequence[Metric], values: Iterable[float | None], chosen: Container[str] | None = None
) -> Object:
    return {
        metric.name: _number(metric, value)
        for metric, value in zip(metrics, values, strict=True)
        if chosen is None or metric.name in chosen
    }


def _number(metric: Metric, value: float | None) -> float | str | None:
    """Return a value as its column holds it, or as its word; None where it isn't measured."""
    if value is None or not math.isfinite(value):
        return None
    if metric.words:
        return metric.word(value)
    return float(f"{value:.7g}") if metric.sql == "FLOAT" else round(value)
