"""The fleet as it was at a time of a recording: built anew, from a few queries that are bounded in time.

Rows lie in the file in the order of their times, so DuckDB reads only the row groups of the stretch that a
filter on ``ts`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.events import FrameArrived, LinkChanged, Phase
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.readings import ENERGY
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.store.playback import Columns, Machine, Playback, introduction, link_of, micros, stamp

Places = npt.NDArray[np.intp]

PROCESSES_S = 10.0
"""Processes that were seen this long before a time, and not since, are still shown at it."""


@dataclass(frozen=True)
class _Newest:
    """A machine's newest frame at a time, and what was counted until then."""

    machine: Machine
    us: int
    frames: int
    missed: int


class Moments:
    """Builds the fleet at any time of a recording; remembers what doesn't depend on the time."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._energy_at_first: dict[int, float] = {}
        self._ended: dict[str, Session] = {}

    def fleet(self, at: float) -> Fleet:
        """The fleet as it was: nodes, links, history, sessions, happenings. Raises StoreError."""
        play, now_us = self._playback, micros(at)
        fleet = Fleet(play.names, play.interval_s, play.allocation, tells=False)
        newest = self._newest(now_us)
        for found in newest.values():
            for event in introduction(found.machine, found.machine.life_at(found.us)):
                fleet.apply(event)
        self._link(fleet, now_us)
        self._fill(fleet, newest, now_us)
        for frame in self._last_frames(newest, now_us):
            fleet.resume([(frame.node, frame.life, frame.frame.seq - 1, 0)])
            fleet.apply(frame)
        for found in newest.values():
            node = fleet.nodes[found.machine.name]
            node.frames, node.missed_ticks = found.frames, found.missed
        fleet.energy_j = sum(self._energy_used(fleet).values())
        for session in self._sessions(now_us):
            fleet.sessions.restore(session)
        for happened in play.happened(0, now_us):
            fleet.apply(happened)
        return fleet

    def _newest(self, now_us: int) -> dict[str, _Newest]:
        """The newest frame of each node that had sent one."""
        found: dict[str, _Newest] = {}
        for node_id, us, frames, missed in self._playback.rows(
            "SELECT node_id, epoch_us(max(ts)), count(*), sum(missed)::BIGINT FROM host_samples "
            "WHERE ts <= ? GROUP BY node_id ORDER BY max(ts)",
            stamp(now_us),
        ):
            machine = self._playback.machines.get(node_id)
            if machine is not None and machine.lives:
                before = found.get(machine.name)
                already, passed = (before.frames, before.missed) if before is not None else (0, 0)
                found[machine.name] = _Newest(machine, us, frames + already, (missed or 0) + passed)
        return found

    def _link(self, fleet: Fleet, now_us: int) -> None:
        """Where each link stood; one that nothing is told of was live if frames came over it."""
        changes: dict[str, list[LinkChanged]] = {}
        for happened in self._playback.linked(now_us):
            if (changed := link_of(happened)) is not None and changed.node in fleet.nodes:
                changes.setdefault(changed.node, []).append(changed)
        for node in fleet.nodes.values():
            known = changes.get(node.name, [])
            if not known and node.hello is not None:
                known = [LinkChanged(node.name, 0.0, Phase.LIVE)]
            for changed in known:
                fleet.apply(changed)
            node.reconnects = max(0, sum(changed.phase is Phase.LIVE for changed in known) - 1)

    # The last minutes

    def _fill(self, fleet: Fleet, newest: Mapping[str, _Newest], now_us: int) -> None:
        """Give every node its history before its newest frame: one query for all GPUs, one for hosts."""
        nodes = [(fleet.nodes[name], found) for name, found in newest.items()]
        rings = [node.gpu_history.capacity for node, _ in nodes if node.gpu_history is not None]
        if not rings:
            return
        low_us = now_us - round(max(rings) * self._playback.interval_s * 1e6)
        gpus = self._stretch("gpu_samples", "gpu_id", low_us, now_us)
        hosts = self._stretch("host_samples", "node_id", low_us, now_us)
        width = max([*self._playback.places, *gpus.ids.tolist(), 0]) + 1
        owner, position = np.full(width, -1, dtype=np.int64), np.zeros(width, dtype=np.int64)
        for gpu_id, (node_id, place) in self._playback.places.items():
            owner[gpu_id], position[gpu_id] = node_id, place
        gpus_of, hosts_of = gpus.split(owner[gpus.ids]), hosts.split(hosts.ids)
        for node, found in nodes:
            node_id = found.machine.node_id
            if node_id in gpus_of and node_id in hosts_of:
                mine = gpus_of[node_id]
                _fill_node(
                    node, found.us, gpus.only(mine), position[gpus.ids[mine]], hosts.only(hosts_of[node_id])
                )

    def _stretch(self, table: str, key: str, low: int, high: int) -> _Stretch:
        metrics = ", ".join(_nan_for_null(name) for name in self._playback.columns(table))
        found = self._playback.source.arrays(
            f"SELECT epoch_us(ts) AS us, {key} AS id, {metrics} FROM {table} WHERE ts > ? AND ts <= ?",  # noqa: S608
            stamp(low),
            stamp(high),
        )
        return _Stretch(found)

    def _last_frames(self, newest: Mapping[str, _Newest], now_us: int) -> Iterable[FrameArrived]:
        """Each node's newest frame, with the processes that were seen last."""
        wanted = {(found.machine.name, found.us) for found in newest.values()}
        times = sorted({us for _, us in wanted})
        if not times:
            return []
        frames: dict[str, FrameArrived] = {}
        processes: dict[str, Any] = {}
        recent = now_us - round(max(PROCESSES_S, 3 * self._playback.interval_s) * 1e6)
        for low, high in _stretches([*times, max(recent, 0)], now_us):
            for frame in self._playback.frames(low, high):
                if frame.frame.processes is not None:
                    processes[frame.node] = frame.frame.processes
                if (frame.node, round(frame.ts * 1e6)) in wanted:
                    frames[frame.node] = frame
        return [
            replace(frame, frame=replace(frame.frame, processes=processes.get(name)))
            for name, frame in frames.items()
        ]

    # Energy and sessions

    def _energy_used(self, fleet: Fleet) -> dict[int, float]:
        """Joules that each of the job's GPUs had used, from its first sample on."""
        if len(self._energy_at_first) < len(self._playback.places):
            machines = self._playback.machines.values()
            firsts = {m.node_id: stamp(m.lives[0].first_us) for m in machines}
            self._energy_at_first = self._energies(firsts)
        used = {}
        for machine in self._playback.machines.values():
            node = fleet.nodes[machine.name]
            if node.hello is None or len(node.gpus) != len(machine.gpu_ids):
                continue
            for place, gpu_id in enumerate(machine.gpu_ids):
                first = self._energy_at_first.get(gpu_id)
                last = float(node.gpus[place, ENERGY])
                if first is not None and np.isfinite(last) and node.mine[place]:
                    used[gpu_id] = (last - first if last >= first else last) / 1000
        return used

    def _sessions(self, now_us: int) -> list[Session]:
        """The sessions that had begun, with what had been measured in them."""
        sessions = []
        for row in self._playback.sessions():
            if row["start_us"] > now_us:
                continue
            name, over = str(row["session_id"]), row["end_us"] is not None and row["end_us"] <= now_us
            session = self._ended.get(name) if over else None
            if session is None:
                session = self._measured(row, row["end_us"] if over else now_us + 1)
                session.ended_at = row["end_us"] / 1e6 if over else None
                if over:
                    self._ended[name] = session
            sessions.append(replace(session, covered_s=dict(session.covered_s)))
        return sessions

    def _measured(self, row: Mapping[str, Any], until_us: int) -> Session:
        between = stamp(row["start_us"]), stamp(until_us)
        machines = self._playback.machines.values()
        mine = {gpu for machine in machines for gpu in _granted(machine)}
        others = sorted(self._playback.places.keys() - mine)
        without = "AND gpu_id NOT IN (SELECT unnest(?::INTEGER[]))" if others else ""
        sums = self._playback.rows(
            "SELECT sum(util_pct)::DOUBLE, count(util_pct), sum(power_w)::DOUBLE, count(power_w) "  # noqa: S608
            f"FROM gpu_samples WHERE ts >= ? AND ts < ? {without}",
            *between,
            *([others] if others else []),
        )[0]
        covered = self._playback.rows(
            "SELECT node_id, sum(least(interval_ms / 1000, epoch(ts - ?::TIMESTAMP)))::DOUBLE "
            "FROM host_samples WHERE ts >= ? AND ts < ? GROUP BY node_id",
            between[0],
            *between,
        )
        covered_s: dict[str, float] = {}
        for node_id, seconds in covered:
            if (machine := self._playback.machines.get(node_id)) is not None:
                covered_s[machine.name] = covered_s.get(machine.name, 0.0) + (seconds or 0.0)
        return Session(
            session_id=str(row["session_id"]),
            name=row["name"],
            started_at=row["start_us"] / 1e6,
            note=row["note"] or "",
            util_sum=sums[0] or 0.0,
            util_count=sums[1],
            power_sum=sums[2] or 0.0,
            power_count=sums[3],
            energy_j=self._energy_between(row["start_us"], until_us, mine),
            covered_s=covered_s,
        )

    def _energy_between(self, start_us: int, until_us: int, mine: set[int]) -> float:
        """Joules that GPUs used from the last reading before a start to the last before an end."""
        longest_us = round(max(61.0, 3 * self._playback.interval_s) * 1e6)
        before = self._playback.rows(
            "SELECT node_id, max(ts) FROM host_samples WHERE ts >= ? AND ts < ? GROUP BY node_id",
            stamp(start_us - longest_us),
            stamp(start_us),
        )
        inside = self._playback.rows(
            "SELECT node_id, min(ts), max(ts) FROM host_samples WHERE ts >= ? AND ts < ? GROUP BY node_id",
            stamp(start_us),
            stamp(until_us),
        )
        firsts = {node_id: first for node_id, first, _ in inside} | dict(before)
        begun = self._energies(firsts)
        ended = self._energies({node_id: last for node_id, _, last in inside})
        return sum(
            (mj - begun[gpu] if mj >= begun[gpu] else mj) / 1000
            for gpu, mj in ended.items()
            if gpu in begun and gpu in mine
        )

    def _energies(self, times: Mapping[int, Any]) -> dict[int, float]:
        """The energy counters (mJ) of each GPU at its node's time."""
        found = {}
        for gpu_id, ts, energy in self._playback.rows(
            "SELECT gpu_id, ts, energy_mj::DOUBLE FROM gpu_samples "
            "WHERE energy_mj IS NOT NULL AND ts IN (SELECT unnest(?::TIMESTAMP[]))",
            sorted(set(times.values())),
        ):
            place = self._playback.places.get(gpu_id)
            if place is not None and times.get(place[0]) == ts:
                found[gpu_id] = energy
        return found


