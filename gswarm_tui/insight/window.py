"""The last minutes of a fleet in equal steps of time, as the rules read them. No I/O and no clock."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import STEP, GpuFacts, Hello, ProcessSample
from gswarm_agent.metrics import PORT_ERRORS, PROCESS_COLUMNS
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.gpu_links import HOST
from gswarm_tui.fleet.history import Floats, Singles
from gswarm_tui.insight.rows import Rows
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST
from gswarm_tui.insight.step_marks import StepMarks

Mask = npt.NDArray[np.bool_]
STEP_S = 5.0
"""Length of a step; of recordings with a longer interval, that interval."""
KEPT_S, KEPT_OF_LARGE_S = 600.0, 240.0
"""Time for which steps are kept, and in fleets of more than ``LARGE`` GPUs."""
LARGE = 1024
JOB_KEPT_S = 3600.0
"""Time for which the job's means are kept."""
QUORUM = 0.9
"""A condition holds over a window if it holds in this share of its measured steps."""
MEASURED = 0.5
"""A window counts as measured if at least this share of its steps is."""
BUSY_S, STARTING_S, BUSY_PCT = 60.0, 600.0, 20.0
"""A GPU has started once it was busy for so long, or has had its process for ``STARTING_S``."""
EARLY_S = 120.0
"""Length of the stretch after the start whose means rules compare with, to see what differs since then."""
OWN_CPU = "own_cpu_pct"
"""Signal of GPUs: CPU time of the job's processes on a GPU; 100 is one core."""
_GPU_AT = {name: at for at, name in enumerate([*(signal.name for signal in GPU_SIGNALS), OWN_CPU])}
_HOST_AT = {signal.name: at for at, signal in enumerate(HOST_SIGNALS)}
_NEWEST_AT = {name: at for at, name in enumerate(NEWEST)}
_PORT_COLUMNS = (
    *("state", "rate_gbit_s", "rx_mb_s", "tx_mb_s"),
    *("port_xmit_discards", "rnr_nak_retry_err", "roce_slow_restart"),
    *PORT_ERRORS,
)
_MOUNT_COLUMNS = ("free_mib", "total_mib", "free_inodes")
WRITTEN = "written_mb_s"
"""Signal of the job: what its processes write by calls, also to network file systems, in all."""
_JOB_AT = {name: at for at, name in enumerate((*_GPU_AT, *_HOST_AT, WRITTEN))}
_OF_GPUS = ("newest", "first", "running_since", "ran_at", "_since", "_pids", "_busy_s", "_early")
"""Arrays of the window whose last axis are GPUs."""


class GpuPlace(NamedTuple):
    """One of the job's GPUs: its node, its row in the node's hello, its slot on the node, and its facts."""

    node: str
    row: int
    slot: int
    facts: GpuFacts


class NodeInfo(NamedTuple):
    """A node's newest hello, and for each GPU in that hello whether it is the job's."""

    hello: Hello
    mine: tuple[bool, ...]


class Listed(NamedTuple):
    """The newest processes on the job's GPUs: the GPU's column of each, and whether it is the job's.

    ``numbers`` has the shape (processes, process metrics), NaN where not measured.
    """

    samples: tuple[ProcessSample, ...]
    column: npt.NDArray[np.intp]
    own: Mask
    pids: npt.NDArray[np.intp]
    numbers: Floats

    def number(self, metric: str) -> Floats:
        """Return a metric of each process."""
        return self.numbers[:, PROCESS_COLUMNS.index(metric)]


