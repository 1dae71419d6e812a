"""Lets the rules judge modelled jobs: at once, or through frames, a recording and ``diagnose --json``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gswarm_agent.frame import Row
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, MOUNT_COLUMNS, MOUNTS, PORT_COLUMNS, PORTS
from gswarm_tui.fleet.events import EventLogged, FrameArrived, NodeIntroduced
from gswarm_tui.fleet.findings import CANNOT_TELL, Finding, in_order
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import STEP_S, NodeInfo, Step, Window
from tests.jobs.model import T0, USER, Floats, Job, Tick, ticks
from tests.unit.store_recording import INFO, arrived, record


@dataclass(frozen=True)
class Told:
    """Each change of a finding, with the seconds after the start at which it came; and the ledger's sums."""

    changes: list[tuple[float, Finding]]
    ledger: dict[str, float]
    window: Window

    def at(self, age: float = float("inf")) -> list[Finding]:
        """Return all findings so far, as ``diagnose`` prints them for a recording that ends at ``age``."""
        known = {one.finding_id: one for when, one in self.changes if when <= age}
        return in_order(one for one in known.values() if one.kind != CANNOT_TELL)

    def opened(self) -> list[tuple[float, Finding]]:
        """Return the findings as they opened, with the time at which each did."""
        first: dict[str, tuple[float, Finding]] = {}
        for when, one in self.changes:
            first.setdefault(one.finding_id, (when, one))
        return list(first.values())


def run(job: Job, rules: Sequence[Rule] = RULES, pp: int = 0) -> Told:
    """Let the rules look at a job at once, in steps of 5 s."""
    infos = {name: NodeInfo(hello, (True,) * job.gpus) for name, hello in job.hellos().items()}
    step_s = max(STEP_S, job.tick_s)
    window = Window(tuple(job.names), infos, step_s, pp=pp, user=USER)
    window = window.rebuilt(infos)
    watch = Watch(rules)
    changes: list[tuple[float, Finding]] = []
    of_step: list[Tick] = []
    for tick in ticks(job):
        of_step.append(tick)
        if len(of_step) * job.tick_s < step_s - 1e-6:
            continue
        _push(window, of_step)
        changes += [(tick.age, finding) for finding in watch.look(window)]
        of_step = []
    changes += [(job.seconds, finding) for finding in watch.open]
    return Told(changes, watch.ledger.totals(), window)


def record_job(path: Path, job: Job) -> None:
    """Record a job as agents would send it: processes every 5 s, ports and mounts every 10 s."""
    introduced = [NodeIntroduced(name, T0, hello) for name, hello in job.hellos().items()]
    info = replace(INFO, interval_ms=round(1000 * job.tick_s), user_name=USER)
    record(path, [*introduced, *_frames(job)], info, T0 + job.seconds)


def _frames(job: Job) -> Iterator[FrameArrived]:
    for seq, tick in enumerate(ticks(job), 1):
        gpus = _rows(GPU_COLUMNS, tick.gpus)
        hosts = _rows(HOST_COLUMNS, tick.hosts)
        for at, name in enumerate(job.names):
            if all(value is None for value in hosts[at]):
                continue
            lists = {
                kind: listed[name]
                for kind, listed in ((PORTS, tick.ports), (MOUNTS, tick.mounts))
                if name in listed and _due(tick.age, 10, job.tick_s)
            }
            processes = tick.processes if _due(tick.age, 5, job.tick_s) else None
            yield arrived(
                seq,
                [
                    None if row[GPU_COLUMNS.index("util_pct")] is None else row
                    for row in gpus[at * job.gpus : (at + 1) * job.gpus]
                ],
                name,
                f"life-{name}",
                T0 + tick.age,
                hosts[at],
                None if processes is None else processes[name],
                tuple(tick.notes.get(name, ())),
                listed=lists,
            )


def _due(age: float, every: float, tick_s: float) -> bool:
    return age % every < tick_s - 1e-6


def _rows(columns: Sequence[str], values: dict[str, Floats]) -> list[Row]:
    known = [values.get(name) for name in columns]
    count = len(next(iter(values.values())))
    return [
        tuple(None if one is None or np.isnan(one[at]) else float(one[at]) for one in known)
        for at in range(count)
    ]


def diagnosed(path: Path, *words: str) -> dict[str, Any]:
    """Return what ``gswarm-tui diagnose --json`` prints for a recording."""
    command = [sys.executable, "-m", "gswarm_tui", "diagnose", "--db", str(path), "--json", *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(printed.stdout)
    return found


def _push(window: Window, of_step: list[Tick]) -> None:
    last = of_step[-1]
    for name in window.nodes:
        if last.processes is None:
            window.processes[name] = None
        else:
            window.processes[name] = last.processes[name]
        if name in last.ports:
            listed = {
                port: dict(zip(PORT_COLUMNS, row or (), strict=False)) for port, row in last.ports[name]
            }
            window.ports[name] = listed
            window.first_ports.setdefault(name, listed)
        if name in last.mounts:
            window.mounts[name] = {
                mount: dict(zip(MOUNT_COLUMNS, row or (), strict=False)) for mount, row in last.mounts[name]
            }
    for tick in of_step:
        for name, notes in tick.notes.items():
            window.events.extend(
                EventLogged(T0 + tick.age, one.kind, one.severity, one.message, name, one.gpu, one.detail)
                for one in notes
            )
    gpus = _means([_signals(GPU_SIGNALS, tick.gpus) for tick in of_step])
    hosts = _means([_signals(HOST_SIGNALS, tick.hosts) for tick in of_step])
    newest = np.array([np.asarray(last.gpus[name], dtype=np.float64) for name in NEWEST])
    window.push(Step(T0 + last.age, gpus.astype(np.float32), hosts.astype(np.float32), newest))


def _means(steps: list[Floats]) -> Floats:
    stacked = np.array(steps)
    known = np.isfinite(stacked)
    counts = known.sum(axis=0)
    means: Floats = np.where(
        counts > 0, np.where(known, stacked, 0).sum(axis=0) / np.maximum(counts, 1), np.nan
    )
    return means


def _signals(signals: Sequence[Signal], values: dict[str, Floats]) -> Floats:
    rows = []
    for signal in signals:
        total = np.sum([values[name] for name in signal.columns], axis=0, dtype=np.float64)
        if signal.bits:
            held = np.nan_to_num(total).astype(np.int64) & signal.bits != 0
            total = np.where(np.isnan(total), np.nan, 100.0 * held)
        rows.append(total)
    return np.array(rows)
