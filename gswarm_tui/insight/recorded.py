"""Runs the rules over samples in a file: a whole recording, or a session of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import LISTINGS, MOUNTS, PORTS, PROCESS_COLUMNS, PROCESSES, ROW_NAMES
from gswarm_tui.fleet.events import METRICS_CHANGED, EventLogged, new_groups
from gswarm_tui.fleet.findings import Finding, in_order
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.coverage import not_measured
from gswarm_tui.insight.rule import guarded
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch, time_scale
from gswarm_tui.insight.window import STEP_S, NodeInfo, Step, Window
from gswarm_tui.store.querying.arrays import Arrays, ArraySource
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.reading.frames import PROCESSES_US
from gswarm_tui.store.reading.recording_reader import RecordingReader
from gswarm_tui.store.sql.schema import PROCESS_KEYS, micros

MOST_SAMPLES = 5_000_000
"""Of more GPU samples, summaries and reports name the command instead of looking at them all."""
HISTORY_S = 600.0
"""Rules compare with what was before: they look this long before the start of a session, too."""
SILENT_S = 900.0
"""A longer time without any sample, as between two attempts of a job, is left out."""
LONG_S = 6 * 3600.0
"""Longer recordings are read in steps of twice the length, so that half a day takes less than 20 s."""
CHUNK_STEPS, CHUNK_CELLS = 360, 100_000
"""Steps that are read at once, at most: half an hour at 5 s, in large fleets fewer."""
HELD_INTERVALS = 1.5
"""A sample counts until the next one is this late, so that steps between two slow samples aren't empty."""

