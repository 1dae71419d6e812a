"""A recording read back: its machines, sessions, logged events and rows of samples.

The database doesn't store when frames arrived, the nodes' own clocks, empty process lists, attempts to
reconnect, and repeated hellos of an agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.frame import STEP, WARNING, GpuFacts, GpuLink, Hello, HostFacts
from gswarm_agent.metrics import (
    DEFAULT_GROUPS,
    EXACT_COLUMNS,
    GPU_COLUMNS,
    HOST_COLUMNS,
    LISTING_COLUMNS,
    PROCESS_COLUMNS,
    ROW_NAMES,
)
from gswarm_tui.fleet.blocks import packed
from gswarm_tui.fleet.events import (
    INTERVAL_CHANGED,
    LINK_LOST,
    METRICS_CHANGED,
    UNREACHABLE,
    Event,
    EventLogged,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    json_object,
    new_groups,
    new_interval_ms,
)
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.state import EVENTS_KEPT
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.arrays import ArraySource
from gswarm_tui.store.sql.schema import micros

MAX_EVENTS, MAX_STEPS = 50_000, 200_000
_METRICS = {"gpu_samples": GPU_COLUMNS, "host_samples": HOST_COLUMNS, "process_samples": PROCESS_COLUMNS}
_METRICS |= {f"{ROW_NAMES[kind]}_samples": columns for kind, columns in LISTING_COLUMNS}
_UNKNOWN_LIFE = {"life": "", "last_ts": None, "clock_offset_s": None}
"""A node without rows in ``links`` had one agent run without an end."""
_OPEN_END_US = 1 << 62
_GPU_FACTS_APART = {"index", "minor", "mig"}
"""Columns that recordings of this and every later version have."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - DuckDB's times have no zone


def stamp(us: int) -> datetime:
    """Return Unix microseconds as a time of the database."""
    return _EPOCH + timedelta(microseconds=us)


@dataclass(frozen=True)
class Life:
    """An agent's run on a machine, with the times of its first and last frame (Unix microseconds)."""

    name: str
    first_us: int
    last_us: int


@dataclass(frozen=True)
class RecordedMachine:
    """A node as it was at one boot with its GPUs; ``hello`` lacks the life, ``lives`` are in order."""

    node_id: int
    name: str
    hello: Hello
    gpu_ids: tuple[int, ...]
    granted: frozenset[int] | None
    offset_s: float
    round_trip_s: float | None
    lives: tuple[Life, ...]

    def life_at(self, us: int) -> Life:
        """Return the agent's run that a frame of this time belongs to."""
        return next((life for life in self.lives if us <= life.last_us), self.lives[-1])


Columns = Mapping[str, npt.NDArray[Any]]
Places = npt.NDArray[np.intp]


