"""The fleet: what is known of every node and GPU now. Events go in, the screens and questions read.

No I/O, no clock: times come with the events and with the questions.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import ERROR, INFO, WARNING, GpuFacts, Hello, Note
from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_agent.wire import FRAMES_REMAIN, SENT_ALL
from gswarm_tui.fleet.counters import (
    UNKNOWN,
    CounterStep,
    CounterValue,
    EnergyCounters,
    energy_since,
    energy_used,
)
from gswarm_tui.fleet.events import (
    INTERVAL_CHANGED,
    Event,
    EventLogged,
    FrameArrived,
    FramesLost,
    GpuKey,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    agent_data_lost,
)
from gswarm_tui.fleet.frame_values import ENERGY, FrameValues, frame_values, gpu_totals
from gswarm_tui.fleet.history import Floats, HistoryAllocator, RowValues, empty_history, stack_tables
from gswarm_tui.fleet.node import UNHEALTHY_S, FramePosition, NodeState, append_history
from gswarm_tui.fleet.sessions import SessionBook
from gswarm_tui.fleet.throttling import ThrottleWatch

EVENTS_KEPT = 5000
TOGETHER = 128
"""So many readings go into the history at once."""
LATE_QUIET_S = 30.0


class _Taken(NamedTuple):
    """A reading that is counted with others; ``before`` are the counters from which it used energy."""

    node: NodeState
    ts: float
    reading: FrameValues
    interval_s: float | None
    before: EnergyCounters

    def used_within(self, start: float) -> float:
        """Joules of the job's GPUs in a span that began at ``start`` and has the reading in it."""
        mine = np.array(self.node.mine, dtype=bool)
        now = self.reading.gpus[mine, ENERGY]
        return CounterStep(self.before.of(mine), now, self.ts, self.interval_s).within(start)


