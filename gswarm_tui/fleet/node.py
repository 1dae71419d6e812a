"""One node of the fleet: its newest samples, its history and its state."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import Frame, GpuFacts, Hello, NamedRows, Processes, ProcessSample
from gswarm_agent.metrics import DEFAULT_GROUPS, GPU_COLUMNS, HOST_COLUMNS, HOST_METRICS, reasons_off
from gswarm_agent.wire_payload import MAX_GPUS
from gswarm_tui.fleet.blocks import plausible_listing, plausible_processes
from gswarm_tui.fleet.energy import REPEATED_S, EnergyMeters, GpuEnergy
from gswarm_tui.fleet.events import GpuKey, Phase
from gswarm_tui.fleet.frame_values import POWER, REASONS
from gswarm_tui.fleet.history import Floats, History, Series
from gswarm_tui.fleet.thresholds import STALE_INTERVALS

UNHEALTHY_S = 30.0
MAX_LIVES = 64


class Standing(enum.Enum):
    """State of a node as shown: its link's phase, and for a live one whether its data is fresh.

    An unhealthy node is connected, but has sent no data for half a minute. An unreachable one was never
    connected; a lost one was. The worst comes first.
    """

    LOST = "lost"
    UNREACHABLE = "unreachable"
    UNHEALTHY = "unhealthy"
    STALE = "stale"
    CONNECTING = "connecting"
    LIVE = "live"
    ENDED = "ended"


def stale_after_s(interval_s: float) -> float:
    """Return the seconds without a frame after which a node is stale: at least 1, or 10 Hz would flicker."""
    return max(1.0, STALE_INTERVALS * interval_s)


class LastFrame(NamedTuple):
    """Newest frame of one agent run: its sequence, and its time by the node's clock (Unix ns; None: lost)."""

    seq: int
    ts_ns: int | None


class FramePosition(NamedTuple):
    """Position of a frame in its agent run: frames ``missing`` before it, seconds it stands for."""

    missing: int
    interval_s: float | None


class FrameSequences:
    """Newest frame of each agent run (life) of a node; keeps the latest ``MAX_LIVES`` runs."""

    def __init__(self) -> None:
        self._last: dict[str, LastFrame] = {}

    def accept(self, life: str, frame: Frame) -> FramePosition | None:
        """Record a frame and return its position; None for a duplicate."""
        last = self._last.get(life)
        if last is not None and frame.seq <= last.seq:
            return None
        self.note(life, frame.seq, frame.ts_ns)
        if last is None:
            return FramePosition(frame.seq - 1, None)
        missing = frame.seq - last.seq - 1
        if missing or last.ts_ns is None:
            return FramePosition(missing, None)
        return FramePosition(0, frame.interval_s(last.ts_ns))

    def count_lost(self, life: str, seq: int) -> int:
        """Record that missing frames up to ``seq`` are lost, and return their number."""
        last = self._last.get(life)
        missing = seq - (0 if last is None else last.seq)
        if missing > 0:
            self.note(life, seq, None)
        return max(0, missing)

    def last(self) -> list[tuple[str, int, int | None]]:
        """Return (life, sequence, time) of the newest frame of each run, the oldest run first."""
        return [(life, *frame) for life, frame in self._last.items()]

    def note(self, life: str, seq: int, ts_ns: int | None) -> None:
        """Record a frame that is stored or lost."""
        self._last[life] = LastFrame(seq, ts_ns)
        while len(self._last) > MAX_LIVES:
            del self._last[next(iter(self._last))]


