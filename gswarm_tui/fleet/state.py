"""The fleet: the state of every node and GPU, computed from events and read by screens and queries.

No I/O and no clock: callers and events pass the time.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import ERROR, INFO, NOTE_KINDS, STEP, WARNING, GpuFacts, Hello, Note
from gswarm_agent.metrics import DEFAULT_GROUPS, GPU_COLUMNS, HOST, PROCESSES
from gswarm_agent.wire import FRAMES_REMAIN, SENT_ALL
from gswarm_tui.common.quantities import plural
from gswarm_tui.fleet import events
from gswarm_tui.fleet.allocation import SEE_OWN_GPUS, UNKNOWN_GPUS, are_unknown, own_gpus
from gswarm_tui.fleet.energy import UNKNOWN, EnergyMeters, EnergyUsed, GpuEnergy, used_since
from gswarm_tui.fleet.findings import FAULT, WASTE, Finding
from gswarm_tui.fleet.frame_values import ENERGY, POWER, FrameValues, frame_values, gpu_totals
from gswarm_tui.fleet.history import Floats, empty_history
from gswarm_tui.fleet.node import UNHEALTHY_S, FramePosition, NodeState
from gswarm_tui.fleet.sessions import Session, SessionBook

EVENTS_KEPT = 5000
FINDINGS_KEPT = 1000
"""Findings that are kept; the recording has all."""
MAX_MESSAGE = 500
"""Maximum characters in the message of a node's event; agents send shorter ones."""
BATCH_FRAMES = 128
"""Frames that are added to the history at once."""
LATE_QUIET_S = 30.0


class _PendingFrame(NamedTuple):
    """A frame not yet added to the history and the sessions."""

    node: NodeState
    ts: float
    samples: FrameValues
    interval_s: float | None
    used: EnergyUsed


