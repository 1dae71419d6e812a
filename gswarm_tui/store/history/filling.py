"""The history of a fleet as it was, read a piece of the recording after the other, for all nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.counters import Counters
from gswarm_tui.fleet.history import Grid, History
from gswarm_tui.fleet.node import NodeState
from gswarm_tui.fleet.readings import ENERGY
from gswarm_tui.store.history.frames import owners
from gswarm_tui.store.history.machines import Machine
from gswarm_tui.store.history.playback import Playback
from gswarm_tui.store.history.series import Places, Stretch

_INTERVAL_S = "coalesce(interval_ms / 1000, 'nan'::DOUBLE)::FLOAT AS interval_s"


class Filling:
    """Gives nodes their history, each of one machine and up to a time (Unix microseconds)."""

    def __init__(self, play: Playback, nodes: Sequence[tuple[NodeState, Machine, int]]) -> None:
        self._play = play
        self._nodes = [node for node, *_ in nodes]
        self._until_us = np.array([us for *_, us in nodes])
        self._place = np.full(max(machine.node_id for _, machine, _ in nodes) + 1, -1)
        self._place[[machine.node_id for _, machine, _ in nodes]] = np.arange(len(nodes))
        self._first_gpu = np.cumsum([0, *(len(node.facts) for node in self._nodes)])
        self._bases, self._newest = np.full((2, self._first_gpu[-1]), np.nan)
        self._newest_at = np.full(self._first_gpu[-1], np.inf)

    def add(self, low: int, high: int) -> None:
        """Add what was measured after ``low`` up to ``high`` (microseconds), in order. Raises StoreError."""
        hosts = self._play.stretch("host_samples", f"node_id AS id, {_INTERVAL_S}", low, high)
        node = self._known(hosts.ids)
        rows = np.flatnonzero((node >= 0) & (hosts.us <= self._until_us[node]))
        rows = rows[np.lexsort((hosts.us[rows], node[rows]))]
        node, us, interval_s = node[rows], hosts.us[rows], hosts.told("interval_s")[rows]
        fill_hosts = partial(_fill_hosts, hosts, rows)
        self._fill(node, us, interval_s, _host_history, fill_hosts)
        gpus = self._play.stretch("gpu_samples", "gpu_id AS id", low, high)
        owner, position = owners(self._play, gpus.ids)
        gpu_node = self._known(owner)
        reading = _found((us - low) * len(self._nodes) + node, (gpus.us - low) * len(self._nodes) + gpu_node)
        taken = np.flatnonzero((reading >= 0) & (gpu_node >= 0))
        taken = taken[np.argsort(gpus.us[taken], kind="stable")]
        gpu, position, reading = (
            self._first_gpu[gpu_node[taken]] + position[taken],
            position[taken],
            reading[taken],
        )
        energy = gpus.numbers(GPU_COLUMNS[ENERGY], taken)
        if energy is not None:
            _begin(self._bases, gpu, energy)
            told = np.isfinite(energy)
            self._newest[gpu[told]], self._newest_at[gpu[told]] = energy[told], gpus.us[taken[told]] / 1e6

        def fill(table: npt.NDArray[np.float32], at: Places) -> None:
            row = np.full(len(us), -1)
            row[at] = np.arange(len(at))
            some = np.flatnonzero(row[reading] >= 0)
            for column, name in enumerate(GPU_COLUMNS):
                if (numbers := gpus.numbers(name, taken[some])) is not None:
                    less = self._bases[gpu[some]] if column == ENERGY else 0.0
                    table[row[reading[some]], position[some], column] = numbers - less

        self._fill(node, us, interval_s, _gpu_history, fill)

    def end(self) -> None:
        """All is there."""
        for node, (first, last) in zip(self._nodes, pairwise(self._first_gpu.tolist()), strict=True):
            if node.gpu_history is not None and len(node.gpu_history):
                node.energy_base = self._bases[first:last].copy()
                node.counters = Counters(self._newest[first:last].copy(), self._newest_at[first:last].copy())

    def _known(self, ids: Places) -> Places:
        """The places of nodes among those to be filled, negative for others."""
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
        """Fill the grids where these readings belong, which are in the order of nodes and times."""
        parts: dict[Grid, list[tuple[Places, Places, int]]] = {}
        for at in _runs(node):
            if (ring := history(self._nodes[node[at[0]]])) is not None:
                parts.setdefault(ring.grid, []).append((at, ring.extend(us[at] / 1e6), ring.seat))
        for grid, alike in parts.items():
            at = np.concatenate([places for places, *_ in alike])
            rows = np.concatenate([rows for _, rows, _ in alike])
            seats = np.repeat([seat for *_, seat in alike], [len(places) for places, *_ in alike])
            table = np.full((len(at), *grid.table), np.nan, dtype=np.float32)
            fill(table, at)
            grid.fill(rows, seats, table, interval_s[at])


def _gpu_history(node: NodeState) -> History | None:
    return node.gpu_history


def _host_history(node: NodeState) -> History | None:
    return node.host_history


def _fill_hosts(hosts: Stretch, rows: Places, table: npt.NDArray[np.float32], at: Places) -> None:
    for column, name in enumerate(HOST_COLUMNS):
        if (numbers := hosts.numbers(name, rows[at])) is not None:
            table[:, 0, column] = numbers


def _runs(numbers: Places) -> Iterator[Places]:
    """The places of equal numbers that follow each other."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    for first, end in pairwise([*starts.tolist(), len(numbers)]):
        yield np.arange(first, end)


def _found(keys: Places, wanted: Places) -> Places:
    """Where each of the wanted is among the keys, -1 where it isn't."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    nearest = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[nearest] == wanted, nearest, -1)


def _begin(bases: npt.NDArray[np.float64], places: Places, numbers: npt.NDArray[Any]) -> None:
    """Note the first number of each GPU that has none yet (NaN)."""
    new = np.flatnonzero(np.isfinite(numbers) & np.isnan(bases[places]))
    seen, where = np.unique(places[new], return_index=True)
    bases[seen] = numbers[new][where]