@dataclass(slots=True)
class NodeState:
    """State of one node.

    ``gpus`` has shape (GPUs, GPU metrics) and ``host`` (host metrics,), NaN where unmeasured. ``version``
    grows with every change that a screen could show. ``energy`` has the energy counters; the energy in
    ``gpus`` and ``gpu_history`` is what a GPU used in this recording so far. ``mine`` holds for each GPU
    whether the job was granted it, True where unknown; ``own_memory_mib`` is the memory of the job's GPUs.
    ``gpu_count`` is the number of these without MIG instances, ``memory_rows`` the rows whose memory adds up:
    those of instances instead of their GPU's.
    ``former`` is the hello of an earlier agent run that still delivers frames. ``last_ts`` is the time of the
    newest frame, ``last_arrival`` the arrival of the newest fresh one: frames that waited on the node aren't
    fresh. ``former_energy`` is that of GPUs that the node had before, should they return.
    ``process_table`` is the latest one of the present GPUs, ``listings`` are the latest by kind.
    ``interrupted_run`` is the agent run that was measuring when the recording was interrupted, with the time
    of its newest frame, until the node reports on it. ``metrics`` are the groups of metrics that are
    measured.
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
    interrupted_run: tuple[str, float] | None = None
    interval_ms: int = 1000
    metrics: tuple[str, ...] = DEFAULT_GROUPS
    gpus: Floats = field(default_factory=lambda: np.empty((0, len(GPU_COLUMNS))))
    host: Floats = field(default_factory=lambda: np.full(len(HOST_COLUMNS), np.nan))
    mine: tuple[bool, ...] = ()
    gpu_count: int = 0
    memory_rows: list[int] = field(default_factory=list)
    own_memory_mib: float | None = None
    energy: EnergyMeters = field(default_factory=lambda: EnergyMeters.of(()))
    former_energy: dict[GpuKey, GpuEnergy] = field(default_factory=dict)
    gpu_history: History | None = None
    host_history: History | None = None
    process_table: Processes | None = None
    listings: Mapping[str, NamedRows] = field(default_factory=dict)
    _listed: tuple[Processes, tuple[ProcessSample, ...]] | None = None
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
    stale_logged: bool = False
    unhealthy_logged: bool = False
    late_logged_at: float = 0.0
    lost_reason_logged: str = ""

    @property
    def interval_s(self) -> float:
        """Seconds between samples."""
        return self.interval_ms / 1000

    @property
    def processes(self) -> tuple[ProcessSample, ...]:
        """The processes on the node's GPUs, as last sampled."""
        if self.process_table is None:
            return ()
        if self._listed is None or self._listed[0] is not self.process_table:
            self._listed = self.process_table, plausible_processes(self.process_table)
        return self._listed[1]

    @property
    def ranks(self) -> dict[int, int]:
        """The rank on each GPU that has one, by its row; the lowest of several."""
        if (table := self.process_table) is None:
            return {}
        known = [(gpu, rank) for gpu, rank in zip(table.gpus, table.ranks, strict=True) if rank is not None]
        return dict(sorted(known, reverse=True))

    def listed(self, kind: str) -> dict[str, dict[str, float | None]]:
        """Return the rows of a listing by name, each with its values by column."""
        return plausible_listing(self.listings[kind]) if kind in self.listings else {}

    @property
    def facts(self) -> tuple[GpuFacts, ...]:
        """The node's GPUs, in the order of the rows of ``gpus``."""
        return self.hello.gpus if self.hello is not None else ()

    @property
    def unmeasured(self) -> dict[str, str]:
        """Why metrics are missing, as in ``Hello.capabilities``; a group that is switched off goes first."""
        reported = self.hello.capabilities if self.hello is not None else {}
        off = reasons_off(self.metrics)
        host = [m.name for m in HOST_METRICS if m.group in off]
        rest = {k: v for k, v in reported.items() if k.rpartition(".")[2] not in off and k not in host}
        return {**rest, **off}

    @property
    def clock_reasons(self) -> list[int]:
        """Bit masks of what holds each GPU's clocks down, 0 where unmeasured."""
        bits: list[int] = np.nan_to_num(self.gpus[:, REASONS]).astype(np.int64).tolist()
        return bits

    def age(self, now: float) -> float | None:
        """Seconds since a fresh sample arrived, None before the first."""
        return None if self.last_arrival is None else max(0.0, now - self.last_arrival)

    def standing(self, now: float) -> Standing:
        """Return the state: a live node without a frame for three intervals is stale, later unhealthy."""
        if self.phase is Phase.LOST and self.hello is None:
            return Standing.UNREACHABLE
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
        """Seconds without a frame after which it is stale."""
        return stale_after_s(self.interval_s)

    @property
    def unhealthy_after_s(self) -> float:
        """Seconds without a frame after which it is unhealthy, whatever the state of its link."""
        return max(UNHEALTHY_S, self.stale_after_s)

    def own(self, values: Floats) -> Floats:
        """Return the rows of the job's GPUs."""
        return values if all(self.mine) else values[np.array(self.mine, dtype=bool)]

    def keep_energy(self, gpus: Iterable[tuple[GpuKey, GpuEnergy]]) -> None:
        """Store the energy of former GPUs, at most as many as a node can have GPUs."""
        for key, gpu in gpus:
            self.former_energy.pop(key, None)
            self.former_energy[key] = gpu
        while len(self.former_energy) > MAX_GPUS:
            del self.former_energy[next(iter(self.former_energy))]

    @property
    def energy_is_recent(self) -> npt.NDArray[np.bool_]:
        """Whether each GPU's energy counter was read so recently that its value is repeated."""
        # The time is NaN before the first frame.
        newest = np.full(len(self.gpus), self.last_ts, dtype=np.float64)
        recent: npt.NDArray[np.bool_] = newest - self.energy.at <= REPEATED_S
        return recent

    @property
    def complete_until(self) -> float | None:
        """The time until which samples and energy counters are in, None before the first."""
        if self.last_ts is None:
            return None
        return float(np.where(self.energy_is_recent, self.energy.at, self.last_ts).min(initial=self.last_ts))

    def power_since(self, since: float) -> Series:
        """Return the power of all GPUs since a time."""
        history = self.gpu_history or History(0, 0, 0)
        return (*history.series(POWER, since=since), history.intervals(since))

    def set_history(self, gpus: History, host: History) -> None:
        """Replace the histories."""
        self.gpu_history, self.host_history = gpus, host
        self.version += 1
