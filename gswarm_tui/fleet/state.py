"""The fleet: what is known of every node and GPU now. Events go in, the screens and questions read.

No I/O, no clock: times come with the events and with the questions.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gswarm_agent.frame import ERROR, INFO, WARNING, GpuFacts, Hello, Note, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    Happened,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.history import Floats, History
from gswarm_tui.fleet.sessions import SessionBook
from gswarm_tui.fleet.throttling import ThrottleWatch

ENERGY = GPU_COLUMNS.index("energy_mj")
REASONS = GPU_COLUMNS.index("clock_reasons")
HISTORY_BYTES = 96 * 1024 * 1024
HISTORY_LONGEST = 3600
HISTORY_SHORTEST = 120
STALE_INTERVALS = 3
EVENTS_KEPT = 5000
LATE_QUIET_S = 30.0


class Standing(enum.Enum):
    """How a node looks to a person: its link's phase, and whether its data is fresh."""

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"
    LOST = "lost"
    ENDED = "ended"


@dataclass
class NodeState:
    """One node. ``gpus`` has shape (GPUs, GPU metrics) and ``host`` (host metrics,), NaN where unmeasured.

    ``version`` grows with every change that a screen could show. The energy column of ``gpu_history`` counts
    from the first reading (``energy_base``, mJ). ``mine`` tells for each GPU whether the
    job was granted it, True where that isn't known; ``own_memory_mib`` is the device memory of those.
    """

    name: str
    phase: Phase = Phase.CONNECTING
    since: float = 0.0
    reason: str = ""
    remedy: str = ""
    retry_at: float | None = None
    hello: Hello | None = None
    interval_s: float = 1.0
    gpus: Floats = field(default_factory=lambda: np.empty((0, len(GPU_COLUMNS))))
    host: Floats = field(default_factory=lambda: np.full(len(HOST_COLUMNS), np.nan))
    mine: tuple[bool, ...] = ()
    own_memory_mib: float | None = None
    energy_base: Floats | None = None
    gpu_history: History | None = None
    host_history: History | None = None
    processes: tuple[ProcessSample, ...] = ()
    last_ts: float | None = None
    last_arrival: float | None = None
    last_seq: int = 0
    frames: int = 0
    lost_frames: int = 0
    missed_ticks: int = 0
    late_ms: float = 0.0
    reconnects: int = 0
    offset_s: float = 0.0
    round_trip_s: float | None = None
    version: int = 0
    stale_told: bool = False
    late_told: float = 0.0
    lost_told: str = ""

    @property
    def facts(self) -> tuple[GpuFacts, ...]:
        """The node's GPUs, in the order of the rows of ``gpus``."""
        return self.hello.gpus if self.hello is not None else ()

    def age(self, now: float) -> float | None:
        """Seconds since its newest sample arrived, None before the first."""
        return None if self.last_arrival is None else max(0.0, now - self.last_arrival)

    def standing(self, now: float) -> Standing:
        """How it looks: a live link without a frame for three intervals is stale."""
        if self.phase is not Phase.LIVE:
            return Standing(self.phase.value)
        if self.last_arrival is None:
            return Standing.CONNECTING
        return Standing.STALE if now - self.last_arrival > self.stale_after_s else Standing.LIVE

    @property
    def stale_after_s(self) -> float:
        """How long without a frame makes it stale; at least a second, so that 10 Hz doesn't flicker."""
        return max(1.0, STALE_INTERVALS * self.interval_s)


