"""A recording read back as the events that it was made of.

What the database doesn't keep: when frames arrived, the nodes' own clocks, looks at processes that found
none, attempts to connect between a loss and the next connection, and later hellos of the same agent.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from gswarm_agent.frame import WARNING, ProcessSample
from gswarm_agent.frame import Row as Numbers
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    Happened,
    LinkChanged,
    Phase,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.state import EVENTS_KEPT
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.machines import Life, Machine, hello_of, introduction
from gswarm_tui.store.schema import SCHEMA_VERSION
from gswarm_tui.store.source import Answer

Columns = dict[str, npt.NDArray[Any]]
TURNS_MOST = 50_000
PROCESSES_US = 10_000_000
"""Processes that weren't seen for so long have ended; nodes look every few seconds."""
ENDLESS_US = 1 << 62
_NEEDED = (("recordings", "options"), ("host_samples", "seq"), ("links", "last_ts"))
"""Columns that a recording has, in this and every later version."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - DuckDB's times have no zone


class Source(Protocol):
    """What is needed of a recording file here."""

    path: Path

    def ask(self, sql: str, *values: object) -> Answer:
        """The answer to one statement that reads. Raises StoreError."""

    def arrays(self, sql: str, *values: object) -> Columns:
        """The same by column. Raises StoreError."""


def stamp(us: int) -> datetime:
    """Unix microseconds as the database writes them."""
    return _EPOCH + timedelta(microseconds=us)


def micros(at: float) -> int:
    """Unix seconds as whole microseconds."""
    return round(at * 1e6)


class Playback:
    """One recording of a file. Times are Unix seconds; ``end`` is that of its newest frame, or its own.

    ``names`` are its nodes in the order in which they are to be shown, where the file may not know them all.
    """

    def __init__(self, source: Source, recording_id: int, names: Sequence[str] = ()) -> None:
        """Reads what doesn't change with time. Raises StoreError."""
        self.source = source
        self.recording_id = recording_id
        row = self.dicts(
            "SELECT epoch_us(started_at) AS start_us, epoch_us(ended_at) AS end_us, interval_ms, "
            "slurm_job_id, options FROM recordings WHERE recording_id = ?",
            recording_id,
        )
        if not row:
            raise StoreError(f"{source.path} has no recording {recording_id}")
        self._asked_for = tuple(names) or _nodes_of(row[0]["options"])
        self.job: str = row[0]["slurm_job_id"] or ""
        self.interval_s: float = (row[0]["interval_ms"] or 1000) / 1000
        self._columns = {
            table: self._kept(table, columns)
            for table, columns in (
                ("gpu_samples", GPU_COLUMNS),
                ("host_samples", HOST_COLUMNS),
                ("process_samples", PROCESS_COLUMNS),
            )
        }
        self.machines: dict[int, Machine] = {}
        self._node_names: dict[int, str] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.learn()
        last = self.rows(
            "SELECT epoch_us(max(ts)) FROM host_samples WHERE node_id IN "
            "(SELECT node_id FROM nodes WHERE recording_id = ?)",
            recording_id,
        )[0][0]
        self.start: float = row[0]["start_us"] / 1e6
        self.end: float = max(row[0]["start_us"], last or 0, row[0]["end_us"] or 0) / 1e6

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query. Raises StoreError."""
        return self.source.ask(sql, *values).rows()

    def dicts(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """The rows of a query by column. Raises StoreError."""
        return self.source.ask(sql, *values).dicts()

    def columns(self, table: str) -> tuple[str, ...]:
        """The metrics that the file has of a table, in the catalogue's order."""
        return self._columns[table]

    @property
    def names(self) -> list[str]:
        """The nodes, in the order in which they were asked for."""
        return list(dict.fromkeys([*self._asked_for, *self._node_names.values()]))

    @property
    def allocation(self) -> Mapping[str, frozenset[int]]:
        """The GPUs that Slurm granted to the job, of the nodes where that is known."""
        return {m.name: m.granted for m in self.machines.values() if m.granted is not None}

    def _kept(self, table: str, wanted: Sequence[str]) -> tuple[str, ...]:
        found = self.rows("SELECT column_name FROM duckdb_columns() WHERE table_name = ?", table)
        kept = {name for (name,) in found}
        return tuple(name for name in wanted if name in kept)

    # Who was there

    def learn(self) -> None:
        """Take in machines and agents that are new in the file. Raises StoreError."""
        nodes = self.dicts("SELECT * FROM nodes WHERE recording_id = ? ORDER BY node_id", self.recording_id)
        self._node_names = {row["node_id"]: row["node"] for row in nodes}
        mine = "(SELECT node_id FROM nodes WHERE recording_id = ?)"
        gpus: dict[int, list[dict[str, Any]]] = {}
        for gpu in self.dicts(
            f"SELECT * FROM gpus WHERE node_id IN {mine} ORDER BY gpu_id",  # noqa: S608 (own names)
            self.recording_id,
        ):
            gpus.setdefault(gpu["node_id"], []).append(gpu)
        links: dict[int, list[dict[str, Any]]] = {}
        for link in self.dicts(
            "SELECT links.* REPLACE (epoch_us(last_ts) AS last_ts) FROM links "  # noqa: S608 (own names)
            f"WHERE node_id IN {mine} AND last_seq IS NOT NULL ORDER BY last_ts",
            self.recording_id,
        ):
            links.setdefault(link["node_id"], []).append(link)
        for row in nodes:
            node_id = row["node_id"]
            known = self.machines.get(node_id)
            if known is not None and len(known.lives) == max(1, len(links.get(node_id, ()))):
                continue
            machine = self._machine(row, gpus.get(node_id, []), links.get(node_id, []))
            if machine.lives:
                self.machines[node_id] = machine
                self.places |= {gpu: (node_id, place) for place, gpu in enumerate(machine.gpu_ids)}

    def _machine(
        self, row: Mapping[str, Any], gpus: list[dict[str, Any]], links: list[dict[str, Any]]
    ) -> Machine:
        lives: list[Life] = []
        after = 0
        for link in links or [{"life": "", "last_ts": ENDLESS_US, "clock_offset_s": None}]:
            first = self.rows(
                "SELECT epoch_us(min(ts)) FROM host_samples WHERE node_id = ? AND ts > ?",
                row["node_id"],
                stamp(after),
            )[0][0]
            if first is None:
                break
            after = max(first, link["last_ts"] - micros(link["clock_offset_s"] or 0.0))
            lives.append(Life(link["life"], first, after))
        granted = frozenset(gpu["gpu_index"] for gpu in gpus if gpu["allocated"])
        newest = links[-1] if links else {"clock_offset_s": None, "round_trip_s": None}
        return Machine(
            node_id=row["node_id"],
            name=row["node"],
            hello=hello_of(row, gpus, self.interval_s, self._columns),
            gpu_ids=tuple(gpu["gpu_id"] for gpu in gpus),
            granted=granted if any(gpu["allocated"] is not None for gpu in gpus) else None,
            offset_s=newest["clock_offset_s"] or 0.0,
            round_trip_s=newest["round_trip_s"],
            lives=tuple(lives),
        )

    def has_frames(self, start: float, end: float) -> bool:
        """Whether anything was measured from a time up to, without, another. Raises StoreError."""
        found = self.rows(
            "SELECT 1 FROM host_samples WHERE ts >= ? AND ts < ? AND node_id IN "
            "(SELECT node_id FROM nodes WHERE recording_id = ?) LIMIT 1",
            stamp(micros(start)),
            stamp(micros(end)),
            self.recording_id,
        )
        return bool(found)

    # What happened

    def events(self, since: float, until: float) -> list[Event]:
        """What happened after ``since``, up to and with ``until``, in order. Raises StoreError."""
        low, high = micros(since), micros(until)
        found: list[Event] = []
        for machine in self.machines.values():
            for life in machine.lives:
                if low < life.first_us <= high:
                    found += introduction(machine, life)
        found += self.turned(low, high)
        found += self.frames(low, high)
        return sorted(found, key=lambda event: event.at)

    def turned(self, low: int, high: int) -> Iterator[Event]:
        """Links, sessions and happenings after ``low`` up to ``high`` (microseconds). Raises StoreError."""
        for happened in self.happened(low, high):
            if (changed := link_of(happened)) is not None:
                yield changed
            yield happened
        for session in self.sessions():
            started, ended = session["start_us"], session["end_us"]
            name = str(session["session_id"])
            if low < started <= high:
                at = started / 1e6
                yield SessionStarted(name, at, session["name"], at, session["note"] or "")
            if ended is not None and low < ended <= high:
                yield SessionStopped(name, ended / 1e6, ended / 1e6)

    def sessions(self) -> list[dict[str, Any]]:
        """The recording's sessions; times in Unix microseconds. Raises StoreError."""
        return self.dicts(
            "SELECT session_id, name, note, epoch_us(started_at) AS start_us, epoch_us(ended_at) AS end_us "
            "FROM sessions WHERE recording_id = ? ORDER BY session_id",
            self.recording_id,
        )

    def happened(self, low: int, high: int, most: int = EVENTS_KEPT) -> list[Happened]:
        """The latest happenings after ``low`` up to ``high``, oldest first. Raises StoreError."""
        return self._happened("ts > ? AND ts <= ?", most, stamp(low), stamp(high))

    def linked(self, until: int) -> list[Happened]:
        """What links did up to a time (microseconds), oldest first. Raises StoreError."""
        return self._happened("kind IN ('link_live', 'link_lost') AND ts <= ?", TURNS_MOST, stamp(until))

    def turns(self) -> list[Happened]:
        """What is worth going to: warnings, errors, marks. Raises StoreError."""
        return self._happened("severity <> 'info' OR kind = 'mark'", TURNS_MOST)

    def _happened(self, where: str, most: int, *values: object) -> list[Happened]:
        rows = self.rows(
            "SELECT epoch_us(ts), node_id, gpu_id, kind, severity, message, detail "  # noqa: S608 (own names)
            f"FROM events WHERE recording_id = ? AND ({where}) ORDER BY ts DESC, rowid DESC LIMIT {most}",
            self.recording_id,
            *values,
        )
        return [self._told(row) for row in reversed(rows)]

    def _told(self, row: tuple[Any, ...]) -> Happened:
        us, node_id, gpu_id, kind, severity, message, detail = row
        gpu = None
        if gpu_id in self.places:
            machine, place = self.places[gpu_id]
            gpu = self.machines[machine].hello.gpus[place].index
        node = self._node_names.get(node_id)
        return Happened(us / 1e6, kind, severity or WARNING, message or "", node, gpu, detail)

    # Frames

    def frames(self, low: int, high: int) -> list[FrameArrived]:
        """The frames read after ``low`` up to ``high`` (microseconds), in order. Raises StoreError."""
        within = "ts > ? AND ts <= ?"
        between = stamp(low), stamp(high)
        gpus: dict[tuple[int, int], list[Numbers | None]] = {}
        for row in self._samples("gpu_samples", "gpu_id", within, *between):
            if (place := self.places.get(row[1])) is not None:
                node_id, position = place
                rows = gpus.get((node_id, row[0]))
                if rows is None:
                    rows = gpus[node_id, row[0]] = [None] * len(self.machines[node_id].gpu_ids)
                rows[position] = row[2:]
        processes: dict[tuple[int, int], list[ProcessSample]] = {}
        seen: dict[int, list[int]] = {}
        names = "gpu_id, pid, user_name, command, rank, local_rank"
        for us, gpu_id, pid, user, command, rank, local, *numbers in self._samples(
            "process_samples", names, within, stamp(low - PROCESSES_US), stamp(high)
        ):
            if (place := self.places.get(gpu_id)) is not None:
                sample = ProcessSample(place[1], pid, user, command, rank, local, tuple(numbers))
                processes.setdefault((place[0], us), []).append(sample)
                seen.setdefault(place[0], []).append(us)
        arrived = []
        for us, node_id, seq, late_ms, missed, *host in self._samples(
            "host_samples", "node_id, seq, late_ms, missed", within, *between
        ):
            machine = self.machines.get(node_id)
            if machine is None:
                continue
            looked = processes.get((node_id, us))
            if looked is None and not _recent(seen.get(node_id, ()), us):
                looked = []
            life = machine.life_at(us)
            frame = machine.hello.tables.frame(
                # Frames of a recording that was read from elsewhere aren't numbered.
                seq=seq or round((us - life.first_us) / (self.interval_s * 1e6)) + 1,
                ts_ns=us * 1000,
                late_ms=late_ms or 0.0,
                missed=missed or 0,
                gpus=gpus.get((node_id, us)) or [None] * len(machine.gpu_ids),
                host=tuple(host),
                processes=looked,
            )
            at = us / 1e6
            arrived.append(FrameArrived(machine.name, at, at, life.name, frame))
        return arrived

    def _samples(self, table: str, keys: str, where: str, *values: object) -> list[tuple[Any, ...]]:
        columns = ", ".join(("epoch_us(ts)", keys, *self._columns[table]))
        return self.rows(f"SELECT {columns} FROM {table} WHERE {where} ORDER BY ts, rowid", *values)  # noqa: S608


