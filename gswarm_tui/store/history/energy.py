"""Energy that a recording's GPUs had used at a time, from their counters at a few times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import NamedTuple

from gswarm_tui.fleet.events import GpuKey
from gswarm_tui.fleet.thresholds import NEIGHBOURS
from gswarm_tui.store.history.recording_reader import RecordedMachine, RecordingReader, seconds, stamp
from gswarm_tui.store.sql.summaries import LONGEST_INTERVAL_S

Answered = Mapping[int, tuple[float, datetime]]
"""What GPUs' counters said (mJ), and when."""

BLOCK_S = 600
"""Counters are looked through for falls in pieces of so long."""


class _Step(NamedTuple):
    """What a GPU used more from one reading to another than its counter grew: what that fell by.

    Where the reading before is of another machine of the node, one of an earlier boot or with other GPUs, it
    is what the counter grew, less what one that is back has of that.
    """

    last_gpu: int
    last_at: datetime
    gpu: int
    at: datetime
    more_mj: float


class EnergyMeter:
    """Joules of the job's GPUs: from the first reading of each to the last one, and what steps are more."""

    def __init__(self, playback: RecordingReader) -> None:
        self._playback = playback
        self._at_first: Answered = {}
        self._learned: set[tuple[int, int]] = set()
        self._looked = stamp(0)
        self._steps: set[_Step] = set()

    def mine(self) -> set[int]:
        """The job's GPUs."""
        return {gpu for machine in self._playback.machines.values() for gpu in _granted(machine)}

    def used(self, newest: Mapping[int, int]) -> float:
        """Joules used from the first samples on, up to a time of each node (µs). Raises StoreError."""
        machines = self._playback.machines.values()
        firsts = {machine.node_id: stamp(machine.lives[0].first_us) for machine in machines}
        if len(self._at_first) < len(self._playback.places):
            self._at_first = self._answers(firsts, "min")
        return self._growth(self._at_first, {node: stamp(us) for node, us in newest.items()})

    def last_told(self, newest: Mapping[int, int]) -> dict[GpuKey, tuple[float, float]]:
        """What each GPU's counter said last (mJ), and when, up to a time of each node (µs)."""
        told = self._answers({node: stamp(us) for node, us in newest.items()}, "max")
        gpus = [pair for node in newest for pair in _gpus(self._playback.machines[node]) if pair[1] in told]
        gpus.sort(key=lambda pair: told[pair[1]][1])
        return {key: (told[gpu][0], seconds(told[gpu][1])) for key, gpu in gpus}

    def between(self, start_us: int, until_us: int) -> float:
        """Joules in a session: from its first readings, or from those that these follow, to its last ones.

        Raises StoreError.
        """
        longest_us = round(LONGEST_INTERVAL_S * 1e6)
        lasts = dict(
            self._playback.rows(
                "SELECT node_id, max(ts) FROM host_samples WHERE ts >= ? AND ts < ? GROUP BY node_id",
                stamp(start_us - longest_us),
                stamp(start_us),
            )
        )
        inside = self._playback.rows(
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
        at_first = self._answers_at(firsts)
        entered = {gpu: told for gpu, told in self._answers_at(before).items() if gpu in at_first}
        begun = {**self._answers(firsts, "min"), **entered}
        return self._growth(begun, {node: last for node, *_, last in inside})

    def _growth(self, begun: Answered, until: Mapping[int, datetime]) -> float:
        """Joules from these answers to those at a later time of each node."""
        self._learn_falls(max(until.values(), default=self._looked))
        self._learn_machines()
        mine, ended = self.mine(), self._answers(until, "max")
        grown = {gpu: mj - begun[gpu][0] for gpu, (mj, _) in ended.items() if gpu in begun and gpu in mine}
        for step in self._steps:
            if step.gpu in grown and step.last_gpu in begun:
                inside = begun[step.last_gpu][1] <= step.last_at and step.at <= ended[step.gpu][1]
                grown[step.gpu] += step.more_mj if inside else 0.0
        return sum(mj for mj in grown.values() if mj > 0) / 1000

    def _learn_falls(self, until: datetime) -> None:
        """Look for counters that began anew: where a block's first isn't its least, or its last its most.

        One that begins anew twice in a block is seen if it had counted more before than after the first time.
        """
        if until <= self._looked:
            return
        for gpu, last_at, at, fell in self._playback.rows(
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
            max(stamp(0), self._looked - timedelta(seconds=2 * BLOCK_S)),
            until,
            BLOCK_S * 1_000_000,
        ):
            self._steps.add(_Step(gpu, last_at, gpu, at, fell))
        self._looked = until

    def _learn_machines(self) -> None:
        """Look at the runs of agents that are new here, of each node that was several machines."""
        machines: dict[str, list[RecordedMachine]] = {}
        for machine in self._playback.machines.values():
            machines.setdefault(machine.name, []).append(machine)
        several = [of_node for of_node in machines.values() if len(of_node) > 1]
        runs = [
            sorted((life.first_us, one.node_id) for one in of_node for life in one.lives)
            for of_node in several
        ]
        new = [[run for run in of_node[1:] if run not in self._learned] for of_node in runs]
        for together in zip_longest(*new):
            begun = [run for run in together if run is not None]
            self._learned |= set(begun)
            self._learn_begun({node: stamp(us) for us, node in begun}, machines)

    def _learn_begun(
        self, firsts: Mapping[int, datetime], machines: Mapping[str, Sequence[RecordedMachine]]
    ) -> None:
        """The steps to the first frames of runs from the last frames of other machines."""
        known = self._playback.machines
        alike = {one.node_id: at for node, at in firsts.items() for one in machines[known[node].name]}
        lasts = dict(
            self._playback.rows(
                "SELECT h.node_id, max(h.ts) FROM host_samples h JOIN (SELECT unnest(?::INTEGER[]) "
                "AS node_id, unnest(?::TIMESTAMP[]) AS first) f USING (node_id) "
                "WHERE h.ts < f.first GROUP BY h.node_id",
                list(alike),
                list(alike.values()),
            )
        )
        before, after = self._answers(lasts, "max"), self._answers(firsts, "min")
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

    def _answers(self, times: Mapping[int, datetime], nearest: str) -> Answered:
        """What the counter of each GPU said at its node's time.

        Of a GPU that didn't answer then, it is the last before it (``nearest`` "max"), or the next after it.
        """
        found = self._answers_at(times)
        places = self._playback.places
        silent = {gpu: times[node] for gpu, (node, _) in places.items() if node in times and gpu not in found}
        if silent:
            side, furthest = ("<=", max) if nearest == "max" else (">=", min)
            rows = self._playback.rows(
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

    def _answers_at(self, times: Mapping[int, datetime]) -> dict[int, tuple[float, datetime]]:
        """What the counters said of the GPUs that answered at their node's time."""
        found = {}
        for gpu, ts, mj in self._playback.rows(
            "SELECT gpu_id, ts, energy_mj::DOUBLE FROM gpu_samples "
            "WHERE energy_mj IS NOT NULL AND ts IN (SELECT unnest(?::TIMESTAMP[]))",
            sorted(set(times.values())),
        ):
            place = self._playback.places.get(gpu)
            if place is not None and times.get(place[0]) == ts:
                found[gpu] = mj, ts
        return found


def _gpus(machine: RecordedMachine) -> Iterable[tuple[GpuKey, int]]:
    """What each GPU is known by on all machines of the node, and its number on this."""
    pairs = zip(machine.hello.gpus, machine.gpu_ids, strict=True)
    return [((machine.name, gpu.index, gpu.uuid), gpu_id) for gpu, gpu_id in pairs]


def _granted(machine: RecordedMachine) -> Iterable[int]:
    pairs = zip(machine.gpu_ids, machine.hello.gpus, strict=True)
    return [gpu_id for gpu_id, gpu in pairs if machine.granted is None or gpu.index in machine.granted]