class Fleet:
    """All nodes in the order they were given, their sessions and the latest happenings.

    ``allocation`` maps nodes to the device minors that the job was granted; a node that isn't in it
    has no known allocation.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        interval_s: float = 1.0,
        allocation: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        self.nodes: dict[str, NodeState] = {name: NodeState(name, interval_s=interval_s) for name in nodes}
        self.interval_s = interval_s
        self.sessions = SessionBook()
        self.happened: deque[Happened] = deque(maxlen=EVENTS_KEPT)
        self.happened_count = 0
        self.energy_j = 0.0
        self._allocation = allocation or {}
        self._throttling = ThrottleWatch()

    def apply(self, event: Event) -> list[Happened]:
        """Take in one event; answers what is worth a line in the events pane and a row in the database."""
        match event:
            case FrameArrived():
                told = self._frame(event)
            case NodeIntroduced():
                told = self._introduced(event)
            case LinkChanged():
                told = self._link(event)
            case LinkMeasured():
                node = self.nodes[event.node]
                node.offset_s, node.round_trip_s = event.offset_s, event.round_trip_s
                told = []
            case SessionStarted() | SessionChanged() | SessionStopped():
                told = self._session(event)
            case Happened():
                told = [event]
        for happening in told:
            self.happened.append(happening)
            self.happened_count += 1
        return told

    def tick(self, now: float) -> list[Happened]:
        """Look at the clock: nodes whose data went stale since the last look."""
        told = []
        for node in self.nodes.values():
            stale = node.standing(now) is Standing.STALE
            if stale and not node.stale_told:
                node.stale_told = True
                node.version += 1
                age = node.age(now) or 0.0
                told.append(Happened(now, "stale", WARNING, f"no data for {age:.1f} s", node.name))
        for happening in told:
            self.happened.append(happening)
            self.happened_count += 1
        return told

    def _link(self, event: LinkChanged) -> list[Happened]:
        node = self.nodes[event.node]
        before = node.phase
        node.phase, node.since = event.phase, event.at
        node.retry_at = event.retry_at
        if event.phase is not Phase.CONNECTING:  # until it is live again, why it was lost stays of interest
            node.reason, node.remedy = event.reason, event.remedy
        node.version += 1
        if event.phase is Phase.LOST:
            if event.reason == node.lost_told:
                return []
            node.lost_told = event.reason
            return [Happened(event.at, "link_lost", ERROR, event.reason, event.node, detail=event.remedy)]
        if event.phase is Phase.LIVE and before is not Phase.LIVE:
            node.lost_told = ""
            words = "connected again" if node.frames else "connected"
            node.reconnects += node.frames > 0
            return [Happened(event.at, "link_live", INFO, words, event.node)]
        return []

    def _introduced(self, event: NodeIntroduced) -> list[Happened]:
        node, hello = self.nodes[event.node], event.hello
        known = node.hello
        same = known is not None and [g.uuid for g in known.gpus] == [g.uuid for g in hello.gpus]
        node.hello = hello
        node.interval_s = hello.interval_ms / 1000
        if known is None or known.life != hello.life:
            node.last_seq = 0
        node.version += 1
        granted = self._allocation.get(event.node)
        node.mine = tuple(granted is None or g.minor is None or g.minor in granted for g in hello.gpus)
        sizes = [g.memory_total_mib for g, mine in zip(hello.gpus, node.mine, strict=True) if mine]
        told_sizes = [size for size in sizes if size is not None]
        node.own_memory_mib = float(sum(told_sizes)) if told_sizes else None
        if not same:
            count = len(hello.gpus)
            node.gpus = np.full((count, len(GPU_COLUMNS)), np.nan)
            node.energy_base = None
            capacity = self._history_length(count)
            node.gpu_history = History(capacity, count, len(GPU_COLUMNS))
            node.host_history = History(capacity, 1, len(HOST_COLUMNS))
        told = [
            Happened(event.at, "unmeasured", INFO, f"{what}: {why}", event.node)
            for what, why in hello.capabilities.items()
            if what in ("gpu", "processes") and (known is None or known.capabilities.get(what) != why)
        ]
        if known is not None and known.host.boot_id != hello.host.boot_id:
            told.append(Happened(event.at, "reboot", WARNING, "the node was booted anew", event.node))
        return told

    def _history_length(self, gpus: int) -> int:
        a_tick = max(1, len(self.nodes) * max(gpus, 1) * len(GPU_COLUMNS) * 4)
        return int(min(HISTORY_LONGEST, max(HISTORY_SHORTEST, HISTORY_BYTES // a_tick)))

    def _frame(self, event: FrameArrived) -> list[Happened]:
        node, frame = self.nodes[event.node], event.frame
        hello = node.hello
        if hello is None:
            return []
        before = node.gpus
        values = _gpu_values(hello, event)
        own = np.array(node.mine, dtype=bool)
        used_j = _energy_used(before[own], values[own])
        node.gpus = values
        host = _host_values(hello, event)
        node.host = host
        if frame.processes is not None:
            node.processes = frame.processes
        told = self._timing(node, event)
        if node.gpu_history is not None and node.host_history is not None:
            node.gpu_history.append(event.ts, _for_history(node, values))
            node.host_history.append(event.ts, host[np.newaxis, :])
        node.last_ts, node.last_arrival, node.last_seq = event.ts, event.at, frame.seq
        node.frames += 1
        node.version += 1
        self.energy_j += used_j
        self.sessions.add(event.ts, values[own], used_j)
        told += [_from_note(event, hello, note) for note in frame.notes]
        told += self._throttling.look(event.node, event.ts, hello.gpus, values[:, REASONS])
        return told

    def _timing(self, node: NodeState, event: FrameArrived) -> list[Happened]:
        told = []
        frame = event.frame
        if node.stale_told:
            node.stale_told = False
            told.append(Happened(event.at, "fresh", INFO, "data comes again", node.name))
        gap = frame.seq - node.last_seq - 1
        if node.last_seq and gap > 0:
            node.lost_frames += gap
            told.append(Happened(event.ts, "gap", WARNING, f"{gap} frames are missing", node.name))
        node.late_ms = frame.late_ms
        node.missed_ticks += frame.missed
        if frame.missed and event.ts - node.late_told > LATE_QUIET_S:
            node.late_told = event.ts
            words = f"sampling was {frame.late_ms:.0f} ms late and passed over {frame.missed} ticks"
            told.append(Happened(event.ts, "late", WARNING, words, node.name))
        return told

    def _session(self, event: SessionStarted | SessionChanged | SessionStopped) -> list[Happened]:
        match event:
            case SessionStarted():
                session = self.sessions.start(event)
                if event.started_at < event.at:
                    self._count_back(event.session_id)
                return [Happened(event.at, "session_started", INFO, session.name)]
            case SessionStopped():
                session = self.sessions.stop(event)
                return [Happened(event.at, "session_stopped", INFO, session.name)]
            case SessionChanged():
                self.sessions.change(event)
                return []

    def _count_back(self, session_id: str) -> None:
        """Count what the history still holds into a session that began in the past."""
        session = self.sessions.sessions[session_id]
        for node in self.nodes.values():
            if node.gpu_history is None:
                continue
            _, readings = node.gpu_history.readings(session.started_at)
            readings = readings[:, np.array(node.mine, dtype=bool)]
            for before, values in zip([readings[:1], *readings[:-1, np.newaxis]], readings, strict=False):
                session.add(values.astype(np.float64), _energy_used(before[0], values))


def _gpu_values(hello: Hello, event: FrameArrived) -> Floats:
    values = np.full((len(hello.gpus), len(hello.gpu_columns)), np.nan)
    for position, row in enumerate(event.frame.gpus):
        if row is not None:
            values[position] = np.array(row, dtype=np.float64)
    return values if hello.gpu_columns == GPU_COLUMNS else _renamed(values, hello.gpu_columns, GPU_COLUMNS)


def _host_values(hello: Hello, event: FrameArrived) -> Floats:
    row = event.frame.host
    if row is None:
        return np.full(len(HOST_COLUMNS), np.nan)
    values = np.array(row, dtype=np.float64)
    if hello.host_columns == HOST_COLUMNS:
        return values
    renamed: Floats = _renamed(values[np.newaxis, :], hello.host_columns, HOST_COLUMNS)[0]
    return renamed


def _renamed(values: Floats, have: Sequence[str], want: Sequence[str]) -> Floats:
    """Columns of another version's agent, put where this catalogue has them."""
    out = np.full((len(values), len(want)), np.nan)
    for position, name in enumerate(want):
        if name in have:
            out[:, position] = values[:, have.index(name)]
    return out


def _energy_used(before: Floats, after: Floats) -> float:
    """Joules between two readings of the energy counters; a counter that fell counts as nothing."""
    if before.shape != after.shape:
        return 0.0
    grown = after[:, ENERGY] - before[:, ENERGY]
    return float(grown[grown > 0].sum()) / 1000


def _for_history(node: NodeState, values: Floats) -> Floats:
    """The reading with its energy counted from the link's first, so that single precision holds it."""
    if node.energy_base is None:
        node.energy_base = np.nan_to_num(values[:, ENERGY])
    kept = values.copy()
    kept[:, ENERGY] -= node.energy_base
    return kept


def _from_note(event: FrameArrived, hello: Hello, note: Note) -> Happened:
    gpu = None if note.gpu is None else hello.gpus[note.gpu].index
    return Happened(event.ts, note.kind, note.severity, note.message, event.node, gpu)