_NODE_OF_IT = "node_id IN (SELECT node_id FROM nodes WHERE recording_id = $4)"
_GPU_OF_IT = f"gpu_id IN (SELECT gpu_id FROM gpus WHERE {_NODE_OF_IT})"  # noqa: S608 (own names)
_Rows = dict[int, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a part of a recording, the most important first, and the ledger of its GPU time.

    ``ledger`` has GPU-seconds by cause. ``not_measured`` maps signals to the nodes without them. Times are
    Unix seconds; ``looked_at`` is that of the last step. ``nodes`` and ``gpus`` are how many it looked at.
    """

    findings: list[Finding]
    ledger: dict[str, float]
    not_measured: dict[str, list[str]]
    looked_at: float
    nodes: int = 0
    gpus: int = 0


def diagnose(
    source: QuerySource,
    recording_id: int,
    start: float,
    end: float,
    environ: Mapping[str, str],
    *,
    pp: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Diagnosis:
    """Look with all rules at a recording, or at a part of it. Raises StoreError."""
    # All sources of recordings return arrays, too.
    reader, scale = RecordingReader(cast(ArraySource, source), recording_id), time_scale(environ)
    begin = max(min(start, reader.start), start - HISTORY_S * scale)
    # A rule that fails counts as a signal that isn't measured, and the others go on.
    failed: list[str] = []
    watch = Watch(guarded(RULES, lambda rule, _: failed.append(f"rule {rule.kind}")))
    known: dict[str, Finding] = {}
    window: Window | None = None
    ledger = dict.fromkeys(watch.ledger.totals(), 0.0)
    for window in windows(reader, begin, end, scale, pp):
        before = watch.ledger.totals()
        known |= {one.finding_id: one for one in watch.look(window)}
        # The first and the last step may lie in the period in part.
        inside = max(0.0, min(end, window.now) - max(start, window.now - window.step_s)) / window.step_s
        for cause, seconds in watch.ledger.totals().items():
            ledger[cause] += (seconds - before[cause]) * inside
        progress((window.now - begin) / max(1e-9, end - begin))
    if window is None:
        return Diagnosis([], ledger, {}, start)
    known |= {one.finding_id: one for one in watch.open}
    dismissed = {(one.kind, one.node, one.gpu) for one in reader.findings() if one.dismissed}
    found = [
        replace(one, dismissed=(one.kind, one.node, one.gpu) in dismissed)
        for one in known.values()
        if one.until is None or one.until > start
    ]
    missing = not_measured(window, RULES) | {name: list(window.nodes) for name in failed}
    looked_at = min(end, window.now)
    return Diagnosis(in_order(found), ledger, missing, looked_at, len(window.infos), len(window.gpus))


def windows(reader: RecordingReader, start: float, end: float, scale: float, pp: int) -> Iterator[Window]:
    """Return the window after each step of a recording; it is one object, changed between two steps."""
    [(user, first, last)] = reader.rows(
        "SELECT (SELECT user_name FROM recordings WHERE recording_id = $1), epoch_us(min(ts)) / 1e6, "
        "epoch_us(max(ts)) / 1e6 FROM host_samples JOIN nodes USING (node_id) WHERE recording_id = $1",
        reader.recording_id,
    )
    if first is None:
        return
    interval_s = min(interval_ms for _, interval_ms in reader.intervals(micros(end))) / 1000
    step_s = max(STEP_S * scale * (2 if end - start > LONG_S * scale else 1), interval_s)
    start, end = max(start, first - step_s), min(end, last + SILENT_S)
    window = Window(tuple(reader.names), {}, step_s, scale, pp, user)
    feed = _Feed(reader, step_s)
    chunk_s = step_s * min(CHUNK_STEPS, max(12, CHUNK_CELLS // max(1, len(reader.gpu_positions))))
    sampled_at = start
    for begin in np.arange(start, end, chunk_s).tolist():
        sampled = feed.read(begin, min(end, begin + chunk_s))
        if not sampled and begin - sampled_at > SILENT_S:
            continue
        for at in range(feed.count):
            window = feed.fill(window, at)
            sampled_at = window.now if feed.sampled(at) else sampled_at
            if window.now - sampled_at <= SILENT_S:
                yield window


class _Span(NamedTuple):
    """Some steps of a recording: after ``low`` up to ``high``, each ``step_us`` long (microseconds)."""

    reader: RecordingReader
    low: int
    high: int
    step_us: int

    @property
    def steps(self) -> int:
        return max(1, -(-(self.high - self.low) // self.step_us))

    def query(self, table: str, columns: str, owned: str, rest: str) -> Arrays:
        """Return rows of a table with the number of their step; ``owned`` is true of this recording's."""
        return self.reader.source.arrays(
            f"SELECT (epoch_us(ts) - $1 - 1) // $3 AS step, {columns} FROM {table} "  # noqa: S608 (own names)
            f"WHERE ts > make_timestamp($1) AND ts <= make_timestamp($2) AND {owned} {rest}",
            self.low,
            self.high,
            self.step_us,
            self.reader.recording_id,
        )


class _Feed:
    """Reads steps of a recording, many at once, and fills a window with them."""

    def __init__(self, reader: RecordingReader, step_s: float) -> None:
        self._reader, self._step_s = reader, step_s
        self._gpus = _Samples("gpu_samples", "gpu_id", sorted(reader.gpu_positions), GPU_SIGNALS, NEWEST)
        self._hosts = _Samples("host_samples", "node_id", sorted(reader.machines), HOST_SIGNALS)
        self._node_id: dict[str, int] = {}
        self._listed_at: dict[str, float] = {}
        self._gpu_places = self._host_places = np.empty(0, dtype=np.intp)
        # Agents list processes every few seconds, but not more often than they sample.
        self._listed_s = max(PROCESSES_US / 1e6, 2.5 * step_s)

    def read(self, begin: float, end: float) -> bool:
        """Read the steps between two times; return whether any node was sampled in them."""
        self._begin, span = begin, _Span(self._reader, micros(begin), micros(end), micros(self._step_s))
        self.count = span.steps
        self._gpus.read(span, _GPU_OF_IT)
        self._hosts.read(span, _NODE_OF_IT)
        self._listed = {kind: _listing(span, kind) for kind in LISTINGS}
        self._processes = _processes(span)
        self._events = self._reader.logged_events(span.low, span.high)[::-1]
        return bool(self._hosts.sampled.any())

    def sampled(self, at: int) -> bool:
        """Return whether any node was sampled in a step."""
        return bool(self._hosts.sampled[at].any())

    def fill(self, window: Window, at: int) -> Window:
        """Push a step into the window, with what was listed in it; return it, or a new one for other GPUs."""
        if at == 0 or (self._hosts.sampled[at] != self._hosts.sampled[at - 1]).any():
            window = self._introduce(window, at)
        now = self._begin + (at + 1) * self._step_s
        self._fill_lists(window, at, now)
        while self._events and self._events[-1].at <= now:
            self._take(window, self._events.pop())
        gpus, hosts = self._gpus.values[at][:, self._gpu_places], self._hosts.values[at][:, self._host_places]
        signals = len(GPU_SIGNALS)
        window.push(Step(now, gpus[:signals].astype(np.float32), hosts.astype(np.float32), gpus[signals:]))
        return window

    def _introduce(self, window: Window, at: int) -> Window:
        """Return a window for the machines that were sampled in a step: a node that rebooted is a new one."""
        machines, infos = self._reader.machines, dict(window.infos)
        for place in np.flatnonzero(self._hosts.sampled[at]).tolist():
            machine = machines[self._hosts.ids[place]]
            if self._node_id.get(machine.name) != machine.node_id:
                self._node_id[machine.name] = machine.node_id
                granted = machine.granted
                mine = tuple(granted is None or gpu.index in granted for gpu in machine.hello.gpus)
                infos[machine.name] = NodeInfo(machine.hello, mine)
        if infos != window.infos:
            window = window.rebuilt(infos)
            self._gpu_places = self._gpus.places(
                machines[self._node_id[gpu.node]].gpu_ids[gpu.row] for gpu in window.gpus
            )
            self._host_places = self._hosts.places(self._node_id.get(name, -1) for name in window.nodes)
        return window

    def _take(self, window: Window, event: EventLogged) -> None:
        window.events.append(event)
        groups = new_groups(event.detail) if event.kind == METRICS_CHANGED else None
        if groups is not None and PROCESSES not in groups:
            window.processes.update(dict.fromkeys(window.processes))

    def _fill_lists(self, window: Window, at: int, now: float) -> None:
        machines = self._reader.machines
        for kind, held in ((PORTS, window.ports), (MOUNTS, window.mounts)):
            fresh: dict[str, dict[str, dict[str, float | None]]] = {}
            for node_id, name, *numbers in self._listed[kind].get(at, ()):
                if (machine := machines.get(node_id)) is not None:
                    values = {metric.name: it for metric, it in zip(LISTINGS[kind], numbers, strict=True)}
                    fresh.setdefault(machine.name, {})[name] = values
            # Each listing has all rows of its node: a port that it lacks is gone.
            held.update(fresh)
        listed: dict[str, list[ProcessSample]] = {}
        for node_id, gpu_id, *row in self._processes.get(at, ()):
            if (machine := machines.get(node_id)) is not None:
                position = self._reader.gpu_positions[gpu_id][1]
                listed.setdefault(machine.name, []).append(_process(position, row))
        for name, processes in listed.items():
            window.processes[name] = tuple(processes)
            self._listed_at[name] = now
        # The file has no empty lists: a node that sends samples without processes for a while has none.
        for name, listed_at in self._listed_at.items():
            place = self._hosts.place.get(self._node_id.get(name, -1), -1)
            if (
                now - listed_at >= self._listed_s
                and window.processes[name]
                and self._hosts.sampled[at, place]
            ):
                window.processes[name] = ()


class _Samples:
    """Means of signals of GPUs or nodes by step, and the newest values of some metrics.

    ``values`` has the shape (steps, signals and metrics, ids and one that is always NaN), ``sampled``
    (steps, ids).
    """

    def __init__(
        self, table: str, key: str, ids: Sequence[int], signals: Sequence[Signal], newest: Sequence[str] = ()
    ) -> None:
        self.ids = ids
        self.place = {one: at for at, one in enumerate(ids)}
        self._names = [*(one.name for one in signals), *newest]
        means = [f"avg({one.sql})" for one in signals]
        lasts = [f"last({name} ORDER BY ts) FILTER ({name} IS NOT NULL)::DOUBLE" for name in newest]
        self._columns = ", ".join(
            f"coalesce({sql}, 'nan'::DOUBLE) AS {name}"
            for sql, name in zip((*means, *lasts), self._names, strict=True)
        )
        self._table, self._key = table, key
        self._until = np.full((1, len(ids)), -1.0)
        self.values = np.full((1, len(self._names), len(ids) + 1), np.nan)

    def places(self, ids: Iterable[int]) -> npt.NDArray[np.intp]:
        """Return the places of ids in the last axis of ``values``, -1 for unknown ones."""
        return np.array([self.place.get(one, -1) for one in ids], dtype=np.intp)

    def read(self, span: _Span, owned: str) -> None:
        """Read the steps of a span."""
        until = f"max(epoch_us(ts) + {HELD_INTERVALS * 1000:.0f} * coalesce(interval_ms, 0))"
        columns = f"{self._key} AS id, {until}::DOUBLE AS until, {self._columns}"
        found = span.query(self._table, columns, owned, "GROUP BY ALL")
        values_before, until_before = self.values[-1], self._until[-1]
        self.values = np.full((span.steps, *self.values.shape[1:]), np.nan)
        self._until = np.full((span.steps, len(self.ids)), -1.0)
        known = np.isin(found["id"], self.ids)
        step, place = found["step"][known], np.searchsorted(self.ids, found["id"][known])
        self._until[step, place] = found["until"][known]
        for at, name in enumerate(self._names):
            self.values[step, at, place] = found[name][known]
        self.sampled = self._until >= 0
        for at in np.flatnonzero(~self.sampled.all(axis=1)).tolist():
            values, until = (
                (self.values[at - 1], self._until[at - 1]) if at else (values_before, until_before)
            )
            held = ~self.sampled[at] & (until >= span.low + (at + 0.5) * span.step_us)
            self.values[at][:, :-1][:, held], self._until[at, held] = values[:, :-1][:, held], until[held]


def _listing(span: _Span, kind: str) -> _Rows:
    """Return node id, name and values of each port or mount by step."""
    name = ROW_NAMES[kind]
    columns = ", ".join(("node_id", name, *(metric.name for metric in LISTINGS[kind])))
    newest = f"QUALIFY ts = max(ts) OVER (PARTITION BY step, node_id, {name})"
    return _rows(span.query(f"{name}_samples", columns, _NODE_OF_IT, newest))


def _processes(span: _Span) -> _Rows:
    """Return node id, GPU id, keys and values of each process by step: of each node the last list."""
    columns = ", ".join(("node_id", "gpu_id", *PROCESS_KEYS, *PROCESS_COLUMNS))
    table = "process_samples JOIN (SELECT gpu_id, node_id FROM gpus) USING (gpu_id)"
    newest = "QUALIFY ts = max(ts) OVER (PARTITION BY step, node_id)"
    return _rows(span.query(table, columns, _NODE_OF_IT, newest))


def _rows(found: Arrays) -> _Rows:
    """Return rows by step, without the step."""
    steps, *columns = (values.tolist() for values in found.values())
    rows: _Rows = {}
    for step, row in zip(steps, zip(*columns, strict=True), strict=True):
        rows.setdefault(step, []).append(row)
    return rows


def _process(position: int, values: Sequence[Any]) -> ProcessSample:
    pid, user, command, rank, local_rank, cpus, state, wchan, *numbers = values
    return ProcessSample(position, pid, user, command, rank, local_rank, tuple(numbers), cpus, state, wchan)
