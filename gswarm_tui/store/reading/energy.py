"""Energy used by a recording's GPUs up to a time, from a few values of their counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from gswarm_tui.fleet.events import GpuKey
from gswarm_tui.fleet.thresholds import NEIGHBOURS
from gswarm_tui.store.reading.recording_reader import RecordedMachine, RecordingReader, seconds, stamp
from gswarm_tui.store.sql.summaries import LONGEST_INTERVAL_S

CounterValues = Mapping[int, tuple[float, datetime]]
"""GPUs' counter values (mJ) with their times."""

BLOCK_S = 600
"""The length of the pieces in which restarts of counters are searched."""


class _Step(NamedTuple):
    """Energy that a GPU used between two samples beyond the growth of its counter.

    Within a machine, the amount by which the counter fell. From one machine of a node to the next (another
    boot or other GPUs), the counter's growth, less the part that a machine which is back counts itself.
    """

    last_gpu: int
    last_at: datetime
    gpu: int
    at: datetime
    more_mj: float


class EnergyMeter:
    """Energy of the job's GPUs in joules: the growth of each counter, corrected by steps."""

    def __init__(self, reader: RecordingReader) -> None:
        self._reader = reader
        self._at_first: CounterValues = {}
        self._known_runs: set[tuple[int, int]] = set()
        self._searched_until = stamp(0)
        self._steps: set[_Step] = set()

    def mine(self) -> set[int]:
        """Return the ids of the job's GPUs."""
        return {gpu for machine in self._reader.machines.values() for gpu in _granted(machine)}

    def used(self, newest: Mapping[int, int]) -> float:
        """Return joules used from the first samples to a time of each node (µs). Raises StoreError."""
        machines = self._reader.machines.values()
        firsts = {machine.node_id: stamp(machine.lives[0].first_us) for machine in machines}
        if len(self._at_first) < len(self._reader.gpu_positions):
            self._at_first = self._values(firsts, "min")
        return self._growth(self._at_first, {node: stamp(us) for node, us in newest.items()})

    def last_values(self, newest: Mapping[int, int]) -> dict[GpuKey, tuple[float, float]]:
        """Return each counter's last value (mJ) and its time, up to a time of each node (µs)."""
        values = self._values({node: stamp(us) for node, us in newest.items()}, "max")
        gpus = [pair for node in newest for pair in _gpus(self._reader.machines[node]) if pair[1] in values]
        gpus.sort(key=lambda pair: values[pair[1]][1])
        return {key: (values[gpu][0], seconds(values[gpu][1])) for key, gpu in gpus}

    def between(self, start_us: int, until_us: int) -> float:
        """Return the joules of a session, from its first samples, or their direct predecessors, to its last.

        Raises StoreError.
        """
        longest_us = round(LONGEST_INTERVAL_S * 1e6)
        lasts = dict(
            self._reader.rows(
                "SELECT node_id, max(ts) FROM host_samples WHERE ts >= ? AND ts < ? GROUP BY node_id",
                stamp(start_us - longest_us),
                stamp(start_us),
            )
        )
        inside = self._reader.rows(
            "SELECT node_id, min(ts), arg_min(coalesce(interval_ms, 0), ts), max(ts) FROM host_samples "
            "WHERE ts >= ? AND ts < ? GROUP BY node_id",
            stamp(start_us),
            stamp(until_us),
        )
        firsts = {node: first for node, first, *_ in inside}
        before = {
            node: lasts[node]
            for node, first, interval_ms, _ in inside
            if node in lasts and first - lasts[node] < NEIGHBOURS * timedelta(milliseconds=interval_ms)
        }
        at_first = self._values_at(firsts)
        entered = {gpu: value for gpu, value in self._values_at(before).items() if gpu in at_first}
        begun = {**self._values(firsts, "min"), **entered}
        return self._growth(begun, {node: last for node, *_, last in inside})

    def _growth(self, begun: CounterValues, until: Mapping[int, datetime]) -> float:
        """Return joules from these counter values to those at a later time of each node."""
        self._find_restarts(max(until.values(), default=self._searched_until))
        self._add_machine_steps()
        mine, ended = self.mine(), self._values(until, "max")
        grown = {gpu: mj - begun[gpu][0] for gpu, (mj, _) in ended.items() if gpu in begun and gpu in mine}
        for step in self._steps:
            if step.gpu in grown and step.last_gpu in begun:
                inside = begun[step.last_gpu][1] <= step.last_at and step.at <= ended[step.gpu][1]
                grown[step.gpu] += step.more_mj if inside else 0.0
        return sum(mj for mj in grown.values() if mj > 0) / 1000

    def _find_restarts(self, until: datetime) -> None:
        """Find counters that restarted: a block's first value isn't its lowest, or its last not its highest.

        Two restarts within a block are found if the counter was higher before the first than after it.
        """
        if until <= self._searched_until:
            return
        for gpu, last_at, at, fell in self._reader.rows(
            """
            WITH blocks AS (
              SELECT gpu_id, min(ts) AS first_ts, max(ts) AS last_ts, min(energy_mj) AS low,
                     max(energy_mj) AS high, arg_min(energy_mj, ts) AS first, arg_max(energy_mj, ts) AS last
              FROM gpu_samples
              WHERE energy_mj IS NOT NULL AND ts >= ? AND ts <= ?
              GROUP BY gpu_id, epoch_us(ts) // ?
            ), followed AS (
              SELECT *, lag(last) OVER by_gpu AS last_before, lag(last_ts) OVER by_gpu AS before_ts
              FROM blocks
              WINDOW by_gpu AS (PARTITION BY gpu_id ORDER BY first_ts)
            ), suspects AS (
              SELECT gpu_id, coalesce(before_ts, first_ts) AS since, last_ts AS until
              FROM followed
              WHERE low < first OR high > last OR first < last_before
            ), readings AS (
              SELECT gpu_id, ts, energy_mj, lag(ts) OVER by_block AS before_ts,
                     lag(energy_mj) OVER by_block AS before_mj
              FROM gpu_samples JOIN suspects USING (gpu_id)
              WHERE energy_mj IS NOT NULL AND ts >= since AND ts <= until
              WINDOW by_block AS (PARTITION BY gpu_id, since ORDER BY ts)
            )
            SELECT gpu_id, before_ts, ts, before_mj::DOUBLE - energy_mj::DOUBLE
            FROM readings
            WHERE energy_mj < before_mj
            """,
            max(stamp(0), self._searched_until - timedelta(seconds=2 * BLOCK_S)),
            until,
            BLOCK_S * 1_000_000,
        ):
            self._steps.add(_Step(gpu, last_at, gpu, at, fell))
        self._searched_until = until

    def _add_machine_steps(self) -> None:
        """Add the steps of new agent runs, for nodes that were several machines."""
        machines: dict[str, list[RecordedMachine]] = {}
        for machine in self._reader.machines.values():
            machines.setdefault(machine.name, []).append(machine)
        several = [of_node for of_node in machines.values() if len(of_node) > 1]
        runs = [
            sorted((life.first_us, one.node_id) for one in of_node for life in one.lives)
            for of_node in several
        ]
        new = [[run for run in of_node[1:] if run not in self._known_runs] for of_node in runs]
        for together in zip_longest(*new):
            begun = [run for run in together if run is not None]
            self._known_runs |= set(begun)
            self._add_steps_to({node: stamp(us) for us, node in begun}, machines)

    def _add_steps_to(
        self, firsts: Mapping[int, datetime], machines: Mapping[str, Sequence[RecordedMachine]]
    ) -> None:
        """Add the steps from the last frames of other machines to the first frames of these runs."""
        known = self._reader.machines
        alike = {one.node_id: at for node, at in firsts.items() for one in machines[known[node].name]}
        lasts = dict(
            self._reader.rows(
                "SELECT h.node_id, max(h.ts) FROM host_samples h JOIN (SELECT unnest(?::INTEGER[]) "
                "AS node_id, unnest(?::TIMESTAMP[]) AS first) f USING (node_id) "
                "WHERE h.ts < f.first GROUP BY h.node_id",
                list(alike),
                list(alike.values()),
            )
        )
        before, after = self._values(lasts, "max"), self._values(firsts, "min")
        of_all = [pair for node in lasts for pair in _gpus(known[node]) if pair[1] in before]
        newest: dict[GpuKey, int] = dict(sorted(of_all, key=lambda pair: before[pair[1]][1]))
        for node in firsts:
            for key, gpu in _gpus(known[node]):
                last = newest.get(key, gpu)
                if last == gpu or gpu not in after:
                    continue
                now_mj, at = after[gpu]
                if (grew := now_mj - before[last][0]) > 0:
                    self._steps.add(_Step(last, before[last][1], gpu, at, grew))
                if gpu in before and (has := now_mj - before[gpu][0]) > 0:
                    self._steps.add(_Step(gpu, before[gpu][1], gpu, at, -has))

    def _values(self, times: Mapping[int, datetime], nearest: str) -> CounterValues:
        """Return the counter value of each GPU at its node's time.

        If it wasn't measured then: the last value before (``nearest`` "max"), or the next after it.
        """
        found = self._values_at(times)
        places = self._reader.gpu_positions
        silent = {gpu: times[node] for gpu, (node, _) in places.items() if node in times and gpu not in found}
        if silent:
            side, furthest = ("<=", max) if nearest == "max" else (">=", min)
            rows = self._reader.rows(
                f"SELECT gpu_id, arg_{nearest}(energy_mj, ts)::DOUBLE, {nearest}(ts) "  # noqa: S608 (own names)
                "FROM gpu_samples JOIN (SELECT unnest(?::INTEGER[]) AS gpu_id, "
                "unnest(?::TIMESTAMP[]) AS bound) USING (gpu_id) "
                f"WHERE energy_mj IS NOT NULL AND ts {side} bound AND ts {side} ? GROUP BY gpu_id",
                list(silent),
                list(silent.values()),
                furthest(silent.values()),
            )
            found |= {gpu: (mj, ts) for gpu, mj, ts in rows}
        return found

    def _values_at(self, times: Mapping[int, datetime]) -> dict[int, tuple[float, datetime]]:
        """Return the counter values that were measured exactly at their node's time."""
        found = {}
        for gpu, ts, mj in self._reader.rows(
            "SELECT gpu_id, ts, energy_mj::DOUBLE FROM gpu_samples "
            "WHERE energy_mj IS NOT NULL AND ts IN (SELECT unnest(?::TIMESTAMP[]))",
            sorted(set(times.values())),
        ):
            place = self._reader.gpu_positions.get(gpu)
            if place is not None and times.get(place[0]) == ts:
                found[gpu] = mj, ts
        return found


def _gpus(machine: RecordedMachine) -> Iterable[tuple[GpuKey, int]]:
    """Return the key of each GPU on all machines of its node, and its id on this machine."""
    pairs = zip(machine.hello.gpus, machine.gpu_ids, strict=True)
    return [((machine.name, gpu.index, gpu.uuid), gpu_id) for gpu, gpu_id in pairs]


def _granted(machine: RecordedMachine) -> Iterable[int]:
    pairs = zip(machine.gpu_ids, machine.hello.gpus, strict=True)
    return [gpu_id for gpu_id, gpu in pairs if machine.granted is None or gpu.index in machine.granted]