class TableSlice:
    """Rows of one table with times (Unix microseconds), ids, and numbers that are NaN where NULL."""

    def __init__(self, columns: Columns) -> None:
        self.us = columns["us"]
        self.ids = columns["id"]
        self._columns = columns

    def keys(self, name: str) -> npt.NDArray[Any]:
        """Return a key column, masked where NULL."""
        return self._columns[name]

    def table(self, columns: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the numbers of columns as an array with a row for each of the slice."""
        table = np.empty((len(self.us), len(columns)), dtype=np.float32)
        for at, name in enumerate(columns):
            table[:, at] = self._columns[name]
        return table

    def blocks(self, layout: BlockLayout, counts: Places, block: Places, position: Places) -> list[Block]:
        """Return blocks of ``counts`` rows; ``block`` and ``position`` say where each row of the slice goes.

        Rows with a negative block are left out; positions that no row goes to were not measured.
        """
        taken = np.flatnonzero(block >= 0)
        block, position = block[taken], position[taken]
        most = int(counts.max(initial=0))
        held = []
        for places, kind in ((layout.singles, "<f4"), (layout.doubles, "<f8")):
            part = np.full((len(places), len(counts), most), np.nan, dtype=kind)
            for at, place in enumerate(places):
                part[at, block, position] = self._columns[layout.columns[place]][taken]
            held.append(part)
        made: list[Block | None] = [None] * len(counts)
        for count in np.unique(counts).tolist():
            alike = np.flatnonzero(counts == count)
            singles, doubles = (part[:, alike, :count] for part in held)
            for at, one in zip(alike.tolist(), packed(layout, singles, doubles), strict=True):
                made[at] = one
        return [one for one in made if one is not None]


class RecordingReader:
    """Reads one recording of a file. Times are Unix seconds; ``end`` is that of its newest frame, or its own.

    ``names`` are its nodes in the order of the screen, if the file may not have all of them yet.
    ``excerpt`` is the time of the first and the last frame if the recording was imported, else None.
    """

    def __init__(self, source: ArraySource, recording_id: int, names: Sequence[str] = ()) -> None:
        """Read what doesn't change while it is recorded. Raises StoreError."""
        self.source = source
        self.recording_id = recording_id
        row = self.dicts(
            "SELECT epoch_us(started_at) AS start_us, epoch_us(ended_at) AS end_us, interval_ms, "
            "slurm_job_id, options FROM recordings WHERE recording_id = ?",
            recording_id,
        )
        if not row:
            raise StoreError(f"{source.path} has no recording {recording_id}")
        options = json_object(row[0]["options"])
        nodes = options.get("nodes")
        self._started_with = list(names) or [
            name for name in (nodes if isinstance(nodes, list) else ()) if isinstance(name, str)
        ]
        self.job: str = row[0]["slurm_job_id"] or ""
        self.interval_s: float = (row[0]["interval_ms"] or 1000) / 1000
        self.machines: dict[int, RecordedMachine] = {}
        self._node_names: dict[int, str] = {}
        self.gpu_positions: dict[int, tuple[int, int]] = {}
        self.refresh()
        first, last = self.rows(
            "SELECT epoch_us(min(ts)), epoch_us(max(ts)) FROM host_samples WHERE node_id IN "
            "(SELECT node_id FROM nodes WHERE recording_id = ?)",
            recording_id,
        )[0]
        imported = first is not None and "imported_from" in options
        self.excerpt = (first / 1e6, last / 1e6) if imported else None
        self.start: float = row[0]["start_us"] / 1e6
        self.end: float = max(row[0]["start_us"], last or 0, row[0]["end_us"] or 0) / 1e6

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query. Raises StoreError."""
        return self.source.query(sql, *values).rows()

    def dicts(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query by column. Raises StoreError."""
        return self.source.query(sql, *values).dicts()

    @property
    def names(self) -> list[str]:
        """The nodes, in the order in which the recording was started with them."""
        return list(dict.fromkeys([*self._started_with, *self._node_names.values()]))

    @property
    def allocation(self) -> Mapping[str, frozenset[int]]:
        """The GPUs that Slurm granted to the job, by node, where known."""
        return {m.name: m.granted for m in self.machines.values() if m.granted is not None}

    # Machines

    def refresh(self) -> None:
        """Read machines and agent runs that are new in the file. Raises StoreError."""
        nodes = self.dicts("SELECT * FROM nodes WHERE recording_id = ? ORDER BY node_id", self.recording_id)
        self._node_names = {row["node_id"]: row["node"] for row in nodes}
        gpus = self._by_node(
            "SELECT gpus.* FROM gpus JOIN nodes USING (node_id) WHERE recording_id = ? ORDER BY gpu_id"
        )
        links = self._by_node(
            "SELECT links.* REPLACE (epoch_us(last_ts) AS last_ts) FROM links JOIN nodes USING (node_id) "
            "WHERE recording_id = ? AND last_seq IS NOT NULL AND frames IS DISTINCT FROM 0 ORDER BY last_ts"
        )
        new = {
            row["node_id"]: row
            for row in nodes
            if (known := self.machines.get(row["node_id"])) is None
            or len(known.lives) != max(1, len(links.get(row["node_id"], ())))
        }
        lives = self._lives({node_id: links.get(node_id) or [_UNKNOWN_LIFE] for node_id in new})
        gpu_links = self._gpu_links(gpus) if new else {}
        for node_id, row in new.items():
            if lives[node_id]:
                machine = self._machine(row, gpus.get(node_id, []), links.get(node_id, []), lives[node_id])
                hello = replace(machine.hello, links=gpu_links.get(node_id, ()))
                machine = self.machines[node_id] = replace(machine, hello=hello)
                self.gpu_positions |= {gpu: (node_id, place) for place, gpu in enumerate(machine.gpu_ids)}

    def _gpu_links(self, gpus: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, tuple[GpuLink, ...]]:
        """Return how the GPUs of each machine were last connected; machines of one kind share them."""
        places = {gpu["gpu_id"]: at for of_node in gpus.values() for at, gpu in enumerate(of_node)}
        found: dict[int, list[GpuLink]] = {}
        for node_id, gpu_id, *rest in self.rows(
            "SELECT node_id, gpu_id, peer, kind, coalesce(links, 0), version, gb_s FROM gpu_links "
            "JOIN nodes USING (node_id) WHERE recording_id = ? "
            "QUALIFY ts = max(ts) OVER (PARTITION BY node_id) ORDER BY node_id, gpu_id, "
            "peer_index NULLS LAST, peer = 'host', peer <> 'NVSwitch', length(peer), peer",
            self.recording_id,
        ):
            if gpu_id in places:
                found.setdefault(node_id, []).append(GpuLink(places[gpu_id], *rest))
        shared: dict[tuple[GpuLink, ...], tuple[GpuLink, ...]] = {}
        tuples = {node_id: tuple(links) for node_id, links in found.items()}
        return {node_id: shared.setdefault(links, links) for node_id, links in tuples.items()}

    def _by_node(self, sql: str) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of a query on this recording by node."""
        rows: dict[int, list[dict[str, Any]]] = {}
        for row in self.dicts(sql, self.recording_id):
            rows.setdefault(row["node_id"], []).append(row)
        return rows

    def _lives(self, links: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, list[Life]]:
        """Return the agent runs of each machine; one query reads the first runs of all, one the second …"""
        lives: dict[int, list[Life]] = {node_id: [] for node_id in links}
        after = dict.fromkeys(links, 0)
        while after:
            found = self.rows(
                "SELECT node_id, epoch_us(min(ts)) FROM host_samples JOIN "
                "(SELECT unnest(?::INTEGER[]) AS node_id, unnest(?::BIGINT[]) AS after) USING (node_id) "
                "WHERE ts > make_timestamp(?) AND ts > make_timestamp(after) GROUP BY node_id",
                list(after),
                list(after.values()),
                min(after.values()),
            )
            after = {}
            for node_id, first in found:
                link = links[node_id][len(lives[node_id])]
                if link["last_ts"] is None:  # its last frames were lost
                    lives[node_id].append(Life(link["life"], first, _OPEN_END_US))
                    continue
                last = max(first, link["last_ts"] - micros(link["clock_offset_s"] or 0.0))
                lives[node_id].append(Life(link["life"], first, last))
                if len(lives[node_id]) < len(links[node_id]):
                    after[node_id] = last
        return lives

    def _machine(
        self,
        row: Mapping[str, Any],
        gpus: list[dict[str, Any]],
        links: list[dict[str, Any]],
        lives: list[Life],
    ) -> RecordedMachine:
        granted = frozenset(gpu["gpu_index"] for gpu in gpus if gpu["allocated"])
        newest = links[-1] if links else {"clock_offset_s": None, "round_trip_s": None}
        return RecordedMachine(
            node_id=row["node_id"],
            name=row["node"],
            hello=hello_of(row, gpus, self.interval_s),
            gpu_ids=tuple(gpu["gpu_id"] for gpu in gpus),
            granted=granted if any(gpu["allocated"] is not None for gpu in gpus) else None,
            offset_s=newest["clock_offset_s"] or 0.0,
            round_trip_s=newest["round_trip_s"],
            lives=tuple(lives),
        )

    def has_frames(self, start: float, end: float) -> bool:
        """Return whether frames cover a part of the time from ``start`` to ``end``. Raises StoreError."""
        found = self.rows(
            "SELECT 1 FROM host_samples WHERE ts >= ? "
            "AND ts - to_milliseconds(coalesce(interval_ms, 0)) < ? AND node_id IN "
            "(SELECT node_id FROM nodes WHERE recording_id = ?) LIMIT 1",
            stamp(micros(start)),
            stamp(micros(end)),
            self.recording_id,
        )
        return bool(found)

    # Events

    def sessions(self) -> list[dict[str, Any]]:
        """Return the recording's sessions; times in Unix microseconds. Raises StoreError."""
        return self.dicts(
            "SELECT session_id, name, note, epoch_us(started_at) AS start_us, epoch_us(ended_at) AS end_us "
            "FROM sessions WHERE recording_id = ? ORDER BY session_id",
            self.recording_id,
        )

    def findings(self) -> list[Finding]:
        """Return what the rules had found while it was recorded, oldest first. Raises StoreError."""
        rows = self.dicts(
            "SELECT * REPLACE (epoch_us(since) AS since, epoch_us(until) AS until) FROM findings "
            "WHERE recording_id = ? ORDER BY since, finding_id",
            self.recording_id,
        )
        return [finding for row in rows if (finding := _finding(row)) is not None]

    def logged_events(self, low: int, high: int) -> list[EventLogged]:
        """Return the latest logged events after ``low`` up to ``high``, oldest first. Raises StoreError.

        Those of steps aren't among them.
        """
        return self._events(f"kind <> '{STEP}' AND ts > ? AND ts <= ?", EVENTS_KEPT, stamp(low), stamp(high))

    def step_events(self, low: int, high: int) -> list[EventLogged]:
        """Return what ``mark.step`` sent after ``low`` up to ``high``, oldest first. Raises StoreError."""
        return self._events(f"kind = '{STEP}' AND ts > ? AND ts <= ?", MAX_STEPS, stamp(low), stamp(high))

    def link_events(self, until: int) -> list[EventLogged]:
        """Return the events of links up to a time (microseconds), oldest first. Raises StoreError."""
        return self._changes(until, "link_live", LINK_LOST, UNREACHABLE)

    def intervals(self, until: int) -> list[tuple[int, int]]:
        """Return the intervals up to a time as (microseconds, ms), oldest first. Raises StoreError."""
        changes = self._changes(until, INTERVAL_CHANGED)
        intervals = ((micros(one.at), new_interval_ms(one.detail)) for one in changes)
        first = 0, round(self.interval_s * 1000)
        return [first, *((us, interval_ms) for us, interval_ms in intervals if interval_ms is not None)]

    def metrics(self, at: int) -> tuple[str, ...]:
        """Return the groups of metrics that were on at a time (microseconds). Raises StoreError."""
        changes = self._changes(at, METRICS_CHANGED)
        return (new_groups(changes[-1].detail) if changes else None) or DEFAULT_GROUPS

    def _changes(self, until: int, *kinds: str) -> list[EventLogged]:
        listed = ", ".join(f"'{kind}'" for kind in kinds)
        return self._events(f"kind IN ({listed}) AND ts <= ?", MAX_EVENTS, stamp(until))

    def notable_events(self) -> list[EventLogged]:
        """Return warnings, errors and marks. Raises StoreError."""
        return self._events("severity <> 'info' OR kind = 'mark'", MAX_EVENTS)

    def _events(self, where: str, most: int, *values: object) -> list[EventLogged]:
        rows = self.rows(
            "SELECT epoch_us(ts), node_id, gpu_id, kind, severity, message, detail "  # noqa: S608 (own names)
            f"FROM rec.events WHERE recording_id = ? AND ({where}) ORDER BY ts DESC, rowid DESC LIMIT {most}",
            self.recording_id,
            *values,
        )
        return [self._event(row) for row in reversed(rows)]

    def _event(self, row: tuple[Any, ...]) -> EventLogged:
        us, node_id, gpu_id, kind, severity, message, detail = row
        gpu = None
        if gpu_id in self.gpu_positions:
            machine, place = self.gpu_positions[gpu_id]
            gpu = self.machines[machine].hello.gpus[place].index
        node = self._node_names.get(node_id)
        return EventLogged(us / 1e6, kind, severity or WARNING, message or "", node, gpu, detail)

    def table_slice(self, table: str, keys: str, low: int, high: int) -> TableSlice:
        """Return the rows of a table after ``low`` up to ``high`` (microseconds). Raises StoreError.

        ``keys`` are further columns as SQL, among them the ``id`` of a GPU or machine. Metrics have the
        precision of frames.
        """
        kinds = {name: "DOUBLE" if name in EXACT_COLUMNS else "FLOAT" for name in _METRICS[table]}
        metrics = (f"coalesce({name}::{kind}, 'nan'::{kind}) AS {name}" for name, kind in kinds.items())
        columns = ", ".join(("epoch_us(ts) AS us", keys, *metrics))
        found = self.source.arrays(
            f"SELECT {columns} FROM {table} WHERE ts > make_timestamp(?) AND ts <= make_timestamp(?)",  # noqa: S608
            low,
            high,
        )
        return TableSlice(found)


def _finding(row: Mapping[str, Any]) -> Finding | None:
    """Return the finding of a row, None for one that is none."""
    plain = {field.name: row.get(field.name) for field in fields(Finding)} | {
        "finding_id": str(row["finding_id"]),
        "gpu": row["gpu_index"],
        "since": (row["since"] or 0) / 1e6,
        "until": None if row["until"] is None else row["until"] / 1e6,
        "gpu_hours": row["gpu_hours"] or 0.0,
        "dismissed": bool(row["dismissed"]),
    }
    try:
        plain |= {name: json.loads(row[name] or "[]") for name in ("nodes", "evidence")}
        return Finding.from_plain(plain)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def interval_at(intervals: Sequence[tuple[int, int]], us: int) -> int:
    """Return the interval [ms] at a time (microseconds) from ``RecordingReader.intervals``."""
    return next(interval_ms for since, interval_ms in reversed(intervals) if since <= us)


def link_change(event: EventLogged) -> LinkChanged | None:
    """Return the link's change of phase that an event logs, None for other events."""
    if event.node is None:
        return None
    if event.kind == "link_live":
        return LinkChanged(event.node, event.at, Phase.LIVE)
    if event.kind in (LINK_LOST, UNREACHABLE):
        return LinkChanged(event.node, event.at, Phase.LOST, event.message, event.detail or "")
    return None


def introduction(machine: RecordedMachine, life: Life, interval_ms: int) -> list[Event]:
    """Return an agent's hello with the interval of that time, and its clock if known."""
    at = life.first_us / 1e6
    hello = replace(machine.hello, life=life.name, interval_ms=interval_ms)
    events: list[Event] = [NodeIntroduced(machine.name, at, hello)]
    if machine.round_trip_s is not None:
        events.append(LinkMeasured(machine.name, at, machine.offset_s, machine.round_trip_s))
    return events


def hello_of(
    row: Mapping[str, Any],
    gpus: Sequence[Mapping[str, Any]],
    interval_s: float,
) -> Hello:
    """Return the hello of an agent from rows of ``nodes`` and ``gpus``, without a life."""
    return Hello(
        agent_version=row["agent_version"] or "",
        life="",
        interval_ms=round(interval_s * 1000),
        simulated=bool(row["simulated"]),
        host=HostFacts(
            **{one.name: row[one.name] for one in fields(HostFacts)}
            | {"hostname": row["hostname"] or row["node"], "boot_id": row["boot_id"] or ""}
        ),
        gpus=tuple(
            GpuFacts(
                index=gpu["gpu_index"],
                # The file stores of the minor only whether the job was granted it.
                minor=None if gpu["allocated"] is None else gpu["gpu_index"],
                mig=bool(gpu["mig"]),
                **{one.name: gpu[one.name] for one in fields(GpuFacts) if one.name not in _GPU_FACTS_APART},
            )
            for gpu in gpus
        ),
        capabilities={name: str(why) for name, why in json_object(row["capabilities"]).items()},
    )
