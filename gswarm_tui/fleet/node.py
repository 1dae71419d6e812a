"""One node: what is known of it now, and how it looks to a person."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import Frame, GpuFacts, Hello, Processes, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_agent.wire_values import MAX_GPUS
from gswarm_tui.fleet.counters import CounterValue, EnergyCounters
from gswarm_tui.fleet.events import GpuKey, Phase
from gswarm_tui.fleet.frame_values import ENERGY, FrameValues
from gswarm_tui.fleet.history import Floats, History, HistoryBlock, NodeHistory, Slot, stack_tables
from gswarm_tui.fleet.thresholds import STALE_INTERVALS

UNHEALTHY_S = 30.0
MAX_LIVES = 64


class Standing(enum.Enum):
    """How a node looks to a person: its link's phase, and whether its data is fresh.

    An unhealthy node is connected, and no data came for half a minute.
    """

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    ENDED = "ended"


def stale_after_s(interval_s: float) -> float:
    """How long without a frame makes a node stale; at least a second, so that 10 Hz doesn't flicker."""
    return max(1.0, STALE_INTERVALS * interval_s)


class LastFrame(NamedTuple):
    """The newest frame of one life: its number, and its time on the node's clock in Unix nanoseconds.

    The time is None where that frame is lost."""

    seq: int
    ts_ns: int | None


class FramePosition(NamedTuple):
    """A frame's place in its life: ``missing`` frames before it, seconds since the one before or None."""

    missing: int
    interval_s: float | None


class FrameSequences:
    """What was heard of a node, by life; the newest lives are remembered."""

    # Each node has its own, far from the others in memory: a place less to look at.
    __slots__ = ("_heard",)

    def __init__(self) -> None:
        self._heard: dict[str, LastFrame] = {}

    def place(self, life: str, frame: Frame) -> FramePosition | None:
        """Take in a frame; None if it was here before."""
        last = self._heard.get(life)
        if last is not None and frame.seq <= last.seq:
            return None
        self.remember(life, frame.seq, frame.ts_ns)
        if last is None:
            return FramePosition(frame.seq - 1, None)
        missing = frame.seq - last.seq - 1
        if missing or last.ts_ns is None or frame.ts_ns <= last.ts_ns:
            return FramePosition(missing, None)
        return FramePosition(0, (frame.ts_ns - last.ts_ns) / 1e9)

    def lose(self, life: str, seq: int) -> int:
        """What isn't here up to a number never comes: how many frames that are."""
        last = self._heard.get(life)
        missing = seq - (0 if last is None else last.seq)
        if missing > 0:
            self.remember(life, seq, None)
        return max(0, missing)

    def remember(self, life: str, seq: int, ts_ns: int | None) -> None:
        """A frame is known, here or on disk, or lost."""
        self._heard[life] = LastFrame(seq, ts_ns)
        while len(self._heard) > MAX_LIVES:
            del self._heard[next(iter(self._heard))]


