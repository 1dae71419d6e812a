"""Runs the rules over samples in a file: a whole recording, or a session of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import LISTINGS, MOUNTS, PORTS, PROCESS_COLUMNS, ROW_NAMES
from gswarm_tui.fleet.findings import Finding, in_order
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.coverage import not_measured
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import STEP_S, NodeInfo, Step, Window
from gswarm_tui.store.querying.arrays import Arrays, ArraySource
from gswarm_tui.store.reading.frames import PROCESSES_US
from gswarm_tui.store.reading.recording_reader import RecordedMachine, RecordingReader
from gswarm_tui.store.sql.schema import PROCESS_KEYS, micros

CHUNK_STEPS = 360
"""Steps that are read at once: half an hour at 5 s."""


@dataclass(frozen=True)
class Diagnosis:
    """What the rules find in a stretch of a recording, in order of importance, and where its time went.

    ``ledger`` has GPU-seconds by cause. ``not_measured`` maps signals to the nodes without them. Times are
    Unix seconds; ``looked_at`` is that of the last step.
    """

    findings: list[Finding]
    ledger: dict[str, float]
    not_measured: dict[str, list[str]]
    start: float
    looked_at: float


def diagnose(
    source: ArraySource,
    recording_id: int,
    start: float | None = None,
    end: float | None = None,
    *,
    scale: float = 1.0,
    pp: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Diagnosis:
    """Look with all rules at a recording, or at a part of it. Raises StoreError."""
    reader = RecordingReader(source, recording_id)
    start, end = reader.start if start is None else start, reader.end if end is None else end
    watch = Watch(RULES)
    known: dict[str, Finding] = {}
    window: Window | None = None
    for window in windows(reader, start, end, scale=scale, pp=pp):
        known |= {one.finding_id: one for one in watch.look(window)}
        progress((window.now - start) / max(1e-9, end - start))
    if window is None:
        return Diagnosis([], watch.ledger.totals(), {}, start, start)
    known |= {one.finding_id: one for one in watch.open}
    dismissed = {(one.kind, one.node, one.gpu) for one in reader.findings() if one.dismissed}
    found = [replace(one, dismissed=(one.kind, one.node, one.gpu) in dismissed) for one in known.values()]
    return Diagnosis(in_order(found), watch.ledger.totals(), not_measured(window, RULES), start, window.now)


def windows(
    reader: RecordingReader, start: float, end: float, *, scale: float = 1.0, pp: int = 0
) -> Iterator[Window]:
    """Return the window after each step of a recording; it is one object, changed between two steps."""
    step_s = max(STEP_S * scale, reader.interval_s)
    user = reader.rows("SELECT user_name FROM recordings WHERE recording_id = ?", reader.recording_id)[0][0]
    window = Window(tuple(reader.names), {}, step_s, scale, pp, user)
    infos: dict[str, NodeInfo] = {}
    begins = np.arange(start, end, step_s * CHUNK_STEPS).tolist()
    for begin in begins:
        chunk = _Chunk(reader, begin, min(end, begin + step_s * CHUNK_STEPS), step_s)
        for at in range(chunk.count):
            if (new := chunk.introduced(at, infos)) is not None:
                infos = new
                window = window.rebuilt(infos)
            chunk.fill(window, at)
            yield window


class _Chunk:
    """Some steps of a recording, read at once."""

    def __init__(self, reader: RecordingReader, begin: float, end: float, step_s: float) -> None:
        self._reader, self._step_s = reader, step_s
        self._low, self._high, self._step_us = micros(begin), micros(end), micros(step_s)
        self._begin = begin
        self.count = max(1, -(-(self._high - self._low) // self._step_us))
        self._gpus = self._means("gpu_samples", "gpu_id", GPU_SIGNALS, NEWEST)
        self._hosts = self._means("host_samples", "node_id", HOST_SIGNALS, ())
        self._listed = {kind: self._listing(kind) for kind in LISTINGS}
        self._processes = self._read_processes()
        self._events = reader.logged_events(self._low, self._high)
        self._machine_at = self._machines()

    def _means(self, table: str, key: str, signals: Sequence[Signal], newest: Sequence[str]) -> list[Arrays]:
        """Return rows of signals by step and id, for each step."""
        means = [f"coalesce(avg({one.sql})::FLOAT, 'nan'::FLOAT) AS {one.name}" for one in signals]
        means += [f"coalesce(max({name})::DOUBLE, 'nan'::DOUBLE) AS newest_{name}" for name in newest]
        found = self._query(table, f"{key} AS id", ", ".join(means), "GROUP BY ALL ORDER BY step")
        edges = np.searchsorted(found["step"], np.arange(self.count + 1))
        return [
            {name: part[low:high] for name, part in found.items()} for low, high in pairwise(edges.tolist())
        ]

    def _query(self, table: str, keys: str, columns: str, rest: str) -> Arrays:
        owners = (
            "gpu_id IN (SELECT gpu_id FROM gpus JOIN nodes USING (node_id) WHERE recording_id = ?)"
            if "gpu_id" in keys
            else "node_id IN (SELECT node_id FROM nodes WHERE recording_id = ?)"
        )
        return self._reader.source.arrays(
            f"SELECT (epoch_us(ts) - ? - 1) // ? AS step, {keys}, {columns} FROM {table} "  # noqa: S608
            f"WHERE ts > make_timestamp(?) AND ts <= make_timestamp(?) AND {owners} {rest}",
            self._low,
            self._step_us,
            self._low,
            self._high,
            self._reader.recording_id,
        )

    def _listing(self, kind: str) -> dict[int, list[dict[str, Any]]]:
        """Return the rows of ports or mounts by step."""
        columns = ", ".join(metric.name for metric in LISTINGS[kind])
        name = ROW_NAMES[kind]
        return self._by_step(
            self._query(f"{name}_samples", f"node_id AS id, {name} AS name", columns, "ORDER BY ts")
        )

    def _read_processes(self) -> dict[int, list[dict[str, Any]]]:
        columns = ", ".join((*PROCESS_KEYS, *PROCESS_COLUMNS))
        return self._by_step(self._query("process_samples", "gpu_id AS id", columns, "ORDER BY ts"))

    @staticmethod
    def _by_step(found: Arrays) -> dict[int, list[dict[str, Any]]]:
        columns = {name: values.tolist() for name, values in found.items()}
        rows: dict[int, list[dict[str, Any]]] = {}
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            rows.setdefault(row["step"], []).append(row)
        return rows

    def _machines(self) -> list[dict[str, RecordedMachine]]:
        """Return the machine of each node by step: that of the newest host sample so far."""
        newest: dict[str, RecordedMachine] = {}
        found = []
        for arrays in self._hosts:
            for node_id in arrays["id"].tolist():
                if (machine := self._reader.machines.get(node_id)) is not None:
                    newest[machine.name] = machine
            found.append(dict(newest))
        return found

    def introduced(self, at: int, infos: dict[str, NodeInfo]) -> dict[str, NodeInfo] | None:
        """Return what is known of nodes from this step on if that changes, else None."""
        new = dict(infos)
        for name, machine in self._machine_at[at].items():
            if name not in infos or infos[name].hello is not machine.hello:
                granted = machine.granted
                mine = tuple(granted is None or gpu.index in granted for gpu in machine.hello.gpus)
                new[name] = NodeInfo(machine.hello, mine)
        return new if any(new[name] is not infos.get(name) for name in new) else None

    def fill(self, window: Window, at: int) -> None:
        """Push a step into the window, with what was listed in it."""
        self._fill_lists(window, at)
        now = self._begin + (at + 1) * self._step_s
        window.events.extend(event for event in self._events if now - self._step_s < event.at <= now)
        gpus = np.full((len(GPU_SIGNALS), len(window.gpus)), np.nan, dtype=np.float32)
        newest = np.full((len(NEWEST), len(window.gpus)), np.nan)
        hosts = np.full((len(HOST_SIGNALS), len(window.nodes)), np.nan, dtype=np.float32)
        of_gpus, of_hosts = self._gpus[at], self._hosts[at]
        places = self._places(of_gpus["id"], window)
        known = places >= 0
        for row, signal in enumerate(GPU_SIGNALS):
            gpus[row, places[known]] = of_gpus[signal.name][known]
        for row, name in enumerate(NEWEST):
            newest[row, places[known]] = of_gpus[f"newest_{name}"][known]
        machines = self._reader.machines
        rows = [window.nodes.index(machines[one].name) for one in of_hosts["id"].tolist() if one in machines]
        there = [one in machines for one in of_hosts["id"].tolist()]
        for row, signal in enumerate(HOST_SIGNALS):
            hosts[row, rows] = of_hosts[signal.name][there]
        window.push(Step(now, gpus, hosts, newest))

    def _places(self, gpu_ids: npt.NDArray[Any], window: Window) -> npt.NDArray[np.intp]:
        """Return the window's column of each GPU, -1 for those that it doesn't have."""
        return np.array([self._column(window, gpu_id) for gpu_id in gpu_ids.tolist()], dtype=np.intp)

    def _column(self, window: Window, gpu_id: int) -> int:
        node_id, row = self._reader.gpu_positions.get(gpu_id, (-1, -1))
        machine = self._reader.machines.get(node_id)
        return -1 if machine is None else window.column.get((machine.name, row), -1)

    def _fill_lists(self, window: Window, at: int) -> None:
        machines = self._reader.machines
        for kind, held in ((PORTS, window.ports), (MOUNTS, window.mounts)):
            for row in self._listed[kind].get(at, ()):
                if (machine := machines.get(row["id"])) is not None:
                    values = {metric.name: row[metric.name] for metric in LISTINGS[kind]}
                    held.setdefault(machine.name, {})[row["name"]] = values
                    if kind == PORTS:
                        window.first_ports.setdefault(machine.name, {}).setdefault(row["name"], values)
        listed: dict[str, list[ProcessSample]] = {}
        for row in self._processes.get(at, ()):
            node_id, position = self._reader.gpu_positions.get(row["id"], (-1, -1))
            if (machine := machines.get(node_id)) is not None:
                listed.setdefault(machine.name, []).append(_process(position, row))
        for name, processes in listed.items():
            window.processes[name] = tuple({(one.gpu, one.pid): one for one in processes}.values())
        self._forget_ended(window, set(listed), at)

    def _forget_ended(self, window: Window, listed: set[str], at: int) -> None:
        """Empty the lists of nodes that listed no processes for a while: the file has no empty lists."""
        steps = max(1, -(-PROCESSES_US // self._step_us))
        recent = set()
        for before in range(max(0, at - steps), at + 1):
            for row in self._processes.get(before, ()):
                recent.add(self._reader.gpu_positions.get(row["id"], (-1, -1))[0])
        names = {machine.name for node_id, machine in self._reader.machines.items() if node_id in recent}
        if at >= steps:
            for name in set(window.processes) - names - listed:
                window.processes[name] = ()


def _process(position: int, row: dict[str, Any]) -> ProcessSample:
    return ProcessSample(
        position,
        row["pid"],
        row["user_name"],
        row["command"],
        row["rank"],
        row["local_rank"],
        tuple(row[name] for name in PROCESS_COLUMNS),
        row["cpus_allowed"],
        row["state"],
        row["wchan"],
    )
