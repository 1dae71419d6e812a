"""Feeds a window from a live fleet and publishes what its rules find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import is_

import numpy as np

from gswarm_agent.frame import WARNING, Hello
from gswarm_agent.metrics import GPU_COLUMNS, HOST, HOST_COLUMNS, MOUNTS, PORTS, PROCESSES
from gswarm_tui.fleet.events import Event, EventLogged, FindingChanged, FleetExamined
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.pace import NODES_READ, TREND_S, Pace, Track
from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import LARGE, STEP_S, NodeInfo, Window

LOOK_S = 1.0
"""The fleet's newest values are read this often."""
LEAST_TURNS, MOST_TURNS, NODES_A_TURN = 5, 30, 2
"""Processes, ports and mounts of some nodes are read at each look; all nodes had their turn after so many."""
COVERAGE_STEPS = 12
"""The list of signals that aren't measured is renewed every so many steps."""
NO_CAUSE = 255

_LOG = logging.getLogger(__name__)


_PLACES = tuple({name: at for at, name in enumerate(columns)} for columns in (GPU_COLUMNS, HOST_COLUMNS))
_NEWEST = [GPU_COLUMNS.index(name) for name in NEWEST]


def _gather(signals: Sequence[Signal], place: Mapping[str, int], values: Floats) -> Floats:
    """Return the signals (signals, rows) of columns (columns, rows)."""
    out: Floats = values[[place[signal.columns[0]] for signal in signals]]
    for at, signal in enumerate(signals):
        for name in signal.columns[1:]:
            out[at] += values[place[name]]
        if signal.bits:
            held = np.nan_to_num(out[at]).astype(np.int64) & signal.bits != 0
            out[at] = np.where(np.isnan(out[at]), np.nan, 100.0 * held)
    return out