def require_recording(source: Source) -> None:
    """See that a file is a recording that can be read here. Raises StoreError where it isn't."""
    columns = "SELECT 1 FROM duckdb_columns() WHERE table_name = ? AND column_name = ?"
    if not all(source.ask(columns, *column).rows() for column in _NEEDED):
        raise StoreError(f"{source.path} is no recording of gswarm-tui")
    newest = source.ask("SELECT max(schema_version) FROM recordings").rows()[0][0]
    if newest is not None and newest > SCHEMA_VERSION:
        raise StoreError(f"{source.path} was made by a newer gswarm-tui; update this one")


def _nodes_of(options: str | None) -> tuple[str, ...]:
    """The nodes that a recording was asked for."""
    found = json.loads(options or "{}").get("nodes") or ()
    return tuple(name for name in found if isinstance(name, str))


def _recent(times: Sequence[int], us: int) -> bool:
    """Whether one of these times, which are in order, lies shortly before this one."""
    place = bisect_right(times, us)
    return place > 0 and times[place - 1] > us - PROCESSES_US


def link_of(happened: Happened) -> LinkChanged | None:
    """The phase that a link went to when this happened, None if it is about something else."""
    if happened.node is None:
        return None
    if happened.kind == "link_live":
        return LinkChanged(happened.node, happened.at, Phase.LIVE)
    if happened.kind == "link_lost":
        return LinkChanged(happened.node, happened.at, Phase.LOST, happened.message, happened.detail or "")
    return None
