"""Energy that a recording's GPUs had used at a time, from their counters at a few times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import zip_longest
from typing import Any, NamedTuple

from gswarm_tui.fleet.events import GpuKey
from gswarm_tui.fleet.thresholds import NEIGHBOURS
from gswarm_tui.store.machines import Machine
from gswarm_tui.store.playback import Playback, stamp
from gswarm_tui.store.summing import LONGEST_INTERVAL_S


class _Step(NamedTuple):
    """What a GPU used more from the last frame before an agent's run to its first than its readings make.

    That is what its counter fell by. Where the frame before is of another machine of the node, one of an
    earlier boot or with other GPUs, it is what the counter grew, less what one that is back has of that.
    """

    last_node: int
    last_at: Any
    node: int
    at: Any
    gpu: int
    more_mj: float


class Meter:
    """Joules of the job's GPUs: from the first reading of each to the last one, and over where runs began."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._at_first: dict[int, float] = {}
        self._learned: set[tuple[int, int]] = set()
        self._steps: list[_Step] = []

    def mine(self) -> set[int]:
        """The job's GPUs."""
        return {gpu for machine in self._playback.machines.values() for gpu in _granted(machine)}

    def used(self, newest: Mapping[int, int]) -> float:
        """Joules used from the first samples on, up to a time of each node (µs). Raises StoreError."""
        machines = self._playback.machines.values()
        firsts = {machine.node_id: stamp(machine.lives[0].first_us) for machine in machines}
        if len(self._at_first) < len(self._playback.places):
            self._at_first = self._counters(firsts, "min")
        return self._growth(self._at_first, firsts, {node: stamp(us) for node, us in newest.items()})

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
        at_first = self._counters_at(firsts)
        entered = {gpu: mj for gpu, mj in self._counters_at(before).items() if gpu in at_first}
        begun = self._counters(firsts, "min") | entered
        return self._growth(begun, firsts | before, {node: last for node, *_, last in inside})

    def _growth(
        self, begun: Mapping[int, float], since: Mapping[int, Any], until: Mapping[int, Any]
    ) -> float:
        """Joules from these readings (mJ) to those at a later time of each node."""
        self._learn_steps()
        mine, ended = self.mine(), self._counters(until, "max")
        grown = {gpu: mj - begun[gpu] for gpu, mj in ended.items() if gpu in begun and gpu in mine}
        for step in self._steps:
            if (
                step.gpu in grown
                and step.last_node in since
                and step.node in until
                and since[step.last_node] <= step.last_at
                and step.at <= until[step.node]
            ):
                grown[step.gpu] += step.more_mj
        return sum(mj for mj in grown.values() if mj > 0) / 1000

    def _learn_steps(self) -> None:
        """Look at the runs of agents that are new here, of each node one after the other."""
        runs: dict[str, list[tuple[int, int]]] = {}
        for machine in self._playback.machines.values():
            runs.setdefault(machine.name, []).extend(
                (life.first_us, machine.node_id) for life in machine.lives
            )
        new = [[run for run in sorted(one)[1:] if run not in self._learned] for one in runs.values()]
        for together in zip_longest(*new):
            begun = [run for run in together if run is not None]
            self._learned |= set(begun)
            self._learn_steps_to({node: stamp(us) for us, node in begun})

    def _learn_steps_to(self, firsts: Mapping[int, Any]) -> None:
        """The steps to the first frames of runs, from the last before them of all machines of these names."""
        machines = self._playback.machines
        alike = {
            other.node_id: at
            for node, at in firsts.items()
            for other in machines.values()
            if other.name == machines[node].name
        }
        lasts = dict(
            self._playback.rows(
                "SELECT h.node_id, max(h.ts) FROM host_samples h JOIN (SELECT unnest(?::INTEGER[]) "
                "AS node_id, unnest(?::TIMESTAMP[]) AS first) f USING (node_id) "
                "WHERE h.ts < f.first GROUP BY h.node_id",
                list(alike),
                list(alike.values()),
            )
        )
        before, after = self._counters_at(lasts), self._counters_at(firsts)
        newest: dict[GpuKey, int] = {}
        for node in sorted(lasts, key=lambda node: lasts[node]):
            newest |= {key: gpu for key, gpu in _gpus(machines[node]) if gpu in before}
        for node, at in firsts.items():
            for key, gpu in _gpus(machines[node]):
                if gpu not in after:
                    continue
                more: dict[int, float] = {}
                if gpu in before:
                    more[node] = before[gpu] - after[gpu]
                if key in newest:
                    last = self._playback.places[newest[key]][0]
                    more[last] = more.get(last, 0.0) + max(0.0, after[gpu] - before[newest[key]])
                for last, mj in more.items():
                    if mj:
                        self._steps.append(_Step(last, lasts[last], node, at, gpu, mj))

    def _counters(self, times: Mapping[int, Any], nearest: str) -> dict[int, float]:
        """The energy counters (mJ) of each GPU at its node's time.

        Of a GPU that didn't answer then, it is the last before it (``nearest`` "max"), or the next after it.
        """
        found = self._counters_at(times)
        silent = [gpu for gpu, (node_id, _) in self._playback.places.items() if node_id in times]
        silent = sorted(set(silent) - found.keys())
        if silent:
            bound = "<=" if nearest == "max" else ">="
            rows = self._playback.rows(
                f"SELECT gpu_id, arg_{nearest}(energy_mj, ts)::DOUBLE FROM gpu_samples "  # noqa: S608 (own names)
                f"WHERE energy_mj IS NOT NULL AND ts {bound} ? AND gpu_id IN (SELECT unnest(?::INTEGER[])) "
                "GROUP BY gpu_id",
                max(times.values()) if nearest == "max" else min(times.values()),
                silent,
            )
            found |= dict(rows)
        return found

    def _counters_at(self, times: Mapping[int, Any]) -> dict[int, float]:
        """The energy counters (mJ) of the GPUs that answered at their node's time."""
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


def _gpus(machine: Machine) -> Iterable[tuple[GpuKey, int]]:
    """What each GPU is known by on all machines of the node, and its number on this."""
    pairs = zip(machine.hello.gpus, machine.gpu_ids, strict=True)
    return [((machine.name, gpu.index, gpu.uuid), gpu_id) for gpu, gpu_id in pairs]


def _granted(machine: Machine) -> Iterable[int]:
    pairs = zip(machine.gpu_ids, machine.hello.gpus, strict=True)
    return [gpu_id for gpu_id, gpu in pairs if machine.granted is None or gpu.index in machine.granted]
