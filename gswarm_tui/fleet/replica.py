"""Replica of a running fleet for a viewer elsewhere: its state as plain values for msgpack, and back.

A fleet that is restored from a state and applies the same events in the same order has the same state as the
original. Histories are long, so they are sent apart, after the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gswarm_agent.frame import TABLES
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, MAX_INTERVAL_MS, MIN_INTERVAL_MS
from gswarm_agent.wire import encode
from gswarm_agent.wire_payload import WireError
from gswarm_tui.fleet.energy import EnergyMeters, GpuEnergy
from gswarm_tui.fleet.event_codec import EventReader, encode_event
from gswarm_tui.fleet.events import FindingChanged, NodeIntroduced, Phase
from gswarm_tui.fleet.history import Floats, empty_history
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.plain_values import field_types, typed
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet

_NOT_SENT = {"name", "own_memory_mib", "version", "late_logged_at", "lost_reason_logged"}
_NOT_SENT |= {"stale_logged", "unhealthy_logged"}
_SCALARS = {
    name: types
    for name, types in field_types(NodeState).items()
    if name not in _NOT_SENT and types <= {bool, int, float, str, type(None)}
}
"""Fields of a node that are plain values, and their types, without those that a replica doesn't need."""


class ReplicaError(ValueError):
    """Raised for values that are no state of a fleet of this version."""


def fleet_state(fleet: Fleet) -> dict[str, Any]:
    """Return a fleet's state without its histories."""
    return {
        "columns": [GPU_COLUMNS, HOST_COLUMNS],
        "interval_ms": fleet.interval_ms,
        "metrics": fleet.metrics,
        "allocation": {name: sorted(minors) for name, minors in fleet.allocation.items()},
        "energy_j": fleet.energy_j,
        "nodes": [_node_state(node) for node in fleet.nodes.values()],
        "sessions": [list(vars(session).values()) for session in fleet.sessions.sessions.values()],
        "log": [encode_event(event) for event in fleet.event_log],
        "rules": [
            *(encode_event(FindingChanged(0.0, finding)) for finding in fleet.findings.values()),
            *(encode_event(event) for event in (fleet.examined,) if event is not None),
        ],
    }


def _node_state(node: NodeState) -> dict[str, Any]:
    state: dict[str, Any] = {name: getattr(node, name) for name in _SCALARS}
    state |= {"name": node.name, "phase": node.phase.value, "lives": node.lives.last()}
    state["former_energy"] = [[*key, *gpu] for key, gpu in node.former_energy.items()]
    if node.former is not None and node.former is not node.hello:
        state["former"] = encode(node.former)
    if (hello := node.hello) is not None:
        state |= {"hello": encode(hello), "life": hello.life}
        state |= {"gpus": node.gpus.tobytes(), "host": node.host.tobytes()}
        state["energy"] = [part if isinstance(part, float) else part.tobytes() for part in node.energy]
        if node.process_table is not None or node.listings:
            # The wire has processes and listings only in frames.
            empty = TABLES.frame(1, 0, 0.0, 0, gpus=[None] * len(hello.gpus), host=None)
            listed = replace(empty, processes=node.process_table, listings=node.listings)
            state["listed"] = encode(listed)
    return state


def restore_fleet(state: Mapping[str, Any], reader: EventReader) -> Fleet:
    """Return the fleet of a state, for the events that ``reader`` reads from now on. Raises ReplicaError."""
    try:
        return _restored(state, reader)
    except (KeyError, TypeError, ValueError, WireError) as error:
        raise ReplicaError(f"invalid state of a fleet: {error}") from None


def _restored(state: Mapping[str, Any], reader: EventReader) -> Fleet:
    if [tuple(columns) for columns in state["columns"]] != [GPU_COLUMNS, HOST_COLUMNS]:
        raise ValueError("its metrics are those of another version")
    allocation = {name: frozenset(minors) for name, minors in state["allocation"].items()}
    nodes = {node["name"]: node for node in state["nodes"]}
    if not MIN_INTERVAL_MS <= state["interval_ms"] <= MAX_INTERVAL_MS:
        raise ValueError("its interval can't be set")
    fleet = Fleet(
        list(nodes), state["interval_ms"], allocation, metrics=tuple(state["metrics"]), derive_events=False
    )
    for name, values in nodes.items():
        _restore_node(fleet, fleet.nodes[name], values, reader)
    fleet.energy_j = state["energy_j"]
    for values in state["sessions"]:
        fleet.sessions.restore(typed(Session, *values))
    for values in (*state["log"], *state["rules"]):
        fleet.apply(reader.event(values))
    return fleet


def _restore_node(fleet: Fleet, node: NodeState, values: Mapping[str, Any], reader: EventReader) -> None:
    for packed, former in ((values.get("former"), True), (values.get("hello"), False)):
        if packed is not None:
            fleet.apply(NodeIntroduced(node.name, 0.0, reader.hello(node.name, packed), former))
    for name, types in _SCALARS.items():
        if type(values[name]) not in types:
            raise TypeError(f"{name} is no {type(values[name]).__name__}")
        setattr(node, name, values[name])
    node.phase = Phase(values["phase"])
    for life, seq, ts_ns in values["lives"]:
        node.lives.note(life, seq, ts_ns)
    node.former_energy = {
        (name, index, uuid): GpuEnergy(*energy) for name, index, uuid, *energy in values["former_energy"]
    }
    if (hello := node.hello) is not None:
        count = len(hello.gpus)
        node.gpus = _numbers(values["gpus"], count, len(GPU_COLUMNS))
        node.host = _numbers(values["host"], len(HOST_COLUMNS))
        counters, at, used = values["energy"]
        times = at if isinstance(at, float) else _numbers(at, count)
        node.energy = EnergyMeters(_numbers(counters, count), times, _numbers(used, count))
        if (listed := values.get("listed")) is not None:
            frame = reader.frame(node.name, hello.life, listed)
            node.process_table, node.listings = frame.processes, frame.listings


def _numbers(packed: bytes, *shape: int) -> Floats:
    return np.frombuffer(packed, dtype=np.float64).reshape(shape).copy()


def node_history(node: NodeState) -> list[Any] | None:
    """Return a node's history as plain values, None without one."""
    if node.gpu_history is None or node.host_history is None:
        return None
    parts = []
    for history in (node.gpu_history, node.host_history):
        times, tables = history.tables()
        parts.append([times.tobytes(), history.intervals().tobytes(), tables.tobytes()])
    return [node.name, *parts]


def restore_history(fleet: Fleet, values: Sequence[Any]) -> None:
    """Replace a node's history by one from ``node_history``. Raises ReplicaError."""
    try:
        name, *parts = values
        node = fleet.nodes[name]
        new = empty_history(len(fleet.nodes), len(node.facts))
        for history, (times, intervals, tables) in zip(new, parts, strict=True):
            at = np.frombuffer(times, dtype=np.float64)
            table = np.frombuffer(tables, dtype=np.float32).reshape(len(at), *history.shape)
            history.extend(at, np.frombuffer(intervals, dtype=np.float32), table)
    except (KeyError, TypeError, ValueError) as error:
        raise ReplicaError(f"invalid history of a node: {error}") from None
    node.set_history(*new)
