"""Events turned into columns for one transaction. No DuckDB, no clock.

Only ``EventLogged`` becomes a row of ``events``: the fleet logs one for each change of a link, frame or
session that people need to see, on the screen and in the file.

A frame costs a few list operations; its blocks become arrays once for the whole fleet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block
from gswarm_agent.metrics import ROW_NAMES
from gswarm_tui.fleet.blocks import DecodedBlocks, decode
from gswarm_tui.fleet.energy import EnergyUsed
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FindingChanged,
    FleetExamined,
    FrameArrived,
    FramesLost,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    MetricsChanged,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    StopUndone,
)
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.gpu_links import gpu_index
from gswarm_tui.store.recording.known_ids import KnownIds, KnownLife, KnownNode, Row
from gswarm_tui.store.sql import schema
from gswarm_tui.store.sql.schema import PROCESS_KEYS, TableSchema, micros

Columns = dict[str, npt.NDArray[Any]]
Values = Sequence[Any] | npt.NDArray[Any]


ROWS_AT_ONCE = 16_384
"""The numbers of this many rows fit into a processor's cache; more at once take half as long again."""


class Samples:
    """The blocks that become rows of one table, with the values of their key columns.

    ``frame_columns`` have one value for a block, ``row_columns`` one for each row. With ``if_measured``, rows
    in which nothing was measured are left out.
    """

    def __init__(
        self,
        table: TableSchema,
        frame_columns: Sequence[str],
        row_columns: Sequence[str] = (),
        *,
        if_measured: bool = False,
    ) -> None:
        self.table = table
        self._frame_columns, self._row_columns = frame_columns, row_columns
        self._if_measured = if_measured
        self._blocks: list[Block] = []
        self._frame_keys: list[Sequence[Any]] = []
        self._row_keys: list[Sequence[Values]] = []

    def add(self, block: Block, frame: Sequence[Any], rows: Sequence[Values] = ()) -> None:
        """Add a block with its keys in their order. Raises ValueError unless there is a key for each row."""
        for values in rows:
            if len(values) != block.count:
                raise ValueError(f"expected {block.count} rows, not {len(values)}")
        self._blocks.append(block)
        self._frame_keys.append(frame)
        self._row_keys.append(rows)

    def columns(self) -> Iterator[Columns]:
        """Return all rows as arrays, thousands at a time."""
        parts: list[Columns] = []
        rows = 0
        for decoded in decode(self._blocks, ROWS_AT_ONCE):
            if rows >= ROWS_AT_ONCE:
                yield _joined(parts)
                parts, rows = [], 0
            parts.append(self._columns(decoded))
            rows += len(decoded.positions) * decoded.rows
        if parts:
            yield _joined(parts)

    def _columns(self, decoded: DecodedBlocks) -> Columns:
        table, layout, count = self.table, decoded.layout, decoded.rows
        frame_keys = zip(*(self._frame_keys[at] for at in decoded.positions), strict=True)
        row_keys = zip(*(self._row_keys[at] for at in decoded.positions), strict=True)
        columns = {
            name: np.repeat(array(table, name, values), count)
            for name, values in zip(self._frame_columns, frame_keys, strict=True)
        }
        for name, parts in zip(self._row_columns, row_keys, strict=True):
            arrays = isinstance(parts[0], np.ndarray)
            values = np.concatenate(parts) if arrays else list(chain.from_iterable(parts))
            columns[name] = array(table, name, values)
        metrics = layout.singles, layout.doubles
        numbers: list[npt.NDArray[Any]] = [
            part.reshape(len(part), len(decoded.positions) * count)
            for part in (decoded.singles, decoded.doubles)
        ]
        for indices, part in zip(metrics, numbers, strict=True):
            columns |= {layout.columns[at]: values for at, values in zip(indices, part, strict=True)}
        if not self._if_measured:
            return columns
        measured = ~np.all([np.isnan(part).all(axis=0) for part in numbers], axis=0)
        return columns if measured.all() else {name: values[measured] for name, values in columns.items()}


