"""Energy that a recording's GPUs had used at a time, from their counters at a few times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import zip_longest
from typing import Any

from gswarm_tui.fleet.thresholds import NEIGHBOURS
from gswarm_tui.store.machines import Life, Machine
from gswarm_tui.store.playback import Playback, stamp
from gswarm_tui.store.summing import LONGEST_INTERVAL_S


class Meter:
    """Joules of the job's GPUs. A counter that fell when an agent's run began counts as nothing there."""

    def __init__(self, playback: Playback) -> None:
        self._playback = playback
        self._at_first: dict[int, float] = {}
        self._lives: dict[int, tuple[Life, ...]] = {}
        self._falls: list[tuple[int, Any, dict[int, float]]] = []

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
        self._learn_falls()
        mine, ended = self.mine(), self._counters(until, "max")
        grown = {gpu: mj - begun[gpu] for gpu, mj in ended.items() if gpu in begun and gpu in mine}
        for node_id, at, lost in self._falls:
            if node_id in until and node_id in since and since[node_id] < at <= until[node_id]:
                for gpu, mj in lost.items():
                    if gpu in grown:
                        grown[gpu] += mj
        return sum(mj for mj in grown.values() if mj > 0) / 1000

    def _learn_falls(self) -> None:
        """By how much (mJ) counters fell from the last frame before an agent's run to its first."""
        machines = self._playback.machines
        lives = {node_id: machine.lives for node_id, machine in machines.items()}
        new = [
            [(node_id, life.first_us) for life in runs[max(1, len(self._lives.get(node_id, ()))) :]]
            for node_id, runs in lives.items()
        ]
        self._lives = lives
        for together in zip_longest(*new):
            self._learn_falls_at({one[0]: stamp(one[1]) for one in together if one is not None})

    def _learn_falls_at(self, firsts: Mapping[int, Any]) -> None:
        lasts = self._playback.rows(
            "SELECT h.node_id, max(h.ts) FROM host_samples h JOIN (SELECT unnest(?::INTEGER[]) AS node_id, "
            "unnest(?::TIMESTAMP[]) AS first) f USING (node_id) WHERE h.ts < f.first GROUP BY h.node_id",
            list(firsts),
            list(firsts.values()),
        )
        before, after = self._counters_at(dict(lasts)), self._counters_at(firsts)
        for node_id, at in firsts.items():
            gpus = self._playback.machines[node_id].gpu_ids
            fell = {gpu: before[gpu] - after[gpu] for gpu in gpus if gpu in before and gpu in after}
            if lost := {gpu: mj for gpu, mj in fell.items() if mj > 0}:
                self._falls.append((node_id, at, lost))

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


def _granted(machine: Machine) -> Iterable[int]:
    pairs = zip(machine.gpu_ids, machine.hello.gpus, strict=True)
    return [gpu_id for gpu_id, gpu in pairs if machine.granted is None or gpu.index in machine.granted]
