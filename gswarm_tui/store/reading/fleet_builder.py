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
from gswarm_tui.store.sql.summaries import LONGEST_INTERVAL_S, MINUTE_US

BLOCK_US = 3_600_000_000
_FOREVER_US = 1 << 62
_NOTHING = (0.0, 0.0, 0.0, 0.0, 0.0)
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
        self._hours: dict[int, list[float]] = {}
        self._known_hours = range(0)
        self._used_until: tuple[int, dict[int, float]] | None = None

    def fleet(self, at: float) -> Fleet:
        """Return the fleet with nodes, links, sessions, events and the last minutes. Raises StoreError."""
        reader, now_us = self._reader, micros(at)
        self._used_until = None
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
        fleet.energy_j = self._joules(self._used_by(now_us))
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
        used = self._used(now_us)
        for gpu_id, used_mj in used.items():
            if gpu_id in keys:
                gpu = gpus.get(keys[gpu_id], UNKNOWN)
                gpus[keys[gpu_id]] = gpu._replace(used_mj=gpu.used_mj + used_mj)
        return self._sessions(now_us), self._joules(used), gpus

    def _used(self, until_us: int) -> dict[int, float]:
        """Return the energy that each GPU of the recording used until a time, in mJ."""
        minutes_us = until_us // MINUTE_US * MINUTE_US
        unsummed = " OR ".join(
            f"ts >= make_timestamp({low}) AND ts < make_timestamp({high})"
            for low, high in [*self._unsummed(0, minutes_us), (minutes_us, until_us + 1)]
        )
        longest_ms = LONGEST_US // 1000
        return dict(
            self._reader.rows(
                "SELECT gpu_id, coalesce(sum(mj), 0)::DOUBLE FROM ("  # noqa: S608 (own names and numbers)
                f"SELECT gpu_id, used_mj AS mj FROM gpu_minutes WHERE minute < make_timestamp({minutes_us}) "
                "UNION ALL SELECT gpu_id, energy_used_mj FROM gpu_samples "
                f"WHERE coalesce(energy_used_ms, 0) <= {longest_ms} AND ({unsummed}) "
                "UNION ALL SELECT gpu_id, energy_used_mj FROM gpu_samples "
                f"WHERE energy_used_ms > {longest_ms} AND ts <= make_timestamp({until_us})) "
                f"WHERE gpu_id IN (SELECT unnest(?::INTEGER[])) GROUP BY gpu_id",
                list(self._reader.gpu_positions),
            )
        )

    def _used_by(self, now_us: int) -> dict[int, float]:
        """Return ``_used`` until a time, which several parts of the fleet of that time need."""
        if self._used_until is None or self._used_until[0] != now_us:
            self._used_until = now_us, self._used(now_us)
        return self._used_until[1]

    def _unsummed(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the ranges of time between ``low`` and ``high`` whose minutes have no sums."""
        minutes = self._reader.rows(
            "SELECT DISTINCT epoch_us(minute) FROM gpu_minutes "
            "WHERE gpu_id IN (SELECT unnest(?::INTEGER[])) AND minute >= ? AND minute < ? ORDER BY ALL",
            list(self._reader.gpu_positions),
            stamp(low),
            stamp(high),
        )
        starts = [minute for (minute,) in minutes]
        ends = [low, *(minute + MINUTE_US for minute in starts)]
        return [(end, start) for end, start in zip(ends, [*starts, high], strict=True) if end < start]

    def _joules(self, used: Mapping[int, float]) -> float:
        mine = self._mine()
        return sum(used_mj for gpu_id, used_mj in used.items() if gpu_id in mine) / 1000

    def _mine(self) -> set[int]:
        """Return the ids of the job's GPUs."""
        return {
            gpu_id
            for machine in self._reader.machines.values()
            for gpu_id, gpu in zip(machine.gpu_ids, machine.hello.gpus, strict=True)
            if machine.granted is None or gpu.minor is None or gpu.index in machine.granted
        }

    def _gpu_keys(self) -> dict[int, GpuKey]:
        """Return by id the key of each GPU, which all machines of its node have in common."""
        return {
            gpu_id: (machine.name, gpu.index, gpu.uuid)
            for machine in self._reader.machines.values()
            for gpu_id, gpu in zip(machine.gpu_ids, machine.hello.gpus, strict=True)
        }

    def _used_before(self, low_us: int, now_us: int) -> dict[int, float]:
        """Return the energy (mJ) that each GPU used until ``low_us``, and on earlier machines of its node."""
        keys, low, now = self._gpu_keys(), self._used(low_us), self._used_by(now_us)
        of_key: dict[GpuKey, float] = {}
        for gpu_id, key in keys.items():
            of_key[key] = of_key.get(key, 0.0) + now.get(gpu_id, 0.0)
        return {
            gpu_id: of_key[key] - now.get(gpu_id, 0.0) + low.get(gpu_id, 0.0) for gpu_id, key in keys.items()
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
        filling = HistoryLoader(self._reader, nodes, self._used_before(low_us, now_us))
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
        seen_us = min(until_us + LONGEST_US, now_us)
        util_sum, util_s, power_sum, power_s, energy_j = self._sums(start_us, until_us, seen_us)
        covered = self._reader.rows(
            f"SELECT node_id, sum({_inside_us('interval_ms', start_us, until_us)})::DOUBLE / 1e6 "  # noqa: S608
            "FROM host_samples WHERE ts > ? AND ts <= ? AND interval_ms IS NOT NULL GROUP BY node_id",
            stamp(start_us),
            stamp(seen_us),
        )
        covered_s: dict[str, float] = {}
        for node_id, seconds in covered:
            if (machine := self._reader.machines.get(node_id)) is not None:
                covered_s[machine.name] = covered_s.get(machine.name, 0.0) + (seconds or 0.0)
        return Session(
            session_id=str(row["session_id"]),
            name=row["name"],
            started_at=start_us / 1e6,
            note=row["note"] or "",
            util_sum=util_sum,
            util_s=util_s,
            power_sum=power_sum,
            power_s=power_s,
            energy_j=energy_j + self._long_steps(start_us, until_us, now_us),
            covered_s=covered_s,
        )

    def _sums(self, start_us: int, until_us: int, seen_us: int) -> list[float]:
        """Return the sums and seconds of utilisation and of power of the job's GPUs, and their joules.

        Whole hours are cached. They begin so late that no sample in them reaches back before the start.
        """
        first, last = -(-(start_us + LONGEST_US) // BLOCK_US), until_us // BLOCK_US
        if first >= last:
            return self._sum(start_us, seen_us + 1, start_us, until_us)
        self._sum_hours(first, last)
        edges = (
            self._sum(start_us, first * BLOCK_US, start_us, until_us),
            self._sum(last * BLOCK_US, seen_us + 1, start_us, until_us),
        )
        inside = [numbers for hour, numbers in sorted(self._hours.items()) if first <= hour < last]
        return [sum(numbers) for numbers in zip(*edges, *inside, strict=True)]

    def _sum(self, low: int, high: int, start_us: int, until_us: int) -> list[float]:
        rows = self._summed("0", low, high, start_us, until_us) if low < high else []
        return next((numbers for _, *numbers in rows), list(_NOTHING))

    def _sum_hours(self, first: int, last: int) -> None:
        """Cache the sums of the hours from ``first`` to before ``last`` that have samples."""
        known = self._known_hours or range(first, first)
        wider = range(min(first, known.start), max(last, known.stop))
        for low, high in (wider.start, known.start), (known.stop, wider.stop):
            if low < high:
                found = self._summed_minutes(low * BLOCK_US, high * BLOCK_US)
                for since, until in self._unsummed(low * BLOCK_US, high * BLOCK_US):
                    found += self._summed(f"epoch_us(ts) // {BLOCK_US}", since, until, 0, _FOREVER_US)
                for hour, *numbers in found:
                    before = self._hours.get(hour, _NOTHING)
                    self._hours[hour] = [sum(pair) for pair in zip(before, numbers, strict=True)]
        self._known_hours = wider

    def _summed_minutes(self, low: int, high: int) -> list[tuple[Any, ...]]:
        """Return the same sums as ``_summed`` by hour, of the minutes that are summed up."""
        return self._reader.rows(
            f"SELECT epoch_us(minute) // {BLOCK_US} AS hour, coalesce(sum(util_sum), 0)::DOUBLE / 1e6, "  # noqa: S608 (own names)
            "coalesce(sum(util_time), 0)::DOUBLE / 1e6, coalesce(sum(power_sum), 0)::DOUBLE / 1e8, "
            "sum(power_us)::DOUBLE / 1e6, coalesce(sum(used_mj), 0)::DOUBLE / 1000 "
            "FROM (SELECT *, len(util_pcts) - (util_pcts[-1] IS NULL)::INTEGER AS known, "
            "list_inner_product(util_pcts[:known]::DOUBLE[], util_us[:known]::DOUBLE[]) AS util_sum, "
            "list_sum(util_us[:known]) AS util_time FROM gpu_minutes "
            f"WHERE minute >= ? AND minute < ? {self._only_mine()}) GROUP BY hour",
            stamp(low),
            stamp(high),
        )

    def _summed(self, by: str, low: int, high: int, start_us: int, until_us: int) -> list[tuple[Any, ...]]:
        """Return the sums of the samples from ``low`` to before ``high``, as far as they lie in a period."""
        inside = _inside_us("interval_ms", start_us, until_us)
        return self._reader.rows(
            f"SELECT {by} AS block, coalesce(sum(util_pct * us), 0)::DOUBLE / 1e6, "  # noqa: S608 (own names)
            "coalesce(sum(us) FILTER (util_pct IS NOT NULL), 0)::DOUBLE / 1e6, "
            "coalesce(sum(power_w::DOUBLE * us), 0)::DOUBLE / 1e6, "
            "coalesce(sum(us) FILTER (power_w IS NOT NULL), 0)::DOUBLE / 1e6, "
            f"coalesce(sum({_part_mj(start_us, until_us)}) "
            f"FILTER (energy_used_ms <= {LONGEST_US // 1000}), 0)::DOUBLE / 1000 "
            f"FROM (SELECT *, {inside} AS us FROM gpu_samples WHERE ts >= ? AND ts < ? {self._only_mine()}) "
            "GROUP BY block",
            stamp(low),
            stamp(high),
        )

    def _long_steps(self, start_us: int, until_us: int, now_us: int) -> float:
        """Return the joules in a period of samples whose energy covers more than the longest interval."""
        ((joules,),) = self._reader.rows(
            f"SELECT coalesce(sum({_part_mj(start_us, until_us)}), 0)::DOUBLE / 1000 FROM gpu_samples "  # noqa: S608
            f"WHERE energy_used_ms > {LONGEST_US // 1000} AND ts > ? AND ts <= ? {self._only_mine()}",
            stamp(start_us),
            stamp(now_us),
        )
        return float(joules)

    def _only_mine(self) -> str:
        return (
            "AND gpu_id IN (SELECT gpu_id FROM gpus JOIN nodes USING (node_id) "  # noqa: S608 (a number)
            f"WHERE recording_id = {self._reader.recording_id} AND allocated IS NOT FALSE)"
        )


def _inside_us(covers_ms: str, start_us: int, until_us: int) -> str:
    """Return SQL for the µs that the time before a sample has in common with a period."""
    return (
        f"greatest(0, least(epoch_us(ts), {until_us}) "
        f"- greatest(epoch_us(ts) - 1000 * coalesce({covers_ms}, 0)::BIGINT, {start_us}))"
    )


def _part_mj(start_us: int, until_us: int) -> str:
    """Return SQL for the part of a sample's energy that lies in a period."""
    inside = _inside_us("energy_used_ms", start_us, until_us)
    return f"energy_used_mj::DOUBLE * {inside} / (1000 * nullif(energy_used_ms, 0))"


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
        used_before: Mapping[int, float],
    ) -> None:
        self._reader = reader
        self._nodes = [node for node, *_ in nodes]
        self._until_us = np.array([us for *_, us in nodes])
        self._place = np.full(max(machine.node_id for _, machine, _ in nodes) + 1, -1)
        self._place[[machine.node_id for _, machine, _ in nodes]] = np.arange(len(nodes))
        self._first_gpu = np.cumsum([0, *(len(node.facts) for node in self._nodes)])
        ids = [gpu_id for _, machine, _ in nodes for gpu_id in machine.gpu_ids]
        self._used = np.array([used_before.get(gpu_id, 0.0) for gpu_id in ids])

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