def _joined(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def array(table: TableSchema, name: str, values: Iterable[Any]) -> npt.NDArray[Any]:
    """Return values of one column as an array; NaN, NaT and None stand for NULL."""
    match table[name].type:
        case "TIMESTAMP":
            return np.array(values, dtype="datetime64[us]")
        case "VARCHAR":
            # Most texts repeat in every frame, so each is made valid once.
            clean = {v: v if v is None else v.encode("utf-8", "replace").decode() for v in set(values)}
            return np.array([clean[v] for v in values], dtype=object)
        case "BOOLEAN":
            return np.array(values, dtype=object)
        case _:
            return np.array(values, dtype=np.float64)


_HOST_KEYS = ("ts", "node_id", "seq", "interval_ms", "late_ms", "missed")
_LINK_FACTS = ("peer", "kind", "links", "version", "gb_s")
_GPU_KEYS = ("gpu_id", "energy_used_mj", "energy_used_ms")


class Batch:
    """The rows made of a list of events, and the known ids after their commit."""

    def __init__(self, known_ids: KnownIds, events: Iterable[Event]) -> None:
        self.known_ids = known_ids.draft()
        self._own: dict[tuple[str, str], KnownLife] = {}
        self._nodes: dict[int, Row] = {}
        self._gpus: list[Row] = []
        self._gpu_links: list[Row] = []
        self._ranks: dict[int, Row] = {}
        self._sessions: dict[int, Row] = {}
        self._events: list[Row] = []
        self._findings: dict[str, Row] = {}
        self._gpu_samples = Samples(schema.GPU_SAMPLES, ("ts", "interval_ms"), _GPU_KEYS, if_measured=True)
        self._host_samples = Samples(schema.HOST_SAMPLES, _HOST_KEYS)
        self._process_samples = Samples(schema.PROCESS_SAMPLES, ("ts",), ("gpu_id", *PROCESS_KEYS))
        self._listings = {
            kind: Samples(table, ("ts", "node_id"), (ROW_NAMES[kind],))
            for kind, table in schema.LISTING_TABLES.items()
        }
        for event in events:
            self._take(event)

    @property
    def rows(self) -> int:
        """The number of samples and events."""
        return len(self._events) + sum(len(columns["ts"]) for _, columns in self._samples)

    def committed(self) -> dict[tuple[str, str], int]:
        """Return the last sequence number of each (node, life), lost frames included."""
        return {key: life.last_seq for key, life in self._own.items() if life.last_seq}

    def columns(self) -> Iterator[tuple[TableSchema, Columns]]:
        """Return the rows table by table, as arrays of equal length; NaN, NaT and None stand for NULL."""
        row_tables: tuple[tuple[TableSchema, Iterable[Row]], ...] = (
            (schema.NODES, self._nodes.values()),
            (schema.GPUS, self._gpus),
            (schema.GPUS, self._ranks.values()),
            (schema.SESSIONS, self._sessions.values()),
            (schema.LINKS, [life.link for life in self._own.values()]),
            (schema.EVENTS, self._events),
            (schema.FINDINGS, self._findings.values()),
            (schema.GPU_LINKS, self._gpu_links),
        )
        for table, rows in row_tables:
            if kept := list(rows):
                yield table, {name: array(table, name, [row[name] for row in kept]) for name in kept[0]}
        yield from self._samples

    @cached_property
    def _samples(self) -> list[tuple[TableSchema, Columns]]:
        tables = (self._gpu_samples, self._host_samples, self._process_samples, *self._listings.values())
        parts = ((samples.table, columns) for samples in tables for columns in samples.columns())
        return [(table, columns) for table, columns in parts if len(columns["ts"])]

    def _node(self, name: str) -> KnownNode:
        node, new = self.known_ids.node(name)
        if new:
            self._nodes[node.node_id] = node.row
        return node

    def _life(self, name: str, life: str) -> KnownLife:
        own = self._own.get((name, life))
        if own is None:
            own = self._own[name, life] = self.known_ids.own(name, life)
        return own

    def _take(self, event: Event) -> None:
        match event:
            case FrameArrived():
                self._frame(self._life(event.node, event.life), event)
            case FramesLost():
                self._lost(event)
            case NodeIntroduced():
                before = self.known_ids.nodes.get(event.node)
                node, gpus = self.known_ids.introduce(event.node, event.hello, event.former)
                if before is None or (before.node_id, before.links) != (node.node_id, node.links):
                    self._gpu_links += [
                        {
                            "ts": micros(event.at),
                            "node_id": node.node_id,
                            "gpu_id": node.gpu_ids[link.gpu],
                            "peer_index": gpu_index(link.peer),
                            **{name: getattr(link, name) for name in _LINK_FACTS},
                        }
                        for link in node.links
                    ]
                self._own[event.node, event.hello.life] = self.known_ids.own(event.node, event.hello.life)
                self._nodes[node.node_id] = node.row
                self._gpus += gpus
            case LinkMeasured():
                if (speaking := self._node(event.node).life) is not None:
                    life = self._life(event.node, speaking)
                    life.link |= {"clock_offset_s": event.offset_s, "round_trip_s": event.round_trip_s}
            case LinkChanged():
                node = self._node(event.node)
                if (
                    event.phase is Phase.LIVE
                    and self.known_ids.came_live(event.node)
                    and node.life is not None
                ):
                    self._life(event.node, node.life).link["reconnects"] += 1
            case EventLogged():
                self._log(event)
            case FindingChanged():
                self._findings[event.finding.finding_id] = self._finding(event.finding)
            case IntervalChanged() | MetricsChanged() | FleetExamined():
                # The fleet logs changes as EventLogged. The ledger is computed from samples.
                pass
            case SessionStarted() | SessionChanged() | SessionStopped() | StopUndone():
                self._session(event)

    def _frame(self, life: KnownLife, event: FrameArrived) -> None:
        frame, link, last = event.frame, life.link, life.last_seq
        if frame.seq <= last:
            return
        interval_ms: int | None = None
        if link["last_ts"] is not None and frame.seq == last + 1:
            interval_s = frame.interval_s(1000 * link["last_ts"])
            interval_ms = None if interval_s is None else round(1000 * interval_s)
        link["last_seq"], link["last_ts"] = frame.seq, frame.ts_ns // 1000
        link["frames"] += 1
        link["lost_frames"] += frame.seq - last - 1
        ts, energy = micros(event.ts), event.energy or EnergyUsed.unknown(frame)
        self._gpu_samples.add(frame.gpus, (ts, interval_ms), (life.gpu_ids, energy.mj, energy.ms))
        host = ts, life.node_id, frame.seq, interval_ms, frame.late_ms, frame.missed
        self._host_samples.add(frame.host, host)
        if (processes := frame.processes) is not None:
            gpus, *columns = processes.columns
            gpu_ids = [life.gpu_ids[gpu] for gpu in gpus]
            self._process_samples.add(processes.numbers, (ts,), (gpu_ids, *columns))
            self._note_ranks(life, gpu_ids, processes.ranks)
        for kind, listing in frame.listings.items():
            if kind in self._listings:
                self._listings[kind].add(listing.numbers, (ts, life.node_id), (listing.names,))

    def _note_ranks(self, life: KnownLife, gpu_ids: Sequence[int], ranks: Sequence[int | None]) -> None:
        """Store the ranks of GPUs when they change; of several on one GPU, the lowest counts."""
        known = [(gpu, rank) for gpu, rank in zip(gpu_ids, ranks, strict=True) if rank is not None]
        found = dict(sorted(known, reverse=True))
        if not found.items() <= life.ranks.items():
            life.ranks = {**life.ranks, **found}
            self._ranks |= {gpu: {"gpu_id": gpu, "newest_rank": rank} for gpu, rank in found.items()}

    def _lost(self, event: FramesLost) -> None:
        self.known_ids.add_life(self._node(event.node), event.life)
        life = self._life(event.node, event.life)
        link, last = life.link, life.last_seq
        if event.seq > last:
            link["last_seq"], link["last_ts"] = event.seq, None
            link["lost_frames"] += event.seq - last

    def _session(self, event: SessionStarted | SessionChanged | SessionStopped | StopUndone) -> None:
        if isinstance(event, SessionStarted):
            row: Row = {
                "session_id": self.known_ids.next_session,
                "recording_id": self.known_ids.recording_id,
                "name": event.name,
                "started_at": micros(event.started_at),
                "ended_at": None,
                "status": "running",
                "note": event.note,
            }
            self.known_ids.next_session += 1
        elif (known := self.known_ids.sessions.get(event.session_id)) is None:
            return
        elif isinstance(event, SessionStopped):
            row = known | {"ended_at": micros(event.ended_at), "status": "stopped"}
        elif isinstance(event, StopUndone):
            row = known | {"ended_at": None, "status": "running"}
        else:
            changes = {"name": event.name, "note": event.note}
            row = known | {name: value for name, value in changes.items() if value is not None}
        self.known_ids.sessions[event.session_id] = row
        self._sessions[row["session_id"]] = row

    def end_sessions(self, ended_at: float) -> None:
        """End running sessions at the end of the recording."""
        for key, row in self.known_ids.sessions.items():
            if row["ended_at"] is None:
                ended = max(micros(ended_at), row["started_at"])
                done = self.known_ids.sessions[key] = row | {"ended_at": ended, "status": "ended"}
                self._sessions[row["session_id"]] = done

    def _finding(self, finding: Finding) -> Row:
        plain = finding.plain()
        return {
            **{column.name: plain[column.name] for column in schema.FINDINGS.columns if column.name in plain},
            "finding_id": int(finding.finding_id),
            "recording_id": self.known_ids.recording_id,
            "gpu_index": finding.gpu,
            "nodes": json.dumps(plain["nodes"]),
            "since": micros(finding.since),
            "until": None if finding.until is None else micros(finding.until),
            "evidence": json.dumps(plain["evidence"]),
        }

    def _log(self, event: EventLogged) -> None:
        node = None if event.node is None else self._node(event.node)
        self._events.append(
            {
                "ts": micros(event.at),
                "recording_id": self.known_ids.recording_id,
                "node_id": None if node is None else node.node_id,
                "gpu_id": None if node is None else node.gpu_id(event.gpu),
                "kind": event.kind,
                "severity": event.severity,
                "message": event.message,
                "detail": event.detail,
            }
        )
