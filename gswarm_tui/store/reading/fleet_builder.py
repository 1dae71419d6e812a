"""Building the fleet as it was at a time of a recording, with a few queries that are limited in time.

Rows lie in the file in the order of their times, so DuckDB reads only the row groups that a filter on ``ts``
selects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import Processes
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.energy import UNKNOWN, EnergyMeters, GpuEnergy
from gswarm_tui.fleet.events import (
    FrameArrived,
    GpuKey,
    IntervalChanged,
    LinkChanged,
    MetricsChanged,
    Phase,
)
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.history import History, NodeHistory
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.store.figures.definitions import LONGEST_INTERVAL_S
from gswarm_tui.store.reading.frames import (
    ENERGY_USED,
    locate_gpus,
    process_times,
    processes_by_time,
    read_frames,
)
from gswarm_tui.store.reading.recording_reader import (
    Places,
    RecordedMachine,
    RecordingReader,
    interval_at,
    introduction,
    link_change,
    stamp,
)
from gswarm_tui.store.sql.schema import micros
from gswarm_tui.store.sql.summaries import ROLLED, Spans, coverage, energy_by_gpu, one_span, sums

LONGEST_US = LONGEST_INTERVAL_S * 1_000_000
RECENT_S = 300.0
"""The history that ``fleet`` loads: as much as the first screen shows."""
PIECE_ROWS = 100_000
"""About this many GPU samples are read at once, to limit the memory beside the history."""
TOGETHER_US = 1_000_000
"""Times within this range are read with one query."""
PROCESSES_S = 10.0
"""Processes that were listed last within this time are still shown."""


@dataclass(frozen=True)
class _Newest:
    """A node's newest frame at a time, its interval or 0, and the counts until then.

    ``ends`` are the times of the newest frames of all machines that the node was.
    """

    machine: RecordedMachine
    us: int
    interval_ms: int
    frames: int
    missed: int
    ends: Mapping[int, int]


class FleetBuilder:
    """Builds the fleet at any time of a recording; caches results that don't depend on the time."""

    def __init__(self, reader: RecordingReader) -> None:
        self._reader = reader
        self._ended: dict[str, Session] = {}

    def fleet(self, at: float) -> Fleet:
        """Return the fleet with nodes, links, sessions, events and the last minutes. Raises StoreError."""
        reader, now_us = self._reader, micros(at)
        newest = self._newest(now_us)
        fleet = self._introduced(newest, now_us)
        self._link(fleet, now_us)
        self._fill(fleet, {name: (found, found.us - 1) for name, found in newest.items()}, now_us, RECENT_S)
        frames = self._last_frames(newest, now_us)
        fleet.restore_sequences(_before(frame, newest[frame.node]) for frame in frames)
        fleet.apply_frames(frames)
        for found in newest.values():
            node = fleet.nodes[found.machine.name]
            node.frames, node.missed_ticks = found.frames, found.missed
        fleet.energy_j = self._used(now_us)[0]
        for session in self._sessions(now_us):
            fleet.sessions.restore(session)
        for event in reader.logged_events(0, now_us):
            fleet.apply(event)
        return fleet

    def histories(self, at: float) -> dict[str, NodeHistory]:
        """Return the whole history of nodes whose ``fleet`` has less, by name. Raises StoreError."""
        now_us = micros(at)
        newest = self._newest(now_us)
        fleet = self._introduced(newest, now_us)
        longer = {
            name: (found, found.us)
            for name, found in newest.items()
            if (ring := fleet.nodes[name].gpu_history) is not None
            and ring.capacity * self._reader.interval_s > RECENT_S
        }
        self._fill(fleet, longer, now_us, np.inf)
        return {
            node.name: NodeHistory(node.gpu_history, node.host_history)
            for node in (fleet.nodes[name] for name in longer)
            if node.gpu_history is not None and node.host_history is not None
        }

    def sums(self, at: float) -> tuple[list[Session], float, Mapping[GpuKey, GpuEnergy]]:
        """Return the sessions until a time, and the energy in joules and by GPU. Raises StoreError."""
        now_us, keys = micros(at), self._gpu_keys()
        gpus: dict[GpuKey, GpuEnergy] = {}
        for gpu_id, counter_mj, at_us in self._reader.rows(
            "SELECT gpu_id, arg_max(energy_mj, ts)::DOUBLE, epoch_us(max(ts)) FROM gpu_samples "
            "WHERE ts <= ? AND energy_mj IS NOT NULL GROUP BY gpu_id ORDER BY 3",
            stamp(now_us),
        ):
            if gpu_id in keys:
                gpus[keys[gpu_id]] = GpuEnergy(counter_mj, at_us / 1e6, 0.0)
        energy_j, used = self._used(now_us)
        for key, used_mj in used.items():
            gpus[key] = gpus.get(key, UNKNOWN)._replace(used_mj=used_mj)
        return self._sessions(now_us), energy_j, gpus

    def _used(self, until_us: int) -> tuple[float, dict[GpuKey, float]]:
        """Return the joules that the job's GPUs used until a time, and the mJ of each GPU."""
        mine_mj, used = 0.0, {}
        for node, index, uuid, mine, used_mj in self._reader.rows(
            energy_by_gpu(self._span(0, until_us, until_us))
        ):
            used[node, index, uuid] = used_mj
            mine_mj += used_mj if mine else 0.0
        return mine_mj / 1000, used

    def _span(self, start_us: int, until_us: int, now_us: int) -> Spans:
        """Return a period as far as it was recorded at a time."""
        ((first, last),) = self._reader.rows(ROLLED, self._reader.recording_id)
        bounds = stamp(start_us), stamp(until_us)
        return one_span(self._reader.recording_id, *bounds, (first, last), stamp(now_us))

    def _gpu_keys(self) -> dict[int, GpuKey]:
        """Return by id the key of each GPU, which all machines of its node have in common."""
        return {
            gpu_id: (machine.name, gpu.index, gpu.uuid)
            for machine in self._reader.machines.values()
            for gpu_id, gpu in zip(machine.gpu_ids, machine.hello.gpus, strict=True)
        }

    def _introduced(self, newest: Mapping[str, _Newest], now_us: int) -> Fleet:
        """Return a fleet with the hellos of these machines and nothing else."""
        reader = self._reader
        intervals = reader.intervals(now_us)
        fleet = Fleet(reader.names, allocation=reader.allocation, derive_events=False)
        for found in newest.values():
            life = found.machine.life_at(found.us)
            for event in introduction(found.machine, life, interval_at(intervals, life.first_us)):
                fleet.apply(event)
        fleet.apply(IntervalChanged(now_us / 1e6, interval_at(intervals, now_us)))
        fleet.apply(MetricsChanged(now_us / 1e6, reader.metrics(now_us)))
        return fleet

    def _newest(self, now_us: int) -> dict[str, _Newest]:
        """Return the newest frame of each node that had sent one."""
        found: dict[str, _Newest] = {}
        for node_id, us, interval_ms, count, missed in self._reader.rows(
            "SELECT node_id, epoch_us(max(ts)), arg_max(coalesce(interval_ms, 0), ts), count(*), "
            "sum(missed)::BIGINT FROM host_samples "
            "WHERE ts <= ? GROUP BY node_id ORDER BY max(ts)",
            stamp(now_us),
        ):
            machine = self._reader.machines.get(node_id)
            if machine is not None and machine.lives:
                before = found.get(machine.name)
                already, passed, ends = (before.frames, before.missed, before.ends) if before else (0, 0, {})
                counted = count + already, (missed or 0) + passed
                found[machine.name] = _Newest(machine, us, interval_ms, *counted, {**ends, node_id: us})
        return found

    def _link(self, fleet: Fleet, now_us: int) -> None:
        """Set the phase of each link; a link without events was live if it carried frames."""
        changes: dict[str, list[LinkChanged]] = {}
        for event in self._reader.link_events(now_us):
            if (changed := link_change(event)) is not None and changed.node in fleet.nodes:
                changes.setdefault(changed.node, []).append(changed)
        for node in fleet.nodes.values():
            known = changes.get(node.name, [])
            if not known and node.hello is not None:
                known = [LinkChanged(node.name, 0.0, Phase.LIVE)]
            for changed in known:
                fleet.apply(changed)

    # The last minutes

    def _fill(
        self, fleet: Fleet, until: Mapping[str, tuple[_Newest, int]], now_us: int, longest_s: float
    ) -> None:
        """Load the history of nodes up to a time of each, with two queries for each piece."""
        nodes = [(fleet.nodes[name], found.machine, us) for name, (found, us) in until.items()]
        rings = [node.gpu_history.capacity for node, *_ in nodes if node.gpu_history is not None]
        if not rings:
            return
        low_us = now_us - round(min(max(rings) * self._reader.interval_s, longest_s) * 1e6)
        ticks = max(1, PIECE_ROWS // max(1, sum(len(node.facts) for node, *_ in nodes)))
        piece_us = round(ticks * self._reader.interval_s * 1e6)
        filling = HistoryLoader(self._reader, nodes, self._used(low_us)[1])
        for begin_us in range(low_us, now_us, piece_us):
            filling.add(begin_us, min(begin_us + piece_us, now_us))
        filling.end()

    def _last_frames(self, newest: Mapping[str, _Newest], now_us: int) -> list[FrameArrived]:
        """Return each node's newest frame, with the processes that were listed last."""
        reader, wanted = self._reader, {(found.machine.name, found.us) for found in newest.values()}
        recent = now_us - round(max(PROCESSES_S, 3 * reader.interval_s) * 1e6)
        looked = {times[-1] for times in process_times(reader, recent, now_us).values()}
        processes: dict[str, Processes] = {}
        for low, high in _time_ranges(looked):
            looks = processes_by_time(reader, low, high)
            processes |= {reader.machines[node_id].name: looks[node_id, us] for node_id, us in sorted(looks)}
        frames = [
            frame
            for low, high in _time_ranges({us for _, us in wanted})
            for frame in read_frames(reader, low, high)
            if (frame.node, round(frame.ts * 1e6)) in wanted
        ]
        return [
            frame
            if frame.frame.processes is not None
            else replace(frame, frame=replace(frame.frame, processes=processes.get(frame.node)))
            for frame in frames
        ]

    # Sessions

    def _sessions(self, now_us: int) -> list[Session]:
        """Return the sessions that had begun, with their sums until then."""
        sessions = []
        for row in self._reader.sessions():
            if row["start_us"] > now_us:
                continue
            name, over = str(row["session_id"]), row["end_us"] is not None and row["end_us"] <= now_us
            session = self._ended.get(name) if over else None
            if session is None:
                session = self._measured(row, row["end_us"] if over else now_us, now_us)
                session.ended_at = row["end_us"] / 1e6 if over else None
                if over and now_us >= row["end_us"] + LONGEST_US:
                    self._ended[name] = session
            texts = {"name": row["name"], "note": row["note"] or ""}  # they may have changed since
            sessions.append(replace(session, covered_s=dict(session.covered_s), **texts))
        return sessions

    def _measured(self, row: Mapping[str, Any], until_us: int, now_us: int) -> Session:
        start_us = row["start_us"]
        span = self._span(start_us, until_us, now_us)
        ((util_sum, util_s, power_sum, power_s, energy_j),) = self._reader.rows(sums(span))
        covered = self._reader.rows(f"SELECT node, covered_s FROM ({coverage(span)}) WHERE frames > 0")  # noqa: S608
        return Session(
            session_id=str(row["session_id"]),
            name=row["name"],
            started_at=start_us / 1e6,
            note=row["note"] or "",
            util_sum=util_sum,
            util_s=util_s,
            power_sum=power_sum,
            power_s=power_s,
            energy_j=energy_j,
            covered_s=dict(covered),
        )


def _before(frame: FrameArrived, found: _Newest) -> tuple[str, str, int, int]:
    """Return the state just before a frame, as ``Fleet.restore_sequences`` takes it."""
    return frame.node, frame.life, frame.frame.seq - 1, frame.frame.ts_ns - found.interval_ms * 1_000_000


def _time_ranges(times: Iterable[int]) -> list[tuple[int, int]]:
    """Return short time ranges that hold all of these times (microseconds)."""
    ranges: list[tuple[int, int]] = []
    for us in sorted(times):
        if ranges and us - ranges[-1][0] <= TOGETHER_US:
            ranges[-1] = ranges[-1][0], us
        else:
            ranges.append((us - 1, us))
    return ranges


_INTERVAL_S = "coalesce(interval_ms / 1000, 'nan'::DOUBLE)::FLOAT AS interval_s"


class HistoryLoader:
    """Loads the history of nodes, each of one machine and up to a time (Unix microseconds)."""

    def __init__(
        self,
        reader: RecordingReader,
        nodes: Sequence[tuple[NodeState, RecordedMachine, int]],
        used_before: Mapping[GpuKey, float],
    ) -> None:
        self._reader = reader
        self._nodes = [node for node, *_ in nodes]
        self._until_us = np.array([us for *_, us in nodes])
        self._place = np.full(max(machine.node_id for _, machine, _ in nodes) + 1, -1)
        self._place[[machine.node_id for _, machine, _ in nodes]] = np.arange(len(nodes))
        self._first_gpu = np.cumsum([0, *(len(node.facts) for node in self._nodes)])
        keys = [(node.name, gpu.index, gpu.uuid) for node, machine, _ in nodes for gpu in machine.hello.gpus]
        self._used = np.array([used_before.get(key, 0.0) for key in keys])

    def add(self, low: int, high: int) -> None:
        """Add the samples after ``low`` up to ``high`` (microseconds), in order. Raises StoreError."""
        hosts = self._reader.table_slice("host_samples", f"node_id AS id, {_INTERVAL_S}", low, high)
        node = self._known(hosts.ids)
        rows = np.flatnonzero((node >= 0) & (hosts.us <= self._until_us[node]))
        rows = rows[np.lexsort((hosts.us[rows], node[rows]))]
        node, us, interval_s = node[rows], hosts.us[rows], hosts.keys("interval_s")[rows]

        def fill_hosts(table: npt.NDArray[np.float32], at: Places) -> None:
            for column, name in enumerate(HOST_COLUMNS):
                if (numbers := hosts.numbers(name, rows[at])) is not None:
                    table[:, 0, column] = numbers

        self._fill(node, us, interval_s, lambda state: state.host_history, fill_hosts)
        gpus = self._reader.table_slice("gpu_samples", f"gpu_id AS id, {ENERGY_USED}", low, high)
        owner, position = locate_gpus(self._reader, gpus.ids)
        gpu_node = self._known(owner)
        reading = _index_of(
            (us - low) * len(self._nodes) + node, (gpus.us - low) * len(self._nodes) + gpu_node
        )
        taken = np.flatnonzero((reading >= 0) & (gpu_node >= 0))
        taken = taken[np.argsort(gpus.us[taken], kind="stable")]
        gpu, position, reading = (
            self._first_gpu[gpu_node[taken]] + position[taken],
            position[taken],
            reading[taken],
        )
        steps, counters = gpus.keys("used_mj")[taken], gpus.numbers(GPU_COLUMNS[ENERGY], taken)
        used = self._add_up(gpu, np.nan_to_num(steps))
        if counters is not None:
            used[np.isnan(steps) & np.isnan(counters)] = np.nan

        def fill_gpus(table: npt.NDArray[np.float32], at: Places) -> None:
            row = np.full(len(us), -1)
            row[at] = np.arange(len(at))
            some = np.flatnonzero(row[reading] >= 0)
            for column, name in enumerate(GPU_COLUMNS):
                numbers = used[some] if column == ENERGY else gpus.numbers(name, taken[some])
                if numbers is not None:
                    table[row[reading[some]], position[some], column] = numbers

        self._fill(node, us, interval_s, lambda state: state.gpu_history, fill_gpus)

    def _add_up(self, gpu: Places, used_mj: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the energy (mJ) that each GPU used up to each of these samples, which are in order."""
        order = np.argsort(gpu, kind="stable")
        total = np.cumsum(used_mj[order])
        starts = np.flatnonzero(np.diff(gpu[order], prepend=-1))
        before = np.concatenate(([0.0], total))[starts]
        total += np.repeat(self._used[gpu[order][starts]] - before, np.diff(starts, append=len(order)))
        self._used[gpu[order]] = total  # the last one counts
        sums = np.empty_like(total)
        sums[order] = total
        return sums

    def end(self) -> None:
        """Set the energy after all samples were added."""
        for node, (first, last) in zip(self._nodes, pairwise(self._first_gpu.tolist()), strict=True):
            unread = np.full(last - first, np.nan)
            node.energy = EnergyMeters(unread, unread, self._used[first:last].copy())

    def _known(self, ids: Places) -> Places:
        """Return the positions of nodes among those to be loaded, negative for others."""
        inside = (ids >= 0) & (ids < len(self._place))
        return np.where(inside, self._place[np.where(inside, ids, 0)], -1)

    def _fill(
        self,
        node: Places,
        us: Places,
        interval_s: npt.NDArray[np.float32],
        history: Callable[[NodeState], History | None],
        fill: Callable[[npt.NDArray[np.float32], Places], None],
    ) -> None:
        """Fill the history with samples that are in the order of nodes and times."""
        alike: dict[tuple[int, ...], list[tuple[Places, History]]] = {}
        for at in _runs(node):
            if (ring := history(self._nodes[node[at[0]]])) is not None:
                alike.setdefault(ring.shape, []).append((at, ring))
        for shape, parts in alike.items():
            table = np.full((sum(len(at) for at, _ in parts), *shape), np.nan, dtype=np.float32)
            fill(table, np.concatenate([at for at, _ in parts]))
            end = 0
            for at, ring in parts:
                begin, end = end, end + len(at)
                ring.extend(us[at] / 1e6, interval_s[at], table[begin:end])


def _runs(numbers: Places) -> Iterator[Places]:
    """Return the indices of each run of equal numbers."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for first, end in pairwise([*starts.tolist(), len(numbers)]):
        yield np.arange(first, end)


def _index_of(keys: Places, wanted: Places) -> Places:
    """Return the index of each wanted number among the keys, -1 if missing."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    nearest = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[nearest] == wanted, nearest, -1)