@dataclass(slots=True)
class NodeState:
    """One node. ``gpus`` has shape (GPUs, GPU metrics) and ``host`` (host metrics,), NaN where unmeasured.

    ``version`` grows with every change that a screen could show. The energy counters in ``gpu_history`` count
    from each GPU's first reading (``energy_base``, mJ), and ``counters`` are their last answers. ``mine``
    tells for each GPU whether the job was granted it, True where that isn't known; ``own_memory_mib`` is the
    device memory of those.
    ``former`` is the hello of an agent run before this one, of which frames still come. ``last_ts`` is the
    time of the newest reading, ``last_arrival`` when a fresh one came: what waited on the node isn't fresh.
    ``answered`` is what the energy counters of GPUs that it had before said last: those that come again are
    counted on.
    ``looked`` is what the last look at processes found, None before it and where it is of other GPUs.
    ``left_off`` is the life that measured when the recording was interrupted, and the time of its newest
    frame, until the node has said what became of it.
    """

    name: str
    phase: Phase = Phase.CONNECTING
    was_live: bool = False
    since: float = 0.0
    reason: str = ""
    remedy: str = ""
    retry_at: float | None = None
    hello: Hello | None = None
    former: Hello | None = None
    lives: FrameSequences = field(default_factory=FrameSequences)
    left_off: tuple[str, float] | None = None
    interval_ms: int = 1000
    gpus: Floats = field(default_factory=lambda: np.empty((0, len(GPU_COLUMNS))))
    host: Floats = field(default_factory=lambda: np.full(len(HOST_COLUMNS), np.nan))
    mine: tuple[bool, ...] = ()
    own_memory_mib: float | None = None
    energy_base: Floats | None = None
    counters: EnergyCounters = field(default_factory=lambda: EnergyCounters.known(()))
    answered: dict[GpuKey, CounterValue] = field(default_factory=dict)
    gpu_history: History | None = None
    host_history: History | None = None
    looked: Processes | None = None
    last_ts: float | None = None
    last_arrival: float | None = None
    frames: int = 0
    lost_frames: int = 0
    missed_ticks: int = 0
    late_ms: float = 0.0
    reconnects: int = 0
    offset_s: float = 0.0
    round_trip_s: float | None = None
    version: int = 0
    stale_told: bool = False
    unhealthy_told: bool = False
    late_told: float = 0.0
    lost_told: str = ""

    @property
    def interval_s(self) -> float:
        """Seconds between samples."""
        return self.interval_ms / 1000

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The processes on its GPUs at the last look at them."""
        return self.looked.samples if self.looked is not None else ()

    @property
    def facts(self) -> tuple[GpuFacts, ...]:
        """The node's GPUs, in the order of the rows of ``gpus``."""
        return self.hello.gpus if self.hello is not None else ()

    def age(self, now: float) -> float | None:
        """Seconds since a fresh sample arrived, None before the first."""
        return None if self.last_arrival is None else max(0.0, now - self.last_arrival)

    def standing(self, now: float) -> Standing:
        """How it looks: a live link without a frame for three intervals is stale, for longer unhealthy."""
        if self.phase is not Phase.LIVE:
            return Standing(self.phase.value)
        if self.last_arrival is None:
            return Standing.CONNECTING
        age = now - self.last_arrival
        if age <= self.stale_after_s:
            return Standing.LIVE
        return Standing.UNHEALTHY if age > self.unhealthy_after_s else Standing.STALE

    @property
    def stale_after_s(self) -> float:
        """How long without a frame makes it stale."""
        return stale_after_s(self.interval_s)

    @property
    def unhealthy_after_s(self) -> float:
        """How long without a frame makes it unhealthy, whatever its link says."""
        return max(UNHEALTHY_S, self.stale_after_s)

    def own(self, values: Floats) -> Floats:
        """The rows of a reading that are of the job's GPUs."""
        return values if all(self.mine) else values[np.array(self.mine, dtype=bool)]

    def counted_from(self, reading: FrameValues) -> Floats:
        """Where its energy counters (mJ) count from in the history, so that single precision holds them.

        NaN where a GPU has told none yet.
        """
        if self.energy_base is None:
            self.energy_base = reading.gpus[:, ENERGY].copy()
        return self.energy_base

    def as_kept(self, column: int) -> Floats:
        """A column of ``gpus`` as the history has it: energy counts from the first reading."""
        values = self.gpus[:, column]
        return values - self.energy_base if column == ENERGY and self.energy_base is not None else values

    def remember(self, answers: Iterable[tuple[GpuKey, CounterValue]]) -> None:
        """Keep what energy counters said last: the newest, of as many GPUs as a node can have."""
        for gpu, answer in answers:
            self.answered.pop(gpu, None)
            self.answered[gpu] = answer
        while len(self.answered) > MAX_GPUS:
            del self.answered[next(iter(self.answered))]

    def take(self, rings: NodeHistory) -> None:
        """Have this history."""
        self.gpu_history, self.host_history, self.energy_base = rings.gpus, rings.host, rings.energy_base
        self.version += 1


def append_history(taken: Iterable[tuple[NodeState, float, FrameValues, float | None]]) -> None:
    """Add readings of a time, and their intervals, to their nodes' histories; many at once cost much less."""
    gpus: dict[HistoryBlock, list[tuple[Slot, float | None, Floats, Floats]]] = {}
    hosts: dict[HistoryBlock, list[tuple[Slot, float | None, Floats]]] = {}
    for node, ts, reading, interval_s in taken:
        if node.gpu_history is not None and node.host_history is not None:
            one = node.gpu_history.place(ts), interval_s, reading.gpus, node.counted_from(reading)
            gpus.setdefault(node.gpu_history.grid, []).append(one)
            other = node.host_history.place(ts), interval_s, reading.host
            hosts.setdefault(node.host_history.grid, []).append(other)
    for grid, alike in gpus.items():
        places, intervals, tables, bases = zip(*alike, strict=True)
        values = stack_tables(tables)
        energy, begun = values[:, :, ENERGY], stack_tables(bases)
        if (first := np.isnan(begun) & np.isfinite(energy)).any():
            for base, told, counters in zip(bases, first, energy, strict=True):
                np.copyto(base, counters, where=told & np.isnan(base))
            begun = stack_tables(bases)
        energy -= begun
        grid.put(places, values, intervals)
    for grid, of_hosts in hosts.items():
        places, intervals, rows = zip(*of_hosts, strict=True)
        grid.put(places, stack_tables(rows)[:, np.newaxis], intervals)
