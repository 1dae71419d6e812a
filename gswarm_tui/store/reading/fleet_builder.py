"""Building the fleet as it was at a time of a recording, with a few queries that are limited in time.

Rows lie in the file in the order of their times, so DuckDB reads only the row groups that a filter on ``ts``
selects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import NamedRows
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet import events
from gswarm_tui.fleet.energy import UNKNOWN, EnergyMeters, GpuEnergy
from gswarm_tui.fleet.frame_values import ENERGY
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.store.reading import recording_reader
from gswarm_tui.store.reading.frames import (
    ENERGY_USED,
    LISTINGS_US,
    PROCESSES_US,
    listings_by_time,
    locate_gpus,
    processes_by_time,
    read_frames,
)
from gswarm_tui.store.sql.schema import micros
from gswarm_tui.store.sql.summaries import coverage, energy_by_gpu, spans_of, sums

ROWS_AT_ONCE = 100_000
"""About this many GPU samples are read at once, to limit the memory beside the history."""
SECOND_US = 1_000_000


@dataclass(frozen=True)
class _Newest:
    """A node's newest frame at a time, its interval or 0, and the counts until then."""

    machine: recording_reader.RecordedMachine
    us: int
    interval_ms: int
    frames: int
    missed: int


class FleetBuilder:
    """Builds the fleet at any time of a recording."""

    def __init__(self, reader: recording_reader.RecordingReader) -> None:
        self._reader = reader

    def fleet(self, at: float) -> Fleet:
        """Return the fleet with nodes, links, sessions, events and the last minutes. Raises StoreError."""
        reader, now_us = self._reader, micros(at)
        newest = self._newest(now_us)
        fleet = self._introduced(newest, now_us)
        self._link(fleet, now_us)
        self._load_history(fleet, newest, now_us)
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
        for finding in reader.findings():
            if finding.since <= at:
                ended = finding.until is not None and finding.until <= at
                fleet.apply(events.FindingChanged(at, finding if ended else replace(finding, until=None)))
        return fleet

    def sums(self, at: float) -> tuple[list[Session], float, Mapping[events.GpuKey, GpuEnergy]]:
        """Return the sessions until a time, and the energy in joules and by GPU. Raises StoreError."""
        now_us = micros(at)
        keys = {
            gpu_id: (machine.name, gpu.index, gpu.uuid)
            for machine in self._reader.machines.values()
            for gpu_id, gpu in zip(machine.gpu_ids, machine.hello.gpus, strict=True)
        }
        gpus: dict[events.GpuKey, GpuEnergy] = {}
        for gpu_id, counter_mj, at_us in self._reader.rows(
            "SELECT gpu_id, arg_max(energy_mj, ts)::DOUBLE, epoch_us(max(ts)) FROM gpu_samples "
            "WHERE ts <= ? AND energy_mj IS NOT NULL GROUP BY gpu_id ORDER BY 3",
            recording_reader.stamp(now_us),
        ):
            if gpu_id in keys:
                gpus[keys[gpu_id]] = GpuEnergy(counter_mj, at_us / 1e6, 0.0)
        energy_j, used = self._used(now_us)
        for key, used_mj in used.items():
            gpus[key] = gpus.get(key, UNKNOWN)._replace(used_mj=used_mj)
        return self._sessions(now_us), energy_j, gpus

    def _used(self, until_us: int) -> tuple[float, dict[events.GpuKey, float]]:
        """Return the joules that the job's GPUs used until a time, and the mJ of each GPU."""
        mine_mj, used = 0.0, {}
        spans = spans_of(
            [(self._reader.recording_id, recording_reader.stamp(0), recording_reader.stamp(until_us))],
            recording_reader.stamp(until_us),
        )
        for node, index, uuid, mine, used_mj in self._reader.rows(energy_by_gpu(spans)):
            used[node, index, uuid] = used_mj
            mine_mj += used_mj if mine else 0.0
        return mine_mj / 1000, used

    def _introduced(self, newest: Mapping[str, _Newest], now_us: int) -> Fleet:
        """Return a fleet with the hellos of these machines and nothing else."""
        reader = self._reader
        intervals = reader.intervals(now_us)
        fleet = Fleet(reader.names, allocation=reader.allocation, derive_events=False)
        for found in newest.values():
            life = found.machine.life_at(found.us)
            for event in recording_reader.introduction(
                found.machine, life, recording_reader.interval_at(intervals, life.first_us)
            ):
                fleet.apply(event)
        fleet.apply(events.IntervalChanged(now_us / 1e6, recording_reader.interval_at(intervals, now_us)))
        fleet.apply(events.MetricsChanged(now_us / 1e6, reader.metrics(now_us)))
        return fleet

    def _newest(self, now_us: int) -> dict[str, _Newest]:
        """Return the newest frame of each node that had sent one."""
        found: dict[str, _Newest] = {}
        for node_id, us, interval_ms, count, missed in self._reader.rows(
            "SELECT node_id, epoch_us(max(ts)), arg_max(coalesce(interval_ms, 0), ts), count(*), "
            "sum(missed)::BIGINT FROM host_samples "
            "WHERE ts <= ? GROUP BY node_id ORDER BY max(ts)",
            recording_reader.stamp(now_us),
        ):
            machine = self._reader.machines.get(node_id)
            if machine is not None and machine.lives:
                before = found.get(machine.name)
                already, passed = (before.frames, before.missed) if before else (0, 0)
                counted = count + already, (missed or 0) + passed
                found[machine.name] = _Newest(machine, us, interval_ms, *counted)
        return found

    def _link(self, fleet: Fleet, now_us: int) -> None:
        """Set the phase of each link; a link without events was live if it carried frames."""
        changes: dict[str, list[events.LinkChanged]] = {}
        for event in self._reader.link_events(now_us):
            if (changed := recording_reader.link_change(event)) is not None and changed.node in fleet.nodes:
                changes.setdefault(changed.node, []).append(changed)
        for node in fleet.nodes.values():
            known = changes.get(node.name, [])
            if not known and node.hello is not None:
                known = [events.LinkChanged(node.name, 0.0, events.Phase.LIVE)]
            for changed in known:
                fleet.apply(changed)

    # The last minutes

    def _load_history(self, fleet: Fleet, newest: Mapping[str, _Newest], now_us: int) -> None:
        """Load the history of all nodes up to their newest frames, a few samples of all of them at once."""
        interval_us = round(self._reader.interval_s * 1e6)
        nodes = [(fleet.nodes[name], found) for name, found in newest.items()]
        longest = max(
            (node.gpu_history.capacity for node, _ in nodes if node.gpu_history is not None), default=0
        )
        low_us = now_us - longest * interval_us
        used = self._used(low_us)[1] if nodes else {}
        loading = [
            _Loading(
                node,
                found.machine.node_id,
                found.us,
                np.array([used.get((node.name, gpu.index, gpu.uuid), 0.0) for gpu in node.facts]),
                np.full(len(node.facts), np.nan),
            )
            for node, found in nodes
        ]
        ticks = max(1, ROWS_AT_ONCE // max(1, sum(len(node.facts) for node, _ in nodes)))
        for begin_us in range(low_us, now_us, ticks * interval_us):
            self._load_part(loading, begin_us, min(begin_us + ticks * interval_us, now_us))
        for one in loading:
            unread = np.full(len(one.used_mj), np.nan)
            one.node.energy = EnergyMeters(unread, one.read_at, one.used_mj)

    def _load_part(self, loading: Iterable[_Loading], low: int, high: int) -> None:
        """Add the samples after ``low`` up to ``high`` (microseconds) to the history of nodes."""
        reader = self._reader
        hosts = reader.table_slice("host_samples", f"node_id AS id, {_INTERVAL_S}", low, high)
        gpus = reader.table_slice("gpu_samples", f"gpu_id AS id, {ENERGY_USED}", low, high)
        owner, position = locate_gpus(reader, gpus.ids)
        host_values, gpu_values = hosts.table(HOST_COLUMNS), gpus.table(GPU_COLUMNS)
        steps_mj, intervals_s = gpus.keys("used_mj"), hosts.keys("interval_s")
        of_hosts, of_gpus = _rows_by_id(hosts.ids, hosts.us), _rows_by_id(owner, gpus.us)
        for one in loading:
            node = one.node
            if node.gpu_history is None or node.host_history is None or one.node_id not in of_hosts:
                continue
            rows = of_hosts[one.node_id]
            rows = rows[hosts.us[rows] < one.until_us]
            us = hosts.us[rows]
            of_node = of_gpus.get(one.node_id, np.zeros(0, np.intp))
            of_node = of_node[np.isin(gpus.us[of_node], us)]
            at, gpu = np.searchsorted(us, gpus.us[of_node]), position[of_node]
            table = np.full((len(us), *node.gpu_history.shape), np.nan, dtype=np.float32)
            table[at, gpu] = gpu_values[of_node, : table.shape[2]]
            steps = np.full(table.shape[:2], np.nan)
            steps[at, gpu] = steps_mj[of_node]
            used_mj = one.used_mj + np.cumsum(np.nan_to_num(steps), axis=0)
            unmeasured = np.isnan(steps) & np.isnan(table[:, :, ENERGY])
            table[:, :, ENERGY] = np.where(unmeasured, np.nan, used_mj)
            one.used_mj = used_mj[-1] if len(us) else one.used_mj
            read_at = np.where(np.isnan(steps), np.nan, us[:, np.newaxis] / 1e6)
            one.read_at = np.fmax(one.read_at, np.fmax.reduce(read_at, initial=np.nan))
            node.gpu_history.extend(us / 1e6, intervals_s[rows], table)
            node.host_history.extend(us / 1e6, intervals_s[rows], host_values[rows, np.newaxis])

    def _last_frames(self, newest: Mapping[str, _Newest], now_us: int) -> list[events.FrameArrived]:
        """Return each node's newest frame, with the processes, ports … that were listed last."""
        reader, wanted = self._reader, {(found.machine.name, found.us) for found in newest.values()}
        recent = now_us - max(PROCESSES_US, round(3e6 * reader.interval_s))
        looks = processes_by_time(reader, recent, now_us)
        processes = {reader.machines[node_id].name: looks[node_id, us] for node_id, us in sorted(looks)}
        listings: dict[str, dict[str, NamedRows]] = {}
        recent = now_us - max(LISTINGS_US, round(3e6 * reader.interval_s))
        for (node_id, _), listed in sorted(listings_by_time(reader, recent, now_us).items()):
            if node_id in reader.machines:
                listings.setdefault(reader.machines[node_id].name, {}).update(listed)
        newest_frames = []
        for begin_us in sorted({us - us % SECOND_US for _, us in wanted}):
            for arrived in read_frames(reader, begin_us - 1, begin_us + SECOND_US - 1):
                node = arrived.node
                if (node, round(arrived.ts * 1e6)) in wanted:
                    seen = arrived.frame.processes
                    seen = processes.get(node) if seen is None else seen
                    frame = replace(arrived.frame, processes=seen, listings=listings.get(node, {}))
                    newest_frames.append(replace(arrived, frame=frame))
        return newest_frames

    # Sessions

    def _sessions(self, now_us: int) -> list[Session]:
        """Return the sessions that had begun, with their sums until then."""
        begun = [row for row in self._reader.sessions() if row["start_us"] <= now_us]
        if not begun:
            return []
        number = self._reader.recording_id
        ends = [now_us if row["end_us"] is None else min(now_us, row["end_us"]) for row in begun]
        spans = spans_of(
            [
                (number, recording_reader.stamp(row["start_us"]), recording_reader.stamp(end))
                for row, end in zip(begun, ends, strict=True)
            ],
            recording_reader.stamp(now_us),
        )
        covered: list[dict[str, float]] = [{} for _ in begun]
        for place, node, covered_s in self._reader.rows(
            f"SELECT session_id, node, covered_s FROM ({coverage(spans)}) WHERE frames > 0"  # noqa: S608
        ):
            covered[place][node] = covered_s
        return [
            Session(
                session_id=str(row["session_id"]),
                name=row["name"],
                started_at=row["start_us"] / 1e6,
                note=row["note"] or "",
                ended_at=end / 1e6 if end == row["end_us"] else None,
                util_sum=util_sum,
                util_s=util_s,
                power_sum=power_sum,
                power_s=power_s,
                energy_j=energy_j,
                covered_s=of_session,
            )
            for row, end, of_session, (util_sum, util_s, power_sum, power_s, energy_j) in zip(
                begun, ends, covered, self._reader.rows(sums(spans)), strict=True
            )
        ]


def _before(frame: events.FrameArrived, found: _Newest) -> tuple[str, str, int, int]:
    """Return the state just before a frame, as ``Fleet.restore_sequences`` takes it."""
    return frame.node, frame.life, frame.frame.seq - 1, frame.frame.ts_ns - found.interval_ms * 1_000_000


_INTERVAL_S = "coalesce(interval_ms / 1000, 'nan'::DOUBLE)::FLOAT AS interval_s"


@dataclass
class _Loading:
    """A node whose history is loaded up to a time, the energy (mJ) of its GPUs, and when it was read."""

    node: NodeState
    node_id: int
    until_us: int
    used_mj: npt.NDArray[np.float64]
    read_at: npt.NDArray[np.float64]


def _rows_by_id(
    ids: recording_reader.Places, us: npt.NDArray[np.int64]
) -> dict[int, recording_reader.Places]:
    """Return the rows of each id in the order of their times."""
    order = np.lexsort((us, ids))
    found, starts = np.unique(ids[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=False))