class Fleet:
    """All nodes in the order they were given, their sessions and the latest happenings.

    ``allocation`` maps nodes to the device minors that the job was granted; a node that isn't in it
    has no known allocation. One that doesn't tell is of a recording, which holds what was told.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        interval_ms: int = 1000,
        allocation: Mapping[str, frozenset[int]] | None = None,
        *,
        derive_events: bool = True,
    ) -> None:
        self.nodes: dict[str, NodeState] = {name: NodeState(name, interval_ms=interval_ms) for name in nodes}
        self.interval_ms = interval_ms
        self.sessions = SessionBook()
        self.event_log: deque[EventLogged] = deque(maxlen=EVENTS_KEPT)
        self.logged_count = 0
        self.energy_j = 0.0
        self._derive_events = derive_events
        self._allocation = allocation or {}
        self._throttling = ThrottleWatch()
        self._shelf = HistoryAllocator(len(self.nodes))
        self._taken: list[_Taken] = []

    @property
    def interval_s(self) -> float:
        """Seconds between samples."""
        return self.interval_ms / 1000

    def apply(self, event: Event) -> list[EventLogged]:
        """Take in one event; answers what is worth a line in the events pane and a row in the database."""
        match event:
            case FrameArrived():
                return self.take((event,))
            case FramesLost():
                told = self._lost(event)
            case NodeIntroduced():
                told = self._introduced(event)
            case LinkChanged():
                told = self._link(event)
            case LinkMeasured():
                node = self.nodes[event.node]
                node.offset_s, node.round_trip_s = event.offset_s, event.round_trip_s
                told = []
            case IntervalChanged():
                told = self._change_interval(event)
            case SessionStarted() | SessionChanged() | SessionStopped():
                told = self._session(event)
            case EventLogged():
                told = [event]
        return self._told(told if self._derive_events else [one for one in told if one is event])

    def take(self, frames: Sequence[FrameArrived]) -> list[EventLogged]:
        """Take in frames, as ``apply`` does one after the other; many at once cost much less."""
        told: list[EventLogged] = []
        for event, reading in zip(frames, frame_values([event.frame for event in frames]), strict=True):
            told += self._frame(event, reading)
            if len(self._taken) >= TOGETHER:
                self._keep()
        self._keep()
        return self._told(told if self._derive_events else [])

    def _keep(self) -> None:
        taken, self._taken = self._taken, []
        append_history((one.node, one.ts, one.reading, one.interval_s) for one in taken)
        alike: dict[int, list[tuple[_Taken, Floats]]] = {}
        for one in taken:
            own = one.node.own(one.reading.gpus)
            alike.setdefault(len(own), []).append((one, own))
        for group in alike.values():
            self._count(*zip(*group, strict=True))

    def _count(self, taken: Sequence[_Taken], own: Sequence[Floats]) -> None:
        """Count readings, with as many GPUs of the job each, into the energy and the sessions they are in."""
        before = stack_tables([one.node.own(one.before.mj) for one in taken])
        used = energy_used(before, stack_tables([gpus[:, ENERGY] for gpus in own]))
        self.energy_j += float(used.sum())
        if self.sessions.sessions:
            counted = gpu_totals(stack_tables(own).transpose(2, 0, 1))
            for one, of_own, used_j in zip(taken, counted, used.tolist(), strict=True):
                for session in self.sessions.covering(one.ts):
                    whole = one.before.since >= session.started_at
                    energy_j = used_j if whole else one.used_within(session.started_at)
                    session.add(one.node.name, of_own, energy_j, one.interval_s)

    def tick(self, now: float) -> list[EventLogged]:
        """Look at the clock: nodes whose data went stale, or is missing for long, since the last look."""
        told = []
        for node in self.nodes.values():
            age = node.age(now)
            if age is None or age <= node.stale_after_s or node.phase is Phase.ENDED:
                continue
            if age > node.unhealthy_after_s and not node.unhealthy_told:
                node.unhealthy_told = True
                words = f"no data for {age:.0f} s" + (f": {node.reason}" if node.reason else "")
                told.append(
                    EventLogged(now, "unhealthy", ERROR, words, node.name, detail=node.remedy or None)
                )
            elif node.phase is Phase.LIVE and not node.stale_told:
                node.stale_told = True
                told.append(EventLogged(now, "stale", WARNING, f"no data for {age:.1f} s", node.name))
            else:
                continue
            node.version += 1
        return self._told(told)

    def _told(self, told: list[EventLogged]) -> list[EventLogged]:
        self.event_log.extend(told)
        self.logged_count += len(told)
        return told

    def resume(self, lives: Iterable[tuple[str, str, int, int]]) -> None:
        """A recording goes on, and has on disk: (node, life, last sequence, the time of that in ns)."""
        for name, life, seq, ts_ns in lives:
            if name in self.nodes:
                self.nodes[name].lives.remember(life, seq, ts_ns)

    def resume_counting(self, energy_j: float, counters: Mapping[GpuKey, CounterValue]) -> None:
        """A recording goes on in which so much was used, up to these counters."""
        self.energy_j = energy_j
        for gpu, answer in sorted(counters.items(), key=lambda told: told[1][1]):
            if gpu[0] in self.nodes:
                self.nodes[gpu[0]].remember([(gpu, answer)])

    def leave_off(self, name: str, life: str, last_at: float) -> None:
        """A recording goes on that was interrupted while this life of a node measured.

        If the node has nothing to say of it, what it measured since its newest frame is told as lost.
        """
        if name in self.nodes:
            self.nodes[name].left_off = life, last_at

    def _link(self, event: LinkChanged) -> list[EventLogged]:
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
            as_asked = event.reason.startswith(SENT_ALL) and not event.reason.endswith(FRAMES_REMAIN)
            severity = INFO if as_asked else ERROR
            return [
                EventLogged(event.at, "link_lost", severity, event.reason, event.node, detail=event.remedy)
            ]
        if event.phase is Phase.LIVE and before is not Phase.LIVE:
            node.lost_told = ""
            words = "connected again" if node.was_live else "connected"
            node.reconnects += node.was_live
            node.was_live = True
            return [EventLogged(event.at, "link_live", INFO, words, event.node)]
        return []

    def _introduced(self, event: NodeIntroduced) -> list[EventLogged]:
        node, hello = self.nodes[event.node], event.hello
        known = node.hello
        untold = self._untold(node, hello.life, of_now=not event.former)
        if event.former:
            node.former = hello
            if known is None:
                self._adopt(node, hello)
            return []
        if node.former is not None and node.former.life == hello.life:
            node.former = None
        self._adopt(node, hello)
        told = [
            EventLogged(event.at, "unmeasured", INFO, f"{what}: {why}", event.node)
            for what, why in hello.capabilities.items()
            if what in ("gpu", "processes") and (known is None or known.capabilities.get(what) != why)
        ]
        if known is not None and known.host.boot_id != hello.host.boot_id:
            told.append(EventLogged(event.at, "reboot", WARNING, "the node was booted anew", event.node))
        return untold + told

    def _untold(self, node: NodeState, life: str, *, of_now: bool) -> list[EventLogged]:
        """The node spoke of a life. Former ones come first, so one that it has left out by now is gone."""
        if node.left_off is None or (life != node.left_off[0] and not of_now):
            return []
        (left, last_at), node.left_off = node.left_off, None
        return [] if life == left else [agent_data_lost(node.name, last_at, last_at)]

    def _adopt(self, node: NodeState, hello: Hello) -> None:
        """Show the node as this hello describes it; other GPUs begin with an empty history."""
        same = node.hello is not None and _same_gpus(node.hello, hello)
        if not (same and node.hello and node.hello.process_columns == hello.process_columns):
            node.looked = None  # they are of the GPUs and columns of before
        if not same:
            node.remember(zip(_keys(node.name, node.facts), node.counters.answers, strict=True))
            node.counters = EnergyCounters.known(
                node.answered.get(gpu, UNKNOWN) for gpu in _keys(node.name, hello.gpus)
            )
        node.hello = hello
        node.interval_ms = hello.interval_ms
        node.version += 1
        node.mine = self._granted(node.name, hello)
        sizes = [g.memory_total_mib for g, mine in zip(hello.gpus, node.mine, strict=True) if mine]
        told_sizes = [size for size in sizes if size is not None]
        node.own_memory_mib = float(sum(told_sizes)) if told_sizes else None
        if not same:
            count = len(hello.gpus)
            node.gpus = np.full((count, len(GPU_COLUMNS)), np.nan)
            self._begin_history(node, count)

    def _granted(self, name: str, hello: Hello) -> tuple[bool, ...]:
        granted = self._allocation.get(name)
        return tuple(granted is None or g.minor is None or g.minor in granted for g in hello.gpus)

    def _begin_history(self, node: NodeState, gpus: int) -> None:
        """An empty one, beside others' where it is the node's first: places there aren't given back."""
        shelf = self._shelf if node.gpu_history is None else HistoryAllocator(1)
        node.take(empty_history(shelf, len(self.nodes), gpus))

    def _frame(self, event: FrameArrived, reading: FrameValues) -> list[EventLogged]:
        node, frame = self.nodes[event.node], event.frame
        hello = node.hello
        if node.former is not None and node.former.life == event.life:
            hello = node.former
        if hello is None or node.hello is None or (place := node.lives.place(event.life, frame)) is None:
            return []
        node.frames += 1
        node.version += 1
        told = _gap(node, event.ts, place.missing)
        told += [_from_note(event, hello, note) for note in frame.notes]
        if not _same_gpus(hello, node.hello):
            own = reading.gpus[np.array(self._granted(node.name, hello), dtype=bool)]
            (counted,) = gpu_totals(own.T[:, np.newaxis])
            for session in self.sessions.covering(event.ts):
                session.add(node.name, counted, 0.0, place.interval_s)
        elif node.last_ts is not None and event.ts < node.last_ts:
            self._late(node, event, reading, place)
        else:
            told += self._newest(node, event, hello, reading, place)
        return told

    def _newest(
        self, node: NodeState, event: FrameArrived, hello: Hello, reading: FrameValues, place: FramePosition
    ) -> list[EventLogged]:
        """A reading after all that are known: what the node shows from now on."""
        frame = event.frame
        self._taken.append(_Taken(node, event.ts, reading, place.interval_s, node.counters))
        node.gpus, node.host = reading.gpus, reading.host
        node.counters = node.counters.then(reading.gpus[:, ENERGY], event.ts, silent=reading.energy_missing)
        node.last_ts = event.ts
        if frame.processes is not None and node.hello and hello.process_columns == node.hello.process_columns:
            node.looked = frame.processes
        told = self._fresh(node, event) if event.at - event.ts < UNHEALTHY_S else []
        return told + self._throttling.look(event.node, event.ts, hello.gpus, reading.reasons)

    def _late(self, node: NodeState, event: FrameArrived, reading: FrameValues, place: FramePosition) -> None:
        """A reading before the newest: it fills the history and its sessions, and nothing else.

        The energy from the answers before it to those after it is divided anew.
        """
        self._keep()
        told = reading.gpus[:, ENERGY]
        self._taken.append(_Taken(node, event.ts, reading, place.interval_s, EnergyCounters(told, event.ts)))
        node.counters = node.counters.late(told, event.ts)
        if node.gpu_history is None:
            return
        before, after = (RowValues(*map(node.own, one)) for one in node.gpu_history.around(event.ts, ENERGY))
        now = node.own(told - node.counted_from(reading))
        step = CounterStep(EnergyCounters(*before), now, event.ts, place.interval_s)
        self.energy_j += step.instead(after, -math.inf, math.inf)
        for session in self.sessions.sessions.values():
            session.energy_j += step.instead(after, session.started_at, session.until)

    def _fresh(self, node: NodeState, event: FrameArrived) -> list[EventLogged]:
        """A reading of just now: the node is well, and how well it keeps its times is of interest."""
        told, frame = [], event.frame
        node.last_arrival = event.at
        if node.stale_told or node.unhealthy_told:
            node.stale_told = node.unhealthy_told = False
            told.append(EventLogged(event.at, "fresh", INFO, "data comes again", node.name))
        node.late_ms = frame.late_ms
        node.missed_ticks += frame.missed
        if frame.missed and event.ts - node.late_told > LATE_QUIET_S:
            node.late_told = event.ts
            words = f"sampling was {frame.late_ms:.0f} ms late and passed over {frame.missed} ticks"
            told.append(EventLogged(event.ts, "late", WARNING, words, node.name))
        return told

    def _lost(self, event: FramesLost) -> list[EventLogged]:
        """The agent knows that frames never come; how many of them aren't here, only we know."""
        node = self.nodes[event.node]
        self._untold(node, event.life, of_now=False)
        return _gap(node, event.ts, node.lives.lose(event.life, event.seq), event.reason)

    def _change_interval(self, event: IntervalChanged) -> list[EventLogged]:
        old, self.interval_ms = self.interval_ms, event.interval_ms
        for node in self.nodes.values():
            node.interval_ms = event.interval_ms
            node.version += 1
        if old == event.interval_ms:
            return []
        detail = json.dumps({"old_ms": old, "new_ms": event.interval_ms})
        message = f"sampling interval changed from {old / 1000:g} s to {event.interval_ms / 1000:g} s"
        return [EventLogged(event.at, INTERVAL_CHANGED, INFO, message, detail=detail)]

    def _session(self, event: SessionStarted | SessionChanged | SessionStopped) -> list[EventLogged]:
        match event:
            case SessionStarted():
                session = self.sessions.start(event)
                if event.started_at < event.at:
                    self._count_back(event.session_id)
                return [EventLogged(event.at, "session_started", INFO, session.name)]
            case SessionStopped():
                session = self.sessions.stop(event)
                return [EventLogged(event.at, "session_stopped", INFO, session.name)]
            case SessionChanged():
                self.sessions.change(event)
                return []

    def _count_back(self, session_id: str) -> None:
        """Count what the history still holds into a session that began in the past."""
        session = self.sessions.sessions[session_id]
        for node in self.nodes.values():
            if node.gpu_history is None:
                continue
            _, tables = node.gpu_history.readings(session.started_at)
            mine = np.array(node.mine, dtype=bool)
            own = tables.transpose(2, 0, 1)[:, :, mine].astype(np.float64)
            lasted = np.nan_to_num(node.gpu_history.intervals(session.started_at)).tolist()
            for interval_s, of_own in zip(lasted, gpu_totals(own), strict=True):
                session.add(node.name, of_own, 0.0, interval_s)
            times, counters = node.gpu_history.series(ENERGY)
            intervals = node.gpu_history.intervals()
            session.energy_j += energy_since(times, intervals, counters[:, mine], session.started_at)


def _gap(node: NodeState, ts: float, missing: int, reason: str = "") -> list[EventLogged]:
    if not missing:
        return []
    node.lost_frames += missing
    node.version += 1
    words = "1 frame is missing" if missing == 1 else f"{missing:,} frames are missing"
    return [EventLogged(ts, "gap", WARNING, words + (f": {reason}" if reason else ""), node.name)]


def _keys(node: str, gpus: Sequence[GpuFacts]) -> list[GpuKey]:
    return [(node, gpu.index, gpu.uuid) for gpu in gpus]


def _same_gpus(one: Hello, other: Hello) -> bool:
    return one is other or [g.uuid for g in one.gpus] == [g.uuid for g in other.gpus]


def _from_note(event: FrameArrived, hello: Hello, note: Note) -> EventLogged:
    gpu = None if note.gpu is None else hello.gpus[note.gpu].index
    at = event.ts if note.ts_ns is None else note.ts_ns / 1e9 - event.offset_s
    return EventLogged(at, note.kind, note.severity, note.message, event.node, gpu, note.detail)
