"""Lets the rules judge modelled jobs: at once, or through frames, a recording and ``diagnose --json``."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gswarm_agent.frame import Row
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, LISTINGS, MOUNTS, PORTS
from gswarm_tui.fleet.events import EventLogged, FrameArrived, NodeIntroduced
from gswarm_tui.fleet.findings import CANNOT_TELL, NOTE, Finding, in_order
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import STEP_S, NodeInfo, Window
from tests.jobs.model import T0, USER, Floats, Job, Tick, ticks
from tests.unit.store_recording import INFO, arrived, record


class Told(NamedTuple):
    """Each change of a finding, with the seconds after the start at which it came; and the ledger's sums."""

    changes: list[tuple[float, Finding]]
    ledger: dict[str, float]
    window: Window

    def at(self, age: float = float("inf")) -> list[Finding]:
        """Return all findings so far, in the order in which ``diagnose`` has them after ``age`` seconds."""
        known = {one.finding_id: one for when, one in self.changes if when <= age}
        return in_order(one for one in known.values() if one.kind != CANNOT_TELL)

    def opened(self) -> list[tuple[float, Finding]]:
        """Return the findings as they opened, with the time at which each did."""
        first: dict[str, tuple[float, Finding]] = {}
        for when, one in self.changes:
            first.setdefault(one.finding_id, (when, one))
        return list(first.values())

    @property
    def alarms(self) -> list[Finding]:
        """The findings that a job with which nothing is wrong mustn't have."""
        return [one for one in self.at() if one.severity != NOTE]


def run(job: Job, rules: Sequence[Rule] = RULES) -> Told:
    """Let the rules look at a job at once, in steps of 5 s."""
    infos = {name: NodeInfo(hello, (True,) * job.gpus) for name, hello in job.hellos().items()}
    step_s = max(STEP_S, job.tick_s)
    window, watch = Window(tuple(job.names), infos, step_s, user=USER), Watch(rules, _fail)
    changes: list[tuple[float, Finding]] = []
    of_step: list[Tick] = []
    for tick in ticks(job):
        of_step.append(tick)
        if len(of_step) * job.tick_s > step_s - 1e-6:
            _push(window, of_step)
            changes += [(tick.age, finding) for finding in watch.look(window)]
            of_step = []
    changes += [(job.seconds, finding) for finding in watch.open]
    return Told(changes, watch.ledger.totals(), window)


def _fail(rule: Rule, error: Exception) -> None:
    raise AssertionError(rule.kind) from error


def _push(window: Window, of_step: list[Tick]) -> None:
    last = of_step[-1]
    for name in window.nodes:
        window.processes[name] = None if last.processes is None else last.processes[name]
        for kind, listed, held in ((PORTS, last.ports, window.ports), (MOUNTS, last.mounts, window.mounts)):
            if name in listed:
                columns = [metric.name for metric in LISTINGS[kind]]
                held[name] = {
                    row: dict(zip(columns, values or (), strict=False)) for row, values in listed[name]
                }
    for tick in of_step:
        for event in _logged(tick):
            window.note(event)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        gpus = np.nanmean([_signals(GPU_SIGNALS, tick.gpus) for tick in of_step], axis=0)
        hosts = np.nanmean([_signals(HOST_SIGNALS, tick.hosts) for tick in of_step], axis=0)
    newest = np.array([last.gpus[name] for name in NEWEST], dtype=np.float64)
    window.push(T0 + last.age, gpus.astype(np.float32), hosts.astype(np.float32), newest)


def _logged(tick: Tick) -> Iterator[EventLogged]:
    """Return the events that the fleet logs of the agents' notes."""
    for name, notes in tick.notes.items():
        for one in notes:
            what = one.kind, one.severity, one.message
            yield EventLogged(T0 + tick.age, *what, name, one.gpu, one.detail)


def _signals(signals: Sequence[Signal], values: dict[str, Floats]) -> Floats:
    """Return the signals of one sample."""
    rows = []
    for signal in signals:
        total: Floats = np.sum([values[name] for name in signal.columns], axis=0, dtype=np.float64)
        if signal.bits:
            held = np.nan_to_num(total).astype(np.int64) & signal.bits != 0
            total = np.where(np.isnan(total), np.nan, 100.0 * held)
        rows.append(total)
    return np.array(rows)


def record_job(path: Path, job: Job) -> None:
    """Record a job as agents would send it: processes every 5 s, ports and mounts every 10 s."""
    introduced = [NodeIntroduced(name, T0, hello) for name, hello in job.hellos().items()]
    info = replace(INFO, interval_ms=round(1000 * job.tick_s), user_name=USER)
    record(path, [*introduced, *frames(job)], info, T0 + job.seconds)


def frames(job: Job) -> Iterator[FrameArrived | EventLogged]:
    """Return what the agents of a job send, and what is logged of it."""
    for seq, tick in enumerate(ticks(job), 1):
        yield from _logged(tick)
        gpus, hosts = _rows(GPU_COLUMNS, tick.gpus), _rows(HOST_COLUMNS, tick.hosts)
        for at, name in enumerate(job.names):
            if hosts[at] is None:
                continue
            listed = {PORTS: tick.ports.get(name, []), MOUNTS: tick.mounts.get(name, [])}
            yield arrived(
                seq,
                gpus[at * job.gpus : (at + 1) * job.gpus],
                name,
                name,
                T0 + tick.age,
                hosts[at],
                tick.processes[name] if tick.processes is not None and tick.age % 5 < job.tick_s else None,
                listed=listed if tick.age % 10 < job.tick_s else None,
            )


def _rows(columns: Sequence[str], values: dict[str, Floats]) -> list[Row | None]:
    """Return a row for each GPU or node, None for those without any value."""
    known = np.array(
        [values.get(name, np.full_like(next(iter(values.values())), np.nan)) for name in columns]
    )
    rows = [tuple(None if np.isnan(one) else float(one) for one in column) for column in known.T]
    return [row if any(one is not None for one in row) else None for row in rows]


def diagnosed(path: Path, *words: str) -> dict[str, Any]:
    """Return what ``gswarm-tui diagnose --json`` prints for a recording."""
    command = [sys.executable, "-m", "gswarm_tui", "diagnose", "--db", str(path), "--json", *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(printed.stdout)
    return found
