"""Runs the rules over samples in a file: a whole recording, or a session of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import HOST_BY_NAME, LISTINGS, MOUNTS, PORTS, PROCESS_COLUMNS, PROCESSES, ROW_NAMES
from gswarm_tui.fleet.events import METRICS_CHANGED, new_groups
from gswarm_tui.fleet.findings import RANK_BEHIND, SLOWER_THAN_USUAL, WASTE, Finding, in_order
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.pace import NODES_READ, TREND_S, Pace, Track, pace_text
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch, time_scale
from gswarm_tui.insight.window import STEP_S, NodeInfo, Window
from gswarm_tui.store.querying.arrays import Arrays, ArraySource
from gswarm_tui.store.querying.results import QuerySource
from gswarm_tui.store.reading.frames import PROCESSES_US
from gswarm_tui.store.reading.recording_reader import RecordedMachine, RecordingReader
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
PACED = 8
"""Findings for which the step times before and after are read, the most important ones."""
HELD_INTERVALS = 1.5
"""A sample counts until the next one is this late, so that steps between two slow samples aren't empty."""

_NODE_OF_IT = "node_id IN (SELECT node_id FROM nodes WHERE recording_id = $4)"
_GPU_OF_IT = f"gpu_id IN (SELECT gpu_id FROM gpus WHERE {_NODE_OF_IT})"  # noqa: S608 (own names)
_Lists = dict[int, dict[str, list[list[Any]]]]
"""Rows by step and by the name of their node."""


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a part of a recording, the most important first, and the ledger of its GPU time.

    ``ledger`` has GPU-seconds by cause. ``not_measured`` maps signals to the nodes without them. Times are
    Unix seconds; ``looked_at`` is that of the last step. ``nodes`` and ``gpus`` are how many it looked at.
    ``pace`` is the text of the step time, empty where the traffic shows none.
    """

    findings: list[Finding]
    ledger: dict[str, float]
    not_measured: dict[str, list[str]]
    looked_at: float
    nodes: int = 0
    gpus: int = 0
    pace: str = ""


def diagnose(
    source: QuerySource,
    recording_id: int,
    start: float,
    end: float,
    environ: Mapping[str, str],
    *,
    progress: Callable[[float], None] = lambda _: None,
) -> Diagnosis:
    """Look with all rules at a recording, or at a part of it. Raises StoreError."""
    # All sources of recordings return arrays, too.
    reader, scale = RecordingReader(cast(ArraySource, source), recording_id), time_scale(environ)
    begin = max(min(start, reader.start), start - HISTORY_S * scale)
    # A rule that fails counts as a signal that isn't measured, and the others go on.
    failed: list[str] = []
    watch = Watch(RULES, lambda rule, _: failed.append(f"rule {rule.kind}"))
    known: dict[str, Finding] = {}
    window: Window | None = None
    ledger = dict.fromkeys(watch.ledger.totals(), 0.0)
    for window in windows(reader, begin, end, scale):
        if window.now - window.step_s <= start:
            watch.forget_costs()
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
    kept = reader.findings()
    dismissed = {(one.kind, one.node, one.gpu) for one in kept if one.dismissed}
    # The newest answer may be newer than the last sample.
    last = end if end < reader.end - 2 * reader.interval_s else np.inf
    once = RANK_BEHIND, SLOWER_THAN_USUAL
    answered = [one for one in kept if one.kind in once and one.since < last]
    found = [
        replace(one, since=min(one.since, end), dismissed=(one.kind, one.node, one.gpu) in dismissed)
        for one in (*known.values(), *answered)
        if one.until is None or one.until > start
    ]
    missing = watch.not_measured(window) | {name: list(window.nodes) for name in failed}
    looked_at = min(end, window.now)
    pace = _pace(reader, looked_at, found)
    text = pace_text(pace.before(looked_at), pace.before(looked_at - TREND_S))
    found = [pace.with_effect(one, one.until or looked_at) for one in found]
    return Diagnosis(in_order(found), ledger, missing, looked_at, len(window.infos), len(window.gpus), text)


def stored_findings(source: QuerySource, recording_id: int, start: float, end: float) -> list[Finding]:
    """Return the findings of a part of a recording that were stored while it was recorded, in order."""
    kept = RecordingReader(cast(ArraySource, source), recording_id).findings()
    return in_order(one for one in kept if one.since < end and (one.until is None or one.until > start))


def _pace(reader: RecordingReader, end: float, findings: Iterable[Finding]) -> Pace:
    """Return the step times at the end, ten minutes before, and before and after findings that cost time."""
    interval_s = min(interval_ms for _, interval_ms in reader.intervals(micros(end))) / 1000
    nodes = [one.node_id for one in reader.machines.values() if one.gpu_ids][:NODES_READ]
    slow = in_order(one for one in findings if one.severity == WASTE)[:PACED]
    pace = Pace()
    for at in sorted({end - TREND_S, end, *(at for one in slow for at in (one.since, one.until or end))}):

        def read(metric: str, start: float, at: float = at) -> list[Track]:
            table = "host_samples" if metric in HOST_BY_NAME else "gpu_samples JOIN gpus USING (gpu_id)"
            us, ids, rates = reader.source.arrays(
                f"SELECT epoch_us(ts), node_id, avg({metric})::DOUBLE FROM {table} "  # noqa: S608 (own names)
                "WHERE ts > make_timestamp($1) "
                f"AND ts <= make_timestamp($2) AND list_contains($3, node_id) AND {metric} IS NOT NULL "
                "GROUP BY ALL ORDER BY 1",
                *(micros(max(0.0, start)), micros(at), nodes),
            ).values()
            return [(us[ids == node] / 1e6, rates[ids == node]) for node in nodes]

        pace.look(read, at, interval_s)
    return pace


def windows(reader: RecordingReader, start: float, end: float, scale: float) -> Iterator[Window]:
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
    window = Window(tuple(reader.names), {}, step_s, scale, user)
    feed = _Feed(reader, window)
    chunk_s = step_s * min(CHUNK_STEPS, max(12, CHUNK_CELLS // max(1, len(reader.gpu_positions))))
    sampled_at = start
    for begin in np.arange(start, end, chunk_s).tolist():
        sampled = feed.read(begin, min(end, begin + chunk_s))
        if not any(sampled) and begin - sampled_at > SILENT_S:
            continue
        for at, is_sampled in enumerate(sampled):
            feed.push(at)
            sampled_at = window.now if is_sampled else sampled_at
            if window.now - sampled_at <= SILENT_S:
                yield window


class _Feed:
    """Reads steps of a recording, many at once, and pushes them into a window."""

    def __init__(self, reader: RecordingReader, window: Window) -> None:
        self._reader, self._window = reader, window
        self._gpus = _Samples("gpu_id", sorted(reader.gpu_positions), GPU_SIGNALS, NEWEST)
        self._hosts = _Samples("node_id", sorted(reader.machines), HOST_SIGNALS)
        self._node_id: dict[str, int] = {}
        self._gpu_places = self._gpus.places(())
        self._host_places = self._hosts.places([-1] * len(window.nodes))
        self._listed_at: dict[str, float] = {}
        # Agents list processes every few seconds, but not more often than they sample.
        self._listed_s = max(PROCESSES_US / 1e6, 2.5 * window.step_s)

    def read(self, begin: float, end: float) -> list[bool]:
        """Read the steps between two times; return for each whether any node was sampled in it."""
        self._begin, self._span = begin, (micros(begin), micros(end), micros(self._window.step_s))
        for table, owned, samples in (
            ("gpu_samples", _GPU_OF_IT, self._gpus),
            ("host_samples", _NODE_OF_IT, self._hosts),
        ):
            samples.take(self._query(table, samples.columns, owned, "GROUP BY ALL"), *self._span)
        self._listed = {
            kind: self._lists(f"{ROW_NAMES[kind]}_samples", ROW_NAMES[kind], *(one.name for one in metrics))
            for kind, metrics in LISTINGS.items()
        }
        table = "process_samples JOIN (SELECT gpu_id, node_id FROM gpus) USING (gpu_id)"
        self._processes = self._lists(table, "gpu_id", *PROCESS_KEYS, *PROCESS_COLUMNS)
        events = self._reader.logged_events(*self._span[:2]) + self._reader.step_events(*self._span[:2])
        self._events = sorted(events, key=lambda event: event.at, reverse=True)
        sampled: list[bool] = self._hosts.sampled.any(axis=1).tolist()
        return sampled

    def _query(self, table: str, columns: str, owned: str, rest: str) -> Arrays:
        """Return rows of a table with the number of their step; ``owned`` is true of this recording's."""
        return self._reader.source.arrays(
            f"SELECT (epoch_us(ts) - $1 - 1) // $3 AS step, {columns} FROM {table} "  # noqa: S608 (own names)
            f"WHERE ts > make_timestamp($1) AND ts <= make_timestamp($2) AND {owned} {rest}",
            *self._span,
            self._reader.recording_id,
        )

    def _lists(self, table: str, *columns: str) -> _Lists:
        """Return the rows of each node's last list in each step."""
        newest = "QUALIFY ts = max(ts) OVER (PARTITION BY step, node_id)"
        found = self._query(table, ", ".join(("node_id", *columns)), _NODE_OF_IT, newest)
        lists: _Lists = {}
        for step, node_id, *row in zip(*(values.tolist() for values in found.values()), strict=True):
            if (machine := self._reader.machines.get(node_id)) is not None:
                lists.setdefault(step, {}).setdefault(machine.name, []).append(row)
        return lists

    def push(self, at: int) -> None:
        """Push a step into the window, with what was listed and logged in it."""
        window, now = self._window, self._begin + (at + 1) * self._window.step_s
        if at == 0 or (self._hosts.sampled[at] != self._hosts.sampled[at - 1]).any():
            self._lay_out(at)
        # A list has all rows of its node: a port that it lacks is gone.
        for kind, held in ((PORTS, window.ports), (MOUNTS, window.mounts)):
            names = [metric.name for metric in LISTINGS[kind]]
            for node, rows in self._listed[kind].get(at, {}).items():
                held[node] = {name: dict(zip(names, values, strict=True)) for name, *values in rows}
        for node, rows in self._processes.get(at, {}).items():
            window.processes[node] = tuple(map(self._process, rows))
            self._listed_at[node] = now
        # The file has no empty lists: a node that sends samples without processes for a while has none.
        for node, listed_at in self._listed_at.items():
            sampled = self._hosts.sampled[at, self._hosts.place.get(self._node_id.get(node, -1), -1)]
            if now - listed_at >= self._listed_s and window.processes[node] and sampled:
                window.processes[node] = ()
        while self._events and self._events[-1].at <= now:
            event = self._events.pop()
            window.note(event)
            if event.kind == METRICS_CHANGED and PROCESSES not in (new_groups(event.detail) or (PROCESSES,)):
                window.processes.update(dict.fromkeys(window.processes))
        gpus, hosts = self._gpus.values[at][:, self._gpu_places], self._hosts.values[at][:, self._host_places]
        signals = len(GPU_SIGNALS)
        window.push(now, gpus[:signals].astype(np.float32), hosts.astype(np.float32), gpus[signals:])

    def _lay_out(self, at: int) -> None:
        """Lay out the window for the machines of a step; a node that rebooted is another machine."""
        machines, before = self._reader.machines, dict(self._node_id)
        for place in np.flatnonzero(self._hosts.sampled[at]).tolist():
            machine = machines[self._hosts.ids[place]]
            self._node_id[machine.name] = machine.node_id
        if self._node_id != before:
            known = {name: machines[node_id] for name, node_id in self._node_id.items()}
            self._window.lay_out({name: _info(machine) for name, machine in known.items()})
            ids = (known[gpu.node].gpu_ids[gpu.row] for gpu in self._window.gpus)
            self._gpu_places = self._gpus.places(ids)
            self._host_places = self._hosts.places(self._node_id.get(name, -1) for name in self._window.nodes)

    def _process(self, values: Sequence[Any]) -> ProcessSample:
        gpu_id, *rest = values
        keys, numbers = rest[: len(PROCESS_KEYS)], rest[len(PROCESS_KEYS) :]
        pid, user, command, rank, local_rank, *texts = keys
        position = self._reader.gpu_positions[gpu_id][1]
        return ProcessSample(position, pid, user, command, rank, local_rank, tuple(numbers), *texts)