class LiveWatch:
    """Watches a fleet: call ``observe`` after each flush. It publishes findings as events.

    A rule that fails is left out from then on, and an error of the watch itself ends only the watch.
    ``scale`` shortens all times of rules, for tests. ``user`` is the user whose processes are the job's,
    ``numbers`` yields the numbers of new findings.
    """

    def __init__(
        self,
        fleet: Fleet,
        publish: Callable[[Event], None],
        *,
        user: str | None = None,
        scale: float = 1.0,
        numbers: Iterator[int] | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self._fleet, self._publish = fleet, publish
        # Twice as long steps halve the memory of a large fleet's window, and how often rules look.
        self._step_s = max((2 if len(fleet.nodes) > LARGE // 8 else 1) * STEP_S * scale, fleet.interval_s)
        self._looked_at = self._step_began = self._now = 0.0
        self._look_s = LOOK_S * scale
        self._nodes = list(fleet.nodes.values())
        self._hellos: list[Hello | None] = [None for _ in self._nodes]
        self.window = Window(tuple(fleet.nodes), {}, self._step_s, scale, user)
        self.watch = Watch(rules, self._leave_out, numbers)
        self._turn, self._turns = 0, min(max(len(self._nodes) // NODES_A_TURN, LEAST_TURNS), MOST_TURNS)
        self._listings: dict[str, object] = {}
        self._missing: dict[str, list[str]] = {}
        self._failed = False
        self._pace = Pace()
        self._lay_out()

    def submit(self, events: Sequence[Event]) -> None:
        """Note the events that rules read, as a sink of the hub."""
        for event in events:
            if isinstance(event, EventLogged):
                self.window.note(event)

    def observe(self, now: float) -> None:
        """Read the fleet's newest values, and look with all rules when a step is complete."""
        if self._failed or now - self._looked_at < 0.99 * self._look_s:
            return
        self._looked_at = self._now = now
        try:
            self._look(now)
        except Exception as error:
            # Whatever happens here, the recorder goes on.
            self._failed = True
            _LOG.exception("the rules failed")
            self._warn(f"internal error, so nothing more is looked for: {type(error).__name__}: {error}")

    def _leave_out(self, rule: Rule, error: Exception) -> None:
        _LOG.error("the rule %s failed", rule.kind, exc_info=error)
        self._warn(f"the rule {rule.kind} failed and is left out from now on: {type(error).__name__}")

    def _warn(self, message: str) -> None:
        self._publish(EventLogged(self._now, "notice", WARNING, message))

    def _look(self, now: float) -> None:
        hellos = [node.hello for node in self._nodes]
        if not all(map(is_, hellos, self._hellos)):
            self._hellos = hellos
            self.window.lay_out(
                {node.name: NodeInfo(node.hello, node.mine) for node in self._nodes if node.hello is not None}
            )
            self._lay_out()
        self._step_began = self._step_began or now
        self._add(now)
        self._read_lists()
        if now - self._step_began >= 0.99 * self._step_s:
            self._complete(now)

    def _lay_out(self) -> None:
        """Assign the window's columns to nodes, each a run of them, and begin the step again."""
        window = self.window
        rows = np.array([gpu.row for gpu in window.gpus], dtype=np.intp)
        ends = np.cumsum(np.bincount(window.node_at, minlength=len(window.nodes)), dtype=np.intp).tolist()
        self._places = [
            (node, slice(begin, end), rows[begin:end])
            for node, begin, end in zip(self._nodes, [0, *ends], ends, strict=False)
        ]
        # Each node's rows lie together in memory: a large fleet is written 18 % faster so.
        self._values = np.full((len(window.gpus), len(GPU_COLUMNS)), np.nan).T
        self._hosts = np.full((len(window.nodes), len(HOST_COLUMNS)), np.nan).T
        self._clear()

    def _clear(self) -> None:
        """Begin a step: sums and counts of each signal, for GPUs and for nodes."""
        gpus, nodes = len(self.window.gpus), len(self.window.nodes)
        self._step = np.zeros((2, len(GPU_SIGNALS), gpus)), np.zeros((2, len(HOST_SIGNALS), nodes))
        self._newest = np.full((len(NEWEST), gpus), np.nan)

    def _add(self, now: float) -> None:
        """Add the newest values of live nodes to the step."""
        values, hosts = self._values, self._hosts
        for at, (node, columns, rows) in enumerate(self._places):
            if node.standing(now) is Standing.LIVE:
                values[:, columns] = (node.gpus if len(rows) == len(node.gpus) else node.gpus[rows]).T
                hosts[:, at] = node.host
            else:
                values[:, columns] = hosts[:, [at]] = np.nan
        for at, (signals, part) in enumerate(((GPU_SIGNALS, values), (HOST_SIGNALS, hosts))):
            new = _gather(signals, _PLACES[at], part)
            known = np.isfinite(new)
            sums, counts = self._step[at]
            sums += np.where(known, new, 0.0)
            counts += known
        newest = values[_NEWEST]
        np.copyto(self._newest, newest, where=np.isfinite(newest))

    def _read_lists(self) -> None:
        """Read processes, ports and mounts of some nodes: decoding new ones takes long in a large fleet."""
        self._turn = (self._turn + 1) % self._turns
        window = self.window
        for node in self._nodes[self._turn :: self._turns]:
            name, listed = node.name, PROCESSES in node.metrics and node.process_table is not None
            window.processes[name] = node.processes if listed else None
            if HOST in node.metrics and node.listings and node.listings is not self._listings.get(name):
                self._listings[name] = node.listings
                window.ports[name] = node.listed(PORTS)
                window.mounts[name] = node.listed(MOUNTS)

    def _complete(self, now: float) -> None:
        self._step_began = now
        with np.errstate(invalid="ignore", divide="ignore"):
            gpus, hosts = ((sums / counts).astype(np.float32) for sums, counts in self._step)
        self.window.push(now, gpus, hosts, self._newest)
        self._clear()
        self._pace.look(self._traffic, now, self._fleet.interval_s)
        for finding in self.watch.look(self.window):
            paced = self._pace.with_effect(finding, finding.until or now)
            self._publish(FindingChanged(now, replace(paced, dismissed=self._is_dismissed(finding))))
        if self.window.steps % COVERAGE_STEPS == 1:
            self._missing = self.watch.not_measured(self.window)
        steps = self._pace.before(now), self._pace.before(now - TREND_S)
        self._publish(FleetExamined(now, self.watch.ledger.totals(), self._causes(), self._missing, *steps))

    def _traffic(self, metric: str, start: float) -> Iterator[Track]:
        """Return a metric's values since a time, of a few nodes with GPUs of the job."""
        of_host = metric in _PLACES[1]
        chosen = [(node, rows) for node, _, rows in self._places if len(rows)]
        for node, rows in chosen[:NODES_READ]:
            history = node.host_history if of_host else node.gpu_history
            if history is not None:
                times, values = history.series(_PLACES[of_host][metric], since=start)
                yield times, values[:, [0] if of_host else rows].mean(axis=1)

    def _is_dismissed(self, finding: Finding) -> bool:
        """Return whether the user dismissed this finding, or the last one of its kind and place."""
        whom = finding.kind, finding.node, finding.gpu
        known = reversed(self._fleet.findings.values())
        return next((one.dismissed for one in known if (one.kind, one.node, one.gpu) == whom), False)

    def _causes(self) -> dict[str, bytes]:
        """Return the causes of each node's GPUs in the order of its rows."""
        found, causes = {}, self.watch.ledger.now
        for node, columns, rows in self._places:
            of_rows = causes[columns]
            if len(rows) < len(node.facts):
                of_rows = np.full(len(node.facts), NO_CAUSE, dtype=np.uint8)
                of_rows[rows] = causes[columns]
            found[node.name] = of_rows.tobytes()
        return found