class Fleet:
    """All nodes in the order given, their sessions and the latest logged events.

    ``allocation`` maps nodes to the device minors that the job was granted; a missing node has no known
    allocation. ``metrics`` are the groups of metrics that all nodes measure. Without ``derive_events`` the
    fleet logs only the events passed in, as a replay needs.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        interval_ms: int = 1000,
        allocation: Mapping[str, frozenset[int]] | None = None,
        *,
        metrics: tuple[str, ...] = DEFAULT_GROUPS,
        derive_events: bool = True,
    ) -> None:
        self.nodes: dict[str, NodeState] = {
            name: NodeState(name, interval_ms=interval_ms, metrics=metrics) for name in nodes
        }
        self.interval_ms = interval_ms
        self.metrics = metrics
        self.sessions = SessionBook()
        self.event_log: deque[events.EventLogged] = deque(maxlen=EVENTS_KEPT)
        self.logged_count = 0
        self.energy_j = 0.0
        self.findings: dict[str, Finding] = {}
        self.examined: events.FleetExamined | None = None
        self._derive_events = derive_events
        self.allocation = allocation or {}
        self._pending: list[_PendingFrame] = []

    @property
    def interval_s(self) -> float:
        """Seconds between samples."""
        return self.interval_ms / 1000

    def apply(self, event: events.Event) -> list[events.EventLogged]:
        """Apply one event and return the events to log: on the events screen and in the database."""
        match event:
            case events.FrameArrived():
                return self.apply_frames((event,))
            case events.FramesLost():
                logged = self._lost(event)
            case events.NodeIntroduced():
                logged = self._introduced(event)
            case events.LinkChanged():
                logged = self._link(event)
            case events.LinkMeasured():
                node = self.nodes[event.node]
                node.offset_s, node.round_trip_s = event.offset_s, event.round_trip_s
                logged = []
            case events.IntervalChanged():
                logged = self._change_interval(event)
            case events.MetricsChanged():
                logged = self._change_metrics(event)
            case (
                events.SessionStarted()
                | events.SessionChanged()
                | events.SessionStopped()
                | events.StopUndone()
            ):
                logged = self._session(event)
            case events.EventLogged():
                logged = [event]
            case events.FindingChanged():
                logged = self._change_finding(event)
            case events.FleetExamined():
                self.examined, logged = event, []
        return self._log(logged if self._derive_events else [one for one in logged if one is event])

    def apply_frames(self, frames: Sequence[events.FrameArrived]) -> list[events.EventLogged]:
        """Apply frames as ``apply`` does, many at once for speed."""
        return self.measure_frames(frames)[1]

    def measure_frames(
        self, frames: Sequence[events.FrameArrived]
    ) -> tuple[list[events.FrameArrived], list[events.EventLogged]]:
        """Apply frames; return them with the energy that their GPUs used, and the events to log."""
        measured, logged = [], []
        for event, samples in zip(frames, frame_values([event.frame for event in frames]), strict=True):
            used, of_frame = self._frame(event, samples)
            measured.append(event if used is event.energy else replace(event, energy=used))
            logged += of_frame
            if len(self._pending) >= BATCH_FRAMES:
                self._count_pending()
        self._count_pending()
        return measured, self._log(logged if self._derive_events else [])

    def _count_pending(self) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            if one.node.gpu_history is not None and one.node.host_history is not None:
                one.node.gpu_history.append(one.ts, one.interval_s, one.samples.gpus)
                one.node.host_history.append(one.ts, one.interval_s, one.samples.host[np.newaxis])
        by_gpus: dict[int, list[tuple[_PendingFrame, Floats]]] = {}
        for one in pending:
            own = one.node.own(one.samples.gpus)
            by_gpus.setdefault(len(own), []).append((one, own))
        for group in by_gpus.values():
            self._count(*zip(*group, strict=True))

    def _count(self, frames: Sequence[_PendingFrame], own: Sequence[Floats]) -> None:
        """Add frames with equally many GPUs of the job to the energy, and to sessions in the time of each."""
        used = np.nan_to_num([one.node.own(one.used.mj) for one in frames]).sum(axis=1) / 1000
        for used_j in used.tolist():  # one by one, for the same digits however many come at once
            self.energy_j += used_j
        if self.sessions.sessions:
            counted = gpu_totals(np.stack(own).transpose(2, 0, 1))
            covers = (
                np.nan_to_num([one.node.own(one.used.ms) for one in frames]).max(axis=1, initial=0.0) / 1000
            )
            for one, of_own, used_j, covers_s in zip(
                frames, counted, used.tolist(), covers.tolist(), strict=True
            ):
                began = one.ts - max(covers_s, one.interval_s or 0.0)
                for session in self.sessions.overlapping(began, one.ts):
                    session.add(one.node.name, of_own, session.overlap_s(one.ts, one.interval_s))
                    if session.started_at <= began and one.ts <= session.until:
                        session.energy_j += used_j
                    else:
                        power = one.node.power_since(began)
                        parts = one.used.within(one.ts, session.started_at, session.until, power)
                        session.energy_j += float(one.node.own(parts).sum()) / 1000

    def tick(self, now: float) -> list[events.EventLogged]:
        """Return events for the nodes that became stale or unhealthy."""
        logged = []
        for node in self.nodes.values():
            age = node.age(now)
            if age is None or age <= node.stale_after_s or node.phase is events.Phase.ENDED:
                continue
            if age > node.unhealthy_after_s and not node.unhealthy_logged:
                node.unhealthy_logged = True
                words = f"no data for {age:.0f} s" + (f": {node.reason}" if node.reason else "")
                logged.append(
                    events.EventLogged(now, "unhealthy", ERROR, words, node.name, detail=node.remedy or None)
                )
            elif node.phase is events.Phase.LIVE and not node.stale_logged:
                node.stale_logged = True
                logged.append(
                    events.EventLogged(now, "stale", WARNING, f"no data for {age:.1f} s", node.name)
                )
            else:
                continue
            node.version += 1
        return self._log(logged)

    def _log(self, logged: list[events.EventLogged]) -> list[events.EventLogged]:
        kept = [event for event in logged if event.kind != STEP]
        self.event_log.extend(kept)
        self.logged_count += len(kept)
        return logged

    def excuse_silence(self, seconds: float) -> None:
        """Reduce the age of all samples by a pause of this machine, during which none could arrive."""
        for node in self.nodes.values():
            if node.last_arrival is not None:
                node.last_arrival += seconds

    def restore_sequences(self, lives: Iterable[tuple[str, str, int, int]]) -> None:
        """Restore a resumed recording's frames on disk: (node, life, last sequence, its time in ns)."""
        for name, life, seq, ts_ns in lives:
            if name in self.nodes:
                self.nodes[name].lives.note(life, seq, ts_ns)

    def restore_energy(self, energy_j: float, gpus: Mapping[events.GpuKey, GpuEnergy]) -> None:
        """Restore the energy of a resumed recording, in all and of each GPU."""
        self.energy_j = energy_j
        for key, gpu in gpus.items():
            if key[0] in self.nodes:
                self.nodes[key[0]].keep_energy([(key, gpu)])

    def note_interrupted_run(self, name: str, life: str, last_at: float) -> None:
        """Record that a resumed recording was interrupted during this agent run (life).

        If the node has nothing left of the run, its samples since the newest frame are logged as lost.
        """
        if name in self.nodes:
            self.nodes[name].interrupted_run = life, last_at

    def _link(self, event: events.LinkChanged) -> list[events.EventLogged]:
        node = self.nodes[event.node]
        before = node.phase
        node.phase, node.since = event.phase, event.at
        node.retry_at = event.retry_at
        if event.phase is not events.Phase.CONNECTING:  # keep the reason while it reconnects
            node.reason, node.remedy = event.reason, event.remedy
        node.version += 1
        if event.phase is events.Phase.LOST:
            if event.reason == node.lost_reason_logged:
                return []
            node.lost_reason_logged = event.reason
            requested = event.reason.startswith(SENT_ALL) and not event.reason.endswith(FRAMES_REMAIN)
            severity = INFO if requested else ERROR
            kind = events.UNREACHABLE if node.hello is None else events.LINK_LOST
            return [
                events.EventLogged(event.at, kind, severity, event.reason, event.node, detail=event.remedy)
            ]
        if event.phase is events.Phase.LIVE and before is not events.Phase.LIVE:
            node.lost_reason_logged = ""
            words = "connected again" if node.was_live else "connected"
            node.reconnects += node.was_live
            node.was_live = True
            return [events.EventLogged(event.at, "link_live", INFO, words, event.node)]
        return []

    def _introduced(self, event: events.NodeIntroduced) -> list[events.EventLogged]:
        node, hello = self.nodes[event.node], event.hello
        known = node.hello
        lost = self._check_interrupted_run(node, hello.life, current=not event.former)
        if event.former:
            node.former = hello
            if known is None:
                self._adopt(node, hello)
            return []
        if node.former is not None and node.former.life == hello.life:
            node.former = None
        self._adopt(node, hello)
        new = known is None or not _same_gpus(known, hello)
        if new and are_unknown(hello.gpus, self.allocation.get(event.node)):
            warning = WARNING, UNKNOWN_GPUS, event.node
            lost.append(events.EventLogged(event.at, "allocation", *warning, detail=SEE_OWN_GPUS))
        if known is not None and known.host.boot_id != hello.host.boot_id:
            lost.append(events.EventLogged(event.at, "reboot", WARNING, "the node rebooted", event.node))
        return lost

    def _check_interrupted_run(
        self, node: NodeState, life: str, *, current: bool
    ) -> list[events.EventLogged]:
        """Return an event if the interrupted agent run is lost: agents announce former runs first."""
        if node.interrupted_run is None or (life != node.interrupted_run[0] and not current):
            return []
        (left, last_at), node.interrupted_run = node.interrupted_run, None
        return [] if life == left else [events.agent_data_lost(node.name, last_at, last_at)]

    def _adopt(self, node: NodeState, hello: Hello) -> None:
        """Set up the node as its hello describes it; other GPUs begin with an empty history."""
        same = node.hello is not None and _same_gpus(node.hello, hello)
        if not same:
            node.process_table = None  # it is of the former GPUs
            node.keep_energy(zip(_keys(node.name, node.facts), node.energy.gpus, strict=True))
            keys = _keys(node.name, hello.gpus)
            node.energy = EnergyMeters.of(node.former_energy.get(key, UNKNOWN) for key in keys)
        node.hello = hello
        node.interval_ms = hello.interval_ms
        node.version += 1
        node.mine = own_gpus(hello.gpus, self.allocation.get(node.name))
        divided = {gpu.parent_index for gpu in hello.gpus}
        own = [(row, gpu) for row, gpu in enumerate(hello.gpus) if node.mine[row]]
        node.gpu_count = sum(gpu.parent_index is None for _, gpu in own)
        node.memory_rows = [row for row, gpu in own if gpu.index not in divided]
        sizes = [hello.gpus[row].memory_total_mib for row in node.memory_rows]
        known_sizes = [size for size in sizes if size is not None]
        node.own_memory_mib = float(sum(known_sizes)) if known_sizes else None
        if not same:
            count = len(hello.gpus)
            node.gpus = np.full((count, len(GPU_COLUMNS)), np.nan)
            node.set_history(*empty_history(len(self.nodes), count))

    def _frame(
        self, event: events.FrameArrived, samples: FrameValues
    ) -> tuple[EnergyUsed | None, list[events.EventLogged]]:
        """Apply one frame; return the energy that its GPUs used, and the events to log."""
        node, frame = self.nodes[event.node], event.frame
        hello = node.hello
        if node.former is not None and node.former.life == event.life:
            hello = node.former
        if hello is None or node.hello is None or (place := node.lives.accept(event.life, frame)) is None:
            return None, []
        node.frames += 1
        node.version += 1
        logged = _gap(node, event.ts, place.missing)
        logged += [_from_note(event, hello, note) for note in frame.notes]
        if not _same_gpus(hello, node.hello):
            own = samples.gpus[np.array(own_gpus(hello.gpus, self.allocation.get(node.name)), dtype=bool)]
            (counted,) = gpu_totals(own.T[:, np.newaxis])
            for session in self.sessions.overlapping(event.ts - (place.interval_s or 0.0), event.ts):
                session.add(node.name, counted, session.overlap_s(event.ts, place.interval_s))
            return None, logged
        late = node.last_ts is not None and event.ts < node.last_ts
        if late:  # it changes the history and sessions only
            self._count_pending()
        used = self._take_in(node, event, samples, place)
        if late:
            samples.gpus[:, ENERGY] = np.nan  # nobody knows how much was used until then
        else:
            logged += self._newest(node, event, samples)
        return used, logged

    def _newest(
        self, node: NodeState, event: events.FrameArrived, samples: FrameValues
    ) -> list[events.EventLogged]:
        """Apply a frame that is the newest: the node shows it from now on."""
        frame = event.frame
        node.gpus, node.host = samples.gpus, samples.host
        node.last_ts = event.ts
        if (kept := np.isnan(node.gpus[:, ENERGY]) & node.energy_is_recent).any():
            node.gpus = node.gpus.copy()
            node.gpus[kept, ENERGY] = node.energy.used_mj[kept]
        if frame.processes is not None and PROCESSES in self.metrics:
            node.process_table = frame.processes
        if frame.listings and HOST in self.metrics:
            node.listings = {**node.listings, **frame.listings}
        return self._fresh(node, event) if event.at - event.ts < UNHEALTHY_S else []

    def _take_in(
        self, node: NodeState, event: events.FrameArrived, samples: FrameValues, place: FramePosition
    ) -> EnergyUsed:
        """Return the energy of a frame, and replace its counters by the energy used so far."""
        counters = samples.gpus[:, ENERGY].copy()
        used, before = event.energy, node.energy
        if used is None:
            power_w = samples.gpus[:, POWER]
            used, node.energy = before.measure(counters, power_w, event.ts, place.interval_s)
        else:
            node.energy = before.after(counters, event.ts, used)
        samples.gpus[:, ENERGY] = node.energy.used_mj
        if node.energy.counter_mj is not counters:  # some weren't read
            samples.gpus[np.isnan(counters) & np.isnan(used.mj), ENERGY] = np.nan
        self._pending.append(_PendingFrame(node, event.ts, samples, place.interval_s, used))
        return used

    def _fresh(self, node: NodeState, event: events.FrameArrived) -> list[events.EventLogged]:
        """Apply a frame that is fresh: the node is healthy, and its lateness is current."""
        logged, frame = [], event.frame
        node.last_arrival = max(node.last_arrival or event.at, event.at)  # later while silence is excused
        if node.stale_logged or node.unhealthy_logged:
            node.stale_logged = node.unhealthy_logged = False
            logged.append(events.EventLogged(event.at, "fresh", INFO, "data arrives again", node.name))
        node.late_ms = frame.late_ms
        node.missed_ticks += frame.missed
        if frame.missed and event.ts - node.late_logged_at > LATE_QUIET_S:
            node.late_logged_at = event.ts
            message = f"sampling was {frame.late_ms:.0f} ms late and missed {plural(frame.missed, 'tick')}"
            logged.append(events.EventLogged(event.ts, "late", WARNING, message, node.name))
        return logged

    def _lost(self, event: events.FramesLost) -> list[events.EventLogged]:
        """Count the frames that the agent reports as lost and that never arrived."""
        node = self.nodes[event.node]
        self._check_interrupted_run(node, event.life, current=False)
        return _gap(node, event.ts, node.lives.count_lost(event.life, event.seq), event.reason)

    def _change_interval(self, event: events.IntervalChanged) -> list[events.EventLogged]:
        old, self.interval_ms = self.interval_ms, event.interval_ms
        for node in self.nodes.values():
            node.interval_ms = event.interval_ms
            node.version += 1
        if old == event.interval_ms:
            return []
        detail = json.dumps({"old_ms": old, "new_ms": event.interval_ms})
        message = f"sampling interval changed from {old / 1000:g} s to {event.interval_ms / 1000:g} s"
        return [events.EventLogged(event.at, events.INTERVAL_CHANGED, INFO, message, detail=detail)]

    def _change_metrics(self, event: events.MetricsChanged) -> list[events.EventLogged]:
        old, self.metrics = self.metrics, event.groups
        for node in self.nodes.values():
            node.metrics = event.groups
            if PROCESSES not in event.groups:
                node.process_table = None
            if HOST not in event.groups:
                node.listings = {}
            node.version += 1
        return [] if old == event.groups else [events.metrics_changed(event.at, old, event.groups)]

    def _session(
        self, event: events.SessionStarted | events.SessionChanged | events.SessionStopped | events.StopUndone
    ) -> list[events.EventLogged]:
        match event:
            case events.SessionStarted():
                session = self.sessions.start(event)
                if event.started_at < event.at:
                    self._count_back(session, session.started_at)
                return [events.EventLogged(event.started_at, "session_started", INFO, session.name)]
            case events.SessionStopped():
                was_running = self.sessions.sessions[event.session_id].running
                session = self.sessions.stop(event)
                newest = max((node.last_ts or -math.inf for node in self.nodes.values()), default=-math.inf)
                # A session that ends in the past has counted samples after its end, which don't belong to it.
                if was_running and session.until <= newest:
                    histories = [node.gpu_history for node in self.nodes.values() if node.gpu_history]
                    if all(history.reaches(session.until) for history in histories):
                        self._count_back(session, session.until, -1)
                    else:
                        session.forget()
                return [events.EventLogged(session.until, "session_stopped", INFO, session.name)]
            case events.StopUndone():
                ended_at = self.sessions.sessions[event.session_id].ended_at
                session = self.sessions.undo_stop(event)
                if ended_at is None:
                    return []
                self._count_back(session, ended_at)
                return [events.EventLogged(event.at, "stop_undone", INFO, session.name)]
            case events.SessionChanged():
                before = self.sessions.sessions[event.session_id].name
                after = self.sessions.change(event).name
                if after == before:
                    return []
                return [events.EventLogged(event.at, "session_renamed", INFO, f"{before} is now {after}")]

    def _change_finding(self, event: events.FindingChanged) -> list[events.EventLogged]:
        finding = event.finding
        before = self.findings.get(finding.finding_id)
        self.findings[finding.finding_id] = finding
        if len(self.findings) > FINDINGS_KEPT:
            ended = (name for name, one in self.findings.items() if one.until is not None)
            del self.findings[next(ended, next(iter(self.findings)))]
        if finding.until is not None and (before is None or before.until is None):
            kind, severity, at = "finding_end", INFO, finding.until
            message = f"no longer: {finding.sentence}"
        elif before is None:
            kind, at, message = "finding", event.at, finding.sentence
            severity = {FAULT: ERROR, WASTE: WARNING}.get(finding.severity, INFO)
        else:
            return []
        return [events.EventLogged(at, kind, severity, message[:MAX_MESSAGE], finding.node, finding.gpu)]

    def _count_back(self, session: Session, since: float, sign: int = 1) -> None:
        """Add the history since a time to a session that was backdated or runs on; the sign -1 removes it."""
        for node in self.nodes.values():
            if node.gpu_history is None:
                continue
            times, tables = node.gpu_history.tables()
            own = tables.transpose(2, 0, 1)[:, :, np.array(node.mine, dtype=bool)].astype(np.float64)
            seconds = np.clip(times - since, 0, np.nan_to_num(node.gpu_history.intervals()))
            for weight, totals in zip(seconds.tolist(), gpu_totals(own), strict=True):
                if weight:
                    session.add(node.name, totals, sign * weight)
            power = times, own[POWER], node.gpu_history.intervals()
            session.energy_j += sign * used_since(power, own[ENERGY], since)


def _gap(node: NodeState, ts: float, missing: int, reason: str = "") -> list[events.EventLogged]:
    if not missing:
        return []
    node.lost_frames += missing
    node.version += 1
    words = "1 frame is missing" if missing == 1 else f"{missing:,} frames are missing"
    message = f"{words}: {reason}" if reason else words
    return [events.EventLogged(ts, "gap", WARNING, message[:MAX_MESSAGE], node.name)]


def _keys(node: str, gpus: Sequence[GpuFacts]) -> list[events.GpuKey]:
    return [(node, gpu.index, gpu.uuid) for gpu in gpus]


def _same_gpus(one: Hello, other: Hello) -> bool:
    return one is other or [g.uuid for g in one.gpus] == [g.uuid for g in other.gpus]


def _from_note(event: events.FrameArrived, hello: Hello, note: Note) -> events.EventLogged:
    gpu = None if note.gpu is None else hello.gpus[note.gpu].index
    at = event.ts if note.ts_ns is None else min(note.ts_ns / 1e9 - event.offset_s, event.at)
    kind = note.kind if note.kind in NOTE_KINDS else "notice"
    return events.EventLogged(
        at, kind, note.severity, note.message[:MAX_MESSAGE], event.node, gpu, note.detail
    )