class _Stretch:
    """Rows of one table by column: times, ids, and the catalogue's numbers that the file has."""

    def __init__(self, columns: Columns) -> None:
        self.us = columns["us"]
        self.ids = columns["id"]
        self._columns = columns

    def split(self, owners: Places) -> dict[int, Places]:
        """The rows of each owner, in order of time."""
        order = np.lexsort((self.us, owners))
        starts = np.flatnonzero(np.diff(owners[order], prepend=-2))
        parts = np.split(order, starts[1:]) if len(starts) else []
        return {int(owners[part[0]]): part for part in parts}

    def only(self, rows: Places) -> _Stretch:
        """These rows."""
        return _Stretch({name: values[rows] for name, values in self._columns.items()})

    def numbers(self, column: str) -> npt.NDArray[Any] | None:
        """A column's numbers, None where the file doesn't have it."""
        return self._columns.get(column)


def _fill_node(node: NodeState, newest_us: int, gpus: _Stretch, position: Places, hosts: _Stretch) -> None:
    """Fill a node's rings from its rows, those of its GPUs with their position in the node."""
    if node.gpu_history is None or node.host_history is None:
        return
    hosts = hosts.only(np.flatnonzero(hosts.us < newest_us)[-node.host_history.capacity :])
    if not len(times := hosts.us):
        return
    inside = np.flatnonzero((gpus.us >= times[0]) & (gpus.us <= times[-1]))
    gpus, position = gpus.only(inside), position[inside]
    ticks = np.searchsorted(times, gpus.us)
    values = np.full((len(times), len(node.facts), len(GPU_COLUMNS)), np.nan, dtype=np.float32)
    for column, name in enumerate(GPU_COLUMNS):
        if (numbers := gpus.numbers(name)) is None:
            continue
        if column == ENERGY:
            node.energy_base = _first_of_each(position, numbers, len(node.facts))
            numbers = numbers - node.energy_base[position]
        values[ticks, position, column] = numbers
    host_values = np.full((len(times), 1, len(HOST_COLUMNS)), np.nan, dtype=np.float32)
    for column, name in enumerate(HOST_COLUMNS):
        if (numbers := hosts.numbers(name)) is not None:
            host_values[:, 0, column] = numbers
    node.gpu_history.fill(times / 1e6, values)
    node.host_history.fill(times / 1e6, host_values)


def _first_of_each(position: Places, numbers: npt.NDArray[Any], gpus: int) -> npt.NDArray[np.float64]:
    """The first number of each GPU, 0 where there is none."""
    first = np.zeros(gpus)
    seen, where = np.unique(position, return_index=True)
    first[seen] = np.nan_to_num(numbers[where])
    return first


def _granted(machine: Machine) -> list[int]:
    pairs = zip(machine.gpu_ids, machine.hello.gpus, strict=True)
    return [gpu_id for gpu_id, gpu in pairs if machine.granted is None or gpu.index in machine.granted]


def _nan_for_null(metric: str) -> str:
    """A column that NumPy needs no mask for; single precision holds all but the energy counter."""
    kind = "DOUBLE" if metric == "energy_mj" else "FLOAT"
    return f"coalesce({metric}::{kind}, 'nan'::{kind}) AS {metric}"


def _stretches(times: list[int], now_us: int) -> list[tuple[int, int]]:
    """Short stretches that hold all of these times, and the one from the newest second up to now."""
    recent = times.pop()
    old = [us for us in times if us <= recent]
    return [*((us - 1, us) for us in old), (recent, now_us)]