class _Ring:
    """Steps in order, of which the newest ``capacity`` are one contiguous array: (steps, *shape)."""

    def __init__(self, capacity: int, shape: tuple[int, ...]) -> None:
        self.capacity = capacity
        self._values = np.full((capacity + max(4, capacity // 8), *shape), np.nan, dtype=np.float32)
        self._end = 0

    def push(self, values: npt.NDArray[np.floating]) -> None:
        if self._end == len(self._values):
            kept = self.capacity - 1
            # Step by step, as a copy of the whole would take as much memory again.
            for at in range(kept):
                self._values[at] = self._values[self._end - kept + at]
            self._end = kept
        self._values[self._end] = values
        self._end += 1

    def last(self, count: int) -> Singles:
        return self._values[max(0, self._end - min(count, self.capacity)) : self._end]

    def of_columns(self, columns: npt.NDArray[np.intp], capacity: int) -> _Ring:
        """Return a ring with the same steps of other columns of the last axis; -1 is a new column."""
        new = _Ring(capacity, (*self._values.shape[1:-1], len(columns)))
        for step in self.last(capacity):
            new.push(_columns(step, columns))
        return new


@dataclass
class Window:
    """The newest steps of a fleet, the newest values, and the events of the last hour.

    ``scale`` shortens all times that rules name, for tests. ``gpus`` are the job's GPUs in the order of
    columns, ``node_at`` the column of each GPU's node.
    ``pcie_most`` has the PCIe generation and lanes that each GPU could have. ``last_process`` is
    the newest of the job's on each row of a node.
    ``processes`` are the newest of each node, None where they aren't listed. ``user`` is the recorder's user,
    and ``owner`` the one whose processes are the job's: that user, or whoever has most if that one has none.
    ``running_since`` says since when each GPU has had a process of the job, ``ran_at`` when it last had one.
    ``open`` are the findings that hold: kind, node, and index of the GPU.
    """

    nodes: tuple[str, ...]
    infos: Mapping[str, NodeInfo]
    step_s: float = STEP_S
    scale: float = 1.0
    user: str | None = None
    started_at: float = math.nan
    now: float = math.nan
    steps: int = 0
    processes: dict[str, tuple[ProcessSample, ...] | None] = field(default_factory=dict)
    ports: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    mounts: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    events: deque[EventLogged] = field(default_factory=lambda: deque(maxlen=1000))
    open: frozenset[tuple[str, str | None, int | None]] = frozenset()

    def __post_init__(self) -> None:
        """Begin without GPUs, and then lay out those of the hellos."""
        self.gpus: tuple[GpuPlace, ...] = ()
        self._gpu = _Ring(1, (len(_GPU_AT), 0))
        self._host = _Ring(self._count(KEPT_S), (len(HOST_SIGNALS), len(self.nodes)))
        self._job = _Ring(self._count(JOB_KEPT_S), (len(_JOB_AT),))
        self._highest = np.full(len(_JOB_AT), np.nan, dtype=np.float32)
        self.newest = self.first = np.empty((len(NEWEST), 0))
        self.running_since = self.ran_at = self._since = self._busy_s = np.empty(0)
        self._pids, self._early = np.empty((2, 0)), np.empty((len(_GPU_AT), 0))
        self.started_steps = 0
        self.last_process: dict[tuple[str, int], ProcessSample] = {}
        self.port_rows, self.mount_rows = Rows(_PORT_COLUMNS, 10), Rows(_MOUNT_COLUMNS, 30)
        self.owner: str | None = self.user
        self._means: dict[tuple[str, float], Floats] = {}
        self.step_marks = StepMarks()
        self.lay_out(self.infos)

    def note(self, event: EventLogged) -> None:
        """Add a logged event. Of the many marks of steps, those of one rank are among the events."""
        if event.kind != STEP or self.step_marks.take(event):
            self.events.append(event)

    def lay_out(self, infos: Mapping[str, NodeInfo]) -> None:
        """Assign columns to the job's GPUs of these hellos; those that were there keep their history."""
        before = {(gpu.node, gpu.facts.uuid): at for at, gpu in enumerate(self.gpus)}
        self.infos = infos
        # MIG instances have no column, as nobody measures how busy they are.
        rows = {
            name: [at for at, gpu in enumerate(info.hello.gpus) if info.mine[at] and gpu.parent_index is None]
            for name in self.nodes
            if (info := infos.get(name)) is not None
        }
        self.gpus = tuple(
            GpuPlace(name, row, slot, infos[name].hello.gpus[row])
            for name, own in rows.items()
            for slot, row in enumerate(own)
        )
        place = {name: at for at, name in enumerate(self.nodes)}
        self.node_at = np.array([place[gpu.node] for gpu in self.gpus], dtype=np.intp)
        self.slot = np.array([gpu.slot for gpu in self.gpus], dtype=np.intp)
        self.column = {(gpu.node, gpu.row): at for at, gpu in enumerate(self.gpus)}
        links = {
            (name, link.gpu): (_number(link.version), link.links or math.nan)
            for name, info in infos.items()
            for link in info.hello.links
            if link.peer == HOST
        }
        most = [links.get((gpu.node, gpu.row), (math.nan, math.nan)) for gpu in self.gpus]
        self.pcie_most = np.array(most).reshape(len(self.gpus), 2)
        columns = np.array([before.get((gpu.node, gpu.facts.uuid), -1) for gpu in self.gpus], dtype=np.intp)
        kept = self._count(KEPT_S if len(self.gpus) <= LARGE else KEPT_OF_LARGE_S)
        self._gpu = self._gpu.of_columns(columns, kept)
        for name in _OF_GPUS:
            setattr(self, name, _columns(getattr(self, name), columns))
        self._roles: npt.NDArray[np.intp] | None = None
        self._of_node: dict[str, tuple[tuple[ProcessSample, ...] | None, Listed]] = {}
        self.listed = self._list("", ())
        self._means.clear()

    def _count(self, seconds: float) -> int:
        return max(1, round(seconds * self.scale / self.step_s))

    # What rules read

    def gpu(self, signal: str, seconds: float) -> Singles:
        """Return a signal of the last seconds: (steps, GPUs)."""
        return self._gpu.last(self._count(seconds))[:, _GPU_AT[signal]]

    def host(self, signal: str, seconds: float) -> Singles:
        """Return a signal of the last seconds: (steps, nodes)."""
        return self._host.last(self._count(seconds))[:, _HOST_AT[signal]]

    def job(self, signal: str, seconds: float) -> Singles:
        """Return the mean of a signal over the GPUs that have a process, or over all nodes: (steps,).

        It reaches back an hour.
        """
        return self._job.last(self._count(seconds))[:, _JOB_AT[signal]]

    def highest(self, signal: str) -> float:
        """Return the highest mean that a signal of the job had in a minute since it has processes."""
        return float(self._highest[_JOB_AT[signal]])

    def mean(self, signal: str, seconds: float) -> Floats:
        """Return a signal's mean over the last seconds for each GPU or node.

        NaN where less than half of the steps were measured, or where it hasn't run for so long.
        """
        key = signal, seconds
        if key not in self._means:
            values = (self.gpu if signal in _GPU_AT else self.host)(signal, seconds)
            sums = values.sum(axis=0, dtype=np.float64)
            counts = np.full(len(sums), len(values))
            # Most signals are measured everywhere and always, or nowhere: only the others need two passes.
            if not np.isfinite(sums).all():
                measured = np.isfinite(values)
                counts = measured.sum(axis=0)
                sums = np.where(measured, values, 0.0).sum(axis=0, dtype=np.float64)
            enough = counts >= MEASURED * self._count(seconds)
            self._means[key] = np.where(enough, sums / np.maximum(counts, 1), np.nan)
        return self._means[key]

    def holds(self, condition: Mask, measured: Mask, seconds: float) -> Mask:
        """Return for each column whether a condition holds in nearly all measured steps of a window.

        Both have the shape (steps, columns). A window that isn't full yet, or not measured enough, has False.
        """
        counts = measured.sum(axis=0)
        held = (condition & measured).sum(axis=0)
        held_all: Mask = (counts >= MEASURED * self._count(seconds)) & (held >= QUORUM * counts)
        return held_all

    def value(self, metric: str) -> Floats:
        """Return the newest value of a metric of ``NEWEST`` for each GPU."""
        return self.newest[_NEWEST_AT[metric], :]

    def growth(self, metric: str) -> Floats:
        """Return how much a counter of ``NEWEST`` has grown since the start, for each GPU."""
        return self.value(metric) - self.first[_NEWEST_AT[metric], :]

    def without(self, signal: str) -> list[str]:
        """Return the nodes that don't measure a signal or metric, or "processes", "ports", "mounts"."""
        if signal in ("processes", "ports", "mounts"):
            listed = getattr(self, signal)
            return [name for name in self.nodes if listed.get(name) is None]
        if signal in _HOST_AT:
            lacking = ~np.isfinite(self.host(signal, 60.0)).any(axis=0)
            return [self.nodes[at] for at in np.flatnonzero(lacking).tolist()]
        if signal not in _GPU_AT and signal not in _NEWEST_AT:
            return []
        values = self.gpu(signal, 60.0) if signal in _GPU_AT else self.value(signal)[np.newaxis]
        known_at = set(self.node_at[np.isfinite(values).any(axis=0)].tolist())
        return [self.nodes[at] for at in np.unique(self.node_at).tolist() if at not in known_at]

    @property
    def active(self) -> Mask:
        """Whether each GPU has a process of the job; where processes aren't listed, whether it was busy."""
        running: Mask = np.isfinite(self.running_since)
        return running

    @property
    def settled(self) -> Mask:
        """Whether each GPU has a process of the job and has started: it was busy for a minute."""
        old = self.now - self.running_since >= STARTING_S * self.scale
        has_started: Mask = self.active & (np.isinf(self._busy_s) | old)
        return has_started

    @property
    def starting(self) -> bool:
        """Whether the job is starting, or starting again: some of its GPUs haven't been busy for a minute.

        One GPU that never gets busy, or whose processes come and go, holds it up for 10 minutes at most.
        """
        active = self.active
        if not active.any():
            return True
        began = float(np.median(self.running_since[active]))
        return not self.settled[active].all() and self.now - began < STARTING_S * self.scale

    def early(self, signal: str) -> Floats:
        """Return a signal's mean over the first two minutes after the start for each GPU; NaN before."""
        return self._early[_GPU_AT[signal], :]

    def covers(self, seconds: float) -> bool:
        """Return whether the job has been running for so long since it started."""
        return self.started_steps >= self._count(seconds)

    def is_open(self, kind: str, column: int) -> bool:
        """Return whether a finding of a kind holds for a GPU."""
        gpu = self.gpus[column]
        return (kind, gpu.node, gpu.facts.index) in self.open

    def own_processes(self, column: int) -> tuple[ProcessSample, ...]:
        """Return the job's processes on a GPU, the newest known."""
        gpu = self.gpus[column]
        listed = self.processes.get(gpu.node) or ()
        return tuple(one for one in listed if one.gpu == gpu.row and self.is_own(one))

    def is_own(self, process: ProcessSample) -> bool:
        """Return whether a process belongs to the job's user."""
        return self.owner is None or process.user is None or process.user == self.owner

    def rank(self, column: int) -> int | None:
        """Return the rank on a GPU, or the last that was there; None if there is none or several."""
        gpu = self.gpus[column]
        last = self.last_process.get((gpu.node, gpu.row))
        known = self.own_processes(column) or (() if last is None else (last,))
        ranks = {one.rank for one in known if one.rank is not None}
        return ranks.pop() if len(ranks) == 1 else None

    def peers(self, values: Floats, among: Mask | None = None) -> Floats:
        """Return for each GPU the median of its peers: the other GPUs of the same role.

        The role is the slot if at least four nodes have it, else all have the same.
        """
        among = self.active if among is None else among
        if self._roles is None:
            role = self.slot if len(self.nodes) >= 4 else np.zeros_like(self.slot)
            roles = [np.flatnonzero(role == one) for one in np.unique(role)]
            self._roles = np.full((len(roles), max(map(len, roles), default=0) + 1), len(self.gpus))
            for at, members in enumerate(roles):
                self._roles[at, : len(members)] = members
        of_role = np.append(np.where(among & np.isfinite(values), values, np.nan), np.nan)[self._roles]
        order, measured = np.argsort(of_role, axis=1), np.isfinite(of_role)
        known, place = np.take_along_axis(of_role, order, axis=1), np.empty_like(order)
        np.put_along_axis(place, order, np.arange(order.shape[1])[np.newaxis], axis=1)
        rest = measured.sum(axis=1, keepdims=True) - measured
        # Without itself, the median of a GPU at or below the middle is that of the upper half.
        low, high = np.maximum(rest - 1, 0) // 2, rest // 2
        low, high = (at + (measured & (place <= at)) for at in (low, high))
        middle = (np.take_along_axis(known, low, axis=1) + np.take_along_axis(known, high, axis=1)) / 2
        out = np.full(len(values) + 1, np.nan)
        out[self._roles] = np.where(rest > 0, middle, np.nan)
        return out[:-1]

    def peers_of(self, signal: str, seconds: float) -> Floats:
        """Return for each GPU the median of a signal's means over its settled peers."""
        key = f"peers of {signal}", seconds
        if key not in self._means:
            self._means[key] = self.peers(self.mean(signal, seconds), self.settled)
        return self._means[key]

    # What fills it

    def push(self, at: float, gpus: Singles, hosts: Singles, newest: Floats) -> None:
        """Add the means of a step that ends at ``at`` (Unix s), after processes, ports, mounts and events.

        ``gpus`` has the shape (GPU signals, GPUs), ``hosts`` (host signals, nodes), ``newest`` (NEWEST,
        GPUs); NaN is "not measured".
        """
        if not self.steps:
            self.started_at = at - self.step_s
        self.steps, self.now = self.steps + 1, at
        self._means.clear()
        self._host.push(hosts)
        self.newest = np.where(np.isfinite(newest), newest, self.newest)
        self.first = np.where(np.isfinite(self.first), self.first, self.newest)
        util, memory = gpus[_GPU_AT["util_pct"]], gpus[_GPU_AT["mem_used_mib"]]
        self._note_running(util, memory)
        gpus = np.vstack((gpus, self._own_cpu()))
        self._gpu.push(gpus)
        self._note_start(util)
        active = self.active
        chosen = gpus[:, active] if active.any() else gpus
        self.port_rows.update(self.ports)
        self.mount_rows.update(self.mounts)
        written = self.listed.number("write_calls_mb_s")[self.listed.own]
        writes = np.nansum(written) if np.isfinite(written).any() else np.nan
        self._job.push(np.concatenate((_means(chosen), _means(hosts), [writes])))
        per_minute = self._count(60.0)
        if not active.any():
            self._highest[:] = np.nan
        if self.steps % per_minute == 0:
            self.port_rows.keep()
            self.mount_rows.keep()
            if active.any():
                self._highest = np.fmax(self._highest, _means(self._job.last(per_minute).T))

    def _note_running(self, util: Singles, memory: Singles) -> None:
        """Note since when each GPU has had its present processes of the job."""
        self._read_processes()
        running = np.zeros(len(self.gpus), dtype=bool)
        running[self.listed.column[self.listed.own]] = True
        unlisted = np.array([self.processes.get(name) is None for name in self.nodes], dtype=bool)
        unknown = unlisted[self.node_at]
        if unknown.any():
            # Without a list of processes, a GPU counts from its first busy step on while it holds memory.
            running |= unknown & ((util >= 1) | ((memory >= 1024) & np.isfinite(self.running_since)))
        own = self.listed.own
        column, pids = self.listed.column[own], self.listed.pids[own]
        low, high = np.full(len(self.gpus), np.inf), np.full(len(self.gpus), -np.inf)
        np.minimum.at(low, column, pids)
        np.maximum.at(high, column, pids)
        # The same processes after a moment, as when a list was cut, are no restart; without lists any gap is.
        others = np.isfinite(self._pids[0]) & (low != self._pids[0]) & (high != self._pids[1])
        listed = np.isfinite(low)
        begins = np.isnan(self._since) | np.where(listed, others, np.isnan(self.running_since))
        self._since = np.where(running & begins, self.now, self._since)
        self._pids = np.where(listed, (low, high), self._pids)
        self.running_since = np.where(running, self._since, np.nan)
        self.ran_at[running] = self.now

    def _note_start(self, util: Singles) -> None:
        """Note for how long each GPU has been busy since its process began, and how the job ran at first."""
        busy = np.isnan(util) | (util >= BUSY_PCT)
        spent = np.where(busy, np.nan_to_num(self._busy_s, posinf=np.inf) + self.step_s, self._busy_s / 2)
        spent[~self.active | (self.running_since >= self.now)] = 0.0
        # Infinity marks a GPU that has started, whatever it does later.
        self._busy_s = np.where(spent >= BUSY_S * self.scale, np.inf, spent)
        self.started_steps = 0 if self.starting else self.started_steps + 1
        if self.started_steps <= 1:
            self._early[:] = np.nan
        if self.started_steps == self._count(EARLY_S):
            self._early = np.array([self.mean(name, EARLY_S) for name in _GPU_AT])

    def _read_processes(self) -> None:
        """Join the processes of all nodes; most nodes have the list of the step before."""
        known = self._of_node
        fresh = {
            node: listed
            for node, listed in self.processes.items()
            if node not in known or listed is not known[node][0]
        }
        if not fresh:
            return
        users = Counter(one.user for listed in self.processes.values() for one in listed or () if one.user)
        owner = self.user if self.user in users or not users else users.most_common(1)[0][0]
        if owner != self.owner:
            self.owner, fresh = owner, self.processes
        known |= {node: (listed, self._list(node, listed or ())) for node, listed in fresh.items()}
        samples, *numbers = zip(*(of_node for _, of_node in known.values()), strict=True)
        self.listed = Listed(tuple(chain.from_iterable(samples)), *map(np.concatenate, numbers))

    def _list(self, node: str, processes: Iterable[ProcessSample]) -> Listed:
        found = [(at, one) for one in processes if (at := self.column.get((node, one.gpu))) is not None]
        samples = tuple(one for _, one in found)
        columns = np.array([at for at, _ in found], dtype=np.intp)
        own = np.array([self.is_own(one) for one in samples], dtype=bool)
        pids = np.array([one.pid for one in samples], dtype=np.intp)
        self.last_process |= {(node, one.gpu): one for one, its in zip(samples, own, strict=True) if its}
        numbers = np.array([one.row for one in samples], dtype=np.float64)
        return Listed(samples, columns, own, pids, numbers.reshape(len(samples), len(PROCESS_COLUMNS)))

    def _own_cpu(self) -> Singles:
        """Return the CPU time of the job's processes on each GPU, NaN where none is measured."""
        cpu = self.listed.number("cpu_pct")
        known = self.listed.own & np.isfinite(cpu)
        column, count = self.listed.column[known], len(self.gpus)
        measured = np.bincount(column, minlength=count) > 0
        sums = np.bincount(column, cpu[known], minlength=count)
        return np.where(measured, sums, np.nan).astype(np.float32)


def _columns(values: npt.NDArray[Any], columns: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Return columns of the last axis, NaN for -1."""
    padded = np.concatenate((values, np.full((*values.shape[:-1], 1), np.nan, values.dtype)), axis=-1)
    return padded[..., columns]


def _number(text: str | None) -> float:
    """Return a version such as "5.0" as a number, NaN for anything else."""
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _means(values: npt.NDArray[np.floating]) -> Singles:
    """Return the mean of each row, NaN where nothing was measured."""
    measured = np.isfinite(values)
    counts = measured.sum(axis=1)
    sums = np.where(measured, values, 0).sum(axis=1)
    means: Singles = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
    return means
