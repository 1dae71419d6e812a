"""Events as columns for one transaction. Pure: no DuckDB, no clock.

Only ``Happened`` becomes a row of ``events``: what a link, a frame or a session means to people is the
fleet's to say, once, for the screen and the file alike.

The work for a frame is a few list operations; numbers become arrays once for the whole fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import Frame
from gswarm_agent.frame import Row as Numbers
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    FramesLost,
    Happened,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.store.ledger import KnownLife, KnownNode, Ledger, Row
from gswarm_tui.store.precision import sample_us
from gswarm_tui.store.schema import (
    EVENTS,
    GPU_SAMPLES,
    GPUS,
    HOST_SAMPLES,
    LINKS,
    NODES,
    PROCESS_SAMPLES,
    SESSIONS,
    Table,
)

Columns = dict[str, npt.NDArray[Any]]


def micros(seconds: float) -> int:
    """Unix seconds as the microseconds that are stored."""
    return round(seconds * 1e6)


@dataclass
class _Samples:
    """Rows of one table that have the same columns: what is in ``keys``, in that order, and numbers."""

    names: tuple[str, ...]
    key_names: tuple[str, ...]
    keys: list[tuple[Any, ...]] = field(default_factory=list)
    rows: list[Numbers] = field(default_factory=list)

    def columns(self, table: Table) -> Columns:
        """All rows as arrays; numbers that the table has no column for are left out."""
        known = {column.name for column in table.columns}
        numbers = np.array(self.rows, dtype=np.float64).reshape(len(self.rows), len(self.names))
        columns = {name: numbers[:, i] for i, name in enumerate(self.names) if name in known}
        keys = zip(self.key_names, zip(*self.keys, strict=True), strict=True)
        return columns | {name: _array(table, name, values) for name, values in keys}


class Batch:
    """The rows that a list of events becomes, and the ledger as it is once they are committed."""

    def __init__(self, ledger: Ledger, events: Iterable[Event]) -> None:
        self.ledger = ledger.draft()
        self._own: dict[tuple[str, str], KnownLife] = {}
        self._committed: dict[tuple[str, str], int] = {}
        self._nodes: dict[int, Row] = {}
        self._gpus: list[Row] = []
        self._sessions: dict[int, Row] = {}
        self._events: list[Row] = []
        self._gpu_samples: dict[tuple[str, ...], _Samples] = {}
        self._host_samples: dict[tuple[str, ...], _Samples] = {}
        self._process_samples: dict[tuple[str, ...], _Samples] = {}
        for event in events:
            self._take(event)

    @property
    def rows(self) -> int:
        """How many samples and events are added."""
        tables = (self._gpu_samples, self._host_samples, self._process_samples)
        return len(self._events) + sum(len(s.rows) for table in tables for s in table.values())

    def committed(self) -> dict[tuple[str, str], int]:
        """The last frame of each (node, life) that got frames."""
        return dict(self._committed)

    def columns(self) -> Iterator[tuple[Table, Columns]]:
        """What is to be written, table by table, as equally long arrays; NaN, NaT and None stand for NULL."""
        things: tuple[tuple[Table, Iterable[Row]], ...] = (
            (NODES, self._nodes.values()),
            (GPUS, self._gpus),
            (SESSIONS, self._sessions.values()),
            (LINKS, [life.link for life in self._own.values()]),
            (EVENTS, self._events),
        )
        for table, rows in things:
            if kept := list(rows):
                yield table, {name: _array(table, name, [row[name] for row in kept]) for name in kept[0]}
        for table, samples in (
            (GPU_SAMPLES, self._gpu_samples),
            (HOST_SAMPLES, self._host_samples),
            (PROCESS_SAMPLES, self._process_samples),
        ):
            for part in samples.values():
                if part.rows:
                    yield table, part.columns(table)

    def _node(self, name: str) -> KnownNode:
        node, new = self.ledger.node(name)
        if new:
            self._nodes[node.node_id] = node.row
        return node

    def _life(self, name: str, life: str) -> KnownLife:
        own = self._own.get((name, life))
        if own is None:
            own = self._own[name, life] = self.ledger.own(name, life)
        return own

    def _take(self, event: Event) -> None:
        match event:
            case FrameArrived():
                self._frame(self._life(event.node, event.life), event)
            case FramesLost():
                self._lost(event)
            case NodeIntroduced():
                node, gpus = self.ledger.introduce(event.node, event.hello, event.former)
                self._own[event.node, event.hello.life] = self.ledger.own(event.node, event.hello.life)
                self._nodes[node.node_id] = node.row
                self._gpus += gpus
            case LinkMeasured():
                if (speaking := self._node(event.node).life) is not None:
                    life = self._life(event.node, speaking)
                    life.link |= {"clock_offset_s": event.offset_s, "round_trip_s": event.round_trip_s}
            case LinkChanged():
                node = self._node(event.node)
                if event.phase is Phase.LIVE and self.ledger.came_live(event.node) and node.life is not None:
                    self._life(event.node, node.life).link["reconnects"] += 1
            case Happened():
                self._happened(event)
            case SessionStarted() | SessionChanged() | SessionStopped():
                self._session(event)

    def _frame(self, life: KnownLife, event: FrameArrived) -> None:
        frame, link, last = event.frame, life.link, life.last_seq
        self._committed[event.node, event.life] = max(frame.seq, last)
        if frame.seq <= last:
            return
        interval_ms: int | None = None
        if link["last_ts"] is not None and frame.seq == last + 1:
            since = frame.ts_ns // 1000 - link["last_ts"]
            interval_ms = round(since / 1000) if since > 0 else None
        link["last_seq"], link["last_ts"] = frame.seq, frame.ts_ns // 1000
        link["frames"] += 1
        link["lost_frames"] += frame.seq - last - 1
        self._sample(life, sample_us(event.ts, frame.late_ms), interval_ms, frame)

    def _lost(self, event: FramesLost) -> None:
        """They count as committed: the agent isn't to tell of them again."""
        self.ledger.know_life(self._node(event.node), event.life)
        life = self._life(event.node, event.life)
        link, last = life.link, life.last_seq
        self._committed[event.node, event.life] = max(event.seq, last)
        if event.seq > last:
            link["last_seq"], link["last_ts"] = event.seq, None
            link["lost_frames"] += event.seq - last

    def _sample(self, node: KnownLife, ts: int, interval_ms: int | None, frame: Frame) -> None:
        gpus = _of(self._gpu_samples, node.gpu_columns, "ts", "gpu_id", "interval_ms")
        for gpu_id, row in zip(node.gpu_ids, frame.gpus, strict=True):
            if row is not None:
                gpus.rows.append(row)
                gpus.keys.append((ts, gpu_id, interval_ms))

        host = _of(
            self._host_samples, node.host_columns, "ts", "node_id", "seq", "interval_ms", "late_ms", "missed"
        )
        host.rows.append(frame.host if frame.host is not None else (None,) * len(node.host_columns))
        host.keys.append((ts, node.node_id, frame.seq, interval_ms, frame.late_ms, frame.missed))

        if not frame.processes:
            return
        keys = ("ts", "gpu_id", "pid", "rank", "local_rank", "user_name", "command")
        processes = _of(self._process_samples, node.process_columns, *keys)
        for p in frame.processes:
            processes.rows.append(p.row)
            processes.keys.append((ts, node.gpu_ids[p.gpu], p.pid, p.rank, p.local_rank, p.user, p.command))

    def _session(self, event: SessionStarted | SessionChanged | SessionStopped) -> None:
        if isinstance(event, SessionStarted):
            row: Row = {
                "session_id": self.ledger.next_session,
                "recording_id": self.ledger.recording_id,
                "name": event.name,
                "started_at": micros(event.started_at),
                "ended_at": None,
                "status": "running",
                "note": event.note,
            }
            self.ledger.next_session += 1
        elif (known := self.ledger.sessions.get(event.session_id)) is None:
            return
        elif isinstance(event, SessionStopped):
            row = known | {"ended_at": micros(event.ended_at), "status": "stopped"}
        else:
            changes = {"name": event.name, "note": event.note}
            row = known | {name: value for name, value in changes.items() if value is not None}
        self.ledger.sessions[event.session_id] = row
        self._sessions[row["session_id"]] = row

    def end_sessions(self, ended_at: float) -> None:
        """Ends every session that still runs, at the recording's end."""
        for key, row in self.ledger.sessions.items():
            if row["ended_at"] is None:
                ended = max(micros(ended_at), row["started_at"])
                done = self.ledger.sessions[key] = row | {"ended_at": ended, "status": "ended"}
                self._sessions[row["session_id"]] = done

    def _happened(self, event: Happened) -> None:
        node = None if event.node is None else self._node(event.node)
        self._events.append(
            {
                "ts": micros(event.at),
                "recording_id": self.ledger.recording_id,
                "node_id": None if node is None else node.node_id,
                "gpu_id": None if node is None else node.gpu_id(event.gpu),
                "kind": event.kind,
                "severity": event.severity,
                "message": event.message,
                "detail": event.detail,
            }
        )


def _of(tables: dict[tuple[str, ...], _Samples], names: tuple[str, ...], *keys: str) -> _Samples:
    samples = tables.get(names)
    if samples is None:
        samples = tables[names] = _Samples(names, keys)
    return samples


def _array(table: Table, name: str, values: Sequence[Any]) -> npt.NDArray[Any]:
    match table[name].type:
        case "TIMESTAMP":
            return np.array(values, dtype="datetime64[us]")
        case "VARCHAR":
            # Most are said again in every frame, so each is made clean once.
            clean = {v: v if v is None else v.encode("utf-8", "replace").decode() for v in set(values)}
            return np.array([clean[v] for v in values], dtype=object)
        case "BOOLEAN":
            return np.array(values, dtype=object)
        case _:
            return np.array(values, dtype=np.float64)