def _info(machine: RecordedMachine) -> NodeInfo:
    granted = machine.granted
    return NodeInfo(
        machine.hello, tuple(granted is None or one.index in granted for one in machine.hello.gpus)
    )


class _Samples:
    """Means of signals of GPUs or nodes by step, and the newest values of some metrics.

    ``values`` has the shape (steps, signals and metrics, ids and one that is always NaN), ``sampled``
    (steps, ids); a sample counts for ``HELD_INTERVALS``.
    """

    def __init__(
        self, key: str, ids: Sequence[int], signals: Sequence[Signal], newest: Sequence[str] = ()
    ) -> None:
        self.ids, self.place = ids, {one: at for at, one in enumerate(ids)}
        sql = {one.name: f"avg({one.sql})" for one in signals}
        sql |= {name: f"last({name} ORDER BY ts) FILTER ({name} IS NOT NULL)::DOUBLE" for name in newest}
        until = f"max(epoch_us(ts) + {HELD_INTERVALS * 1000:.0f} * coalesce(interval_ms, 0))::DOUBLE"
        means = ", ".join(f"coalesce({one}, 'nan'::DOUBLE) AS {name}" for name, one in sql.items())
        self.columns = f"{key} AS id, {until} AS until, {means}"
        self._names = list(sql)
        self._until = np.full((1, len(ids)), np.nan)
        self.values = np.full((1, len(sql), len(ids) + 1), np.nan)

    def places(self, ids: Iterable[int]) -> npt.NDArray[np.intp]:
        """Return the places of ids in the last axis of ``values``, -1 for unknown ones."""
        return np.array([self.place.get(one, -1) for one in ids], dtype=np.intp)

    def take(self, found: Arrays, low: int, high: int, step_us: int) -> None:
        """Take over the steps between two times, which follow those before."""
        steps = max(1, -(-(high - low) // step_us))
        # The first row of both arrays is the last step of the span before.
        values, until = (
            np.concatenate((of[-1:], np.full((steps, *of.shape[1:]), np.nan)))
            for of in (self.values, self._until)
        )
        known = np.isin(found["id"], self.ids)
        step, place = found["step"][known] + 1, np.searchsorted(self.ids, found["id"][known])
        until[step, place] = found["until"][known]
        for at, name in enumerate(self._names):
            values[step, at, place] = found[name][known]
        for at in (1 + np.flatnonzero(np.isnan(until[1:]).any(axis=1))).tolist():
            held = np.isnan(until[at]) & (until[at - 1] >= low + (at - 0.5) * step_us)
            values[at, :, :-1][:, held] = values[at - 1, :, :-1][:, held]
            until[at, held] = until[at - 1, held]
        self.values, self._until = values[1:], until[1:]
        self.sampled = np.isfinite(self._until)
