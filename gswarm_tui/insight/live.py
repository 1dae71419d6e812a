"""Feeds a window from a live fleet and publishes what its rules find."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import WARNING, Processes
from gswarm_agent.metrics import GPU_COLUMNS, HOST, HOST_COLUMNS, MOUNTS, PORTS, PROCESSES
from gswarm_tui.fleet.events import Event, EventLogged, FindingChanged, FleetExamined
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import NodeState, Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.coverage import not_measured
from gswarm_tui.insight.rule import Rule, guarded
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import LARGE, STEP_S, NodeInfo, Step, Window

LOOK_S = 1.0
"""The fleet's newest values are read this often."""
LEAST_TURNS, MOST_TURNS, NODES_A_TURN = 5, 30, 2
"""Processes, ports and mounts of some nodes are read at each look; all nodes had their turn after so many."""
COVERAGE_STEPS = 12
"""The list of signals that aren't measured is renewed every so many steps."""
NO_CAUSE = 255

_LOG = logging.getLogger(__name__)


class _Gather:
    """Takes signals from columns: arrays (columns, rows) become (signals, rows)."""

    def __init__(self, signals: Sequence[Signal], columns: Sequence[str]) -> None:
        self._first = [columns.index(signal.columns[0]) for signal in signals]
        self._added = [
            (at, columns.index(name)) for at, signal in enumerate(signals) for name in signal.columns[1:]
        ]
        self._bits = [(at, signal.bits) for at, signal in enumerate(signals) if signal.bits]

    def __call__(self, values: Floats) -> Floats:
        out: Floats = values[self._first]
        for at, column in self._added:
            out[at] += values[column]
        for at, bits in self._bits:
            held = np.nan_to_num(out[at]).astype(np.int64) & bits != 0
            out[at] = np.where(np.isnan(out[at]), np.nan, 100.0 * held)
        return out


_GATHERS = _Gather(GPU_SIGNALS, GPU_COLUMNS), _Gather(HOST_SIGNALS, HOST_COLUMNS)
_NEWEST = [GPU_COLUMNS.index(name) for name in NEWEST]


class LiveWatch:
    """Watches a fleet: call ``observe`` after each flush. It publishes findings as events.

    A rule that fails is left out from then on, and an error of the watch itself ends only the watch.
    ``scale`` shortens all times of rules, for tests. ``user`` is the user whose processes are the job's.
    """

    def __init__(
        self,
        fleet: Fleet,
        publish: Callable[[Event], None],
        *,
        user: str | None = None,
        scale: float = 1.0,
        pp: int = 0,
        first_id: int = 1,
        rules: Sequence[Rule] = RULES,
    ) -> None:
        self._fleet, self._publish = fleet, publish
        # Twice as long steps halve the memory of a large fleet's window, and how often rules look.
        self._step_s = max((2 if len(fleet.nodes) > LARGE // 8 else 1) * STEP_S * scale, fleet.interval_s)
        self._looked_at = self._step_began = self._now = 0.0
        self._look_s = LOOK_S * scale
        self._nodes = list(fleet.nodes.values())
        self._hellos: list[object] = []
        self._infos: dict[str, NodeInfo] = {}
        self.window = Window(tuple(fleet.nodes), {}, self._step_s, scale, pp, user)
        self.watch = Watch(guarded(rules, self._leave_out), first_id)
        self._rules = rules
        self._turn, self._turns = 0, min(max(len(self._nodes) // NODES_A_TURN, LEAST_TURNS), MOST_TURNS)
        self._read: dict[str, Processes | None] = {}
        self._listings: dict[str, object] = {}
        self._missing: dict[str, list[str]] = {}
        self._causes_of: tuple[bytes, dict[str, bytes]] = b"", {}
        self._failed = False
        self._lay_out()

    def submit(self, events: Sequence[Event]) -> None:
        """Note the events that rules read, as a sink of the hub."""
        self.window.events.extend(event for event in events if isinstance(event, EventLogged))

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
        self._note_hellos()
        if not self._step_began:
            self._step_began = now
        self._add(now)
        self._read_lists()
        if now - self._step_began >= 0.99 * self._step_s:
            self._complete(now)

    def _note_hellos(self) -> None:
        """Take over what nodes say of themselves; other GPUs need another window."""
        hellos = [node.hello for node in self._nodes]
        if len(hellos) == len(self._hellos) and all(map(lambda a, b: a is b, hellos, self._hellos)):
            return
        self._hellos = [*hellos]
        infos = {node.name: NodeInfo(node.hello, node.mine) for node in self._nodes if node.hello is not None}
        before, self._infos = self._infos, infos
        if {name: _gpus_of(info) for name, info in infos.items()} == {
            name: _gpus_of(info) for name, info in before.items()
        }:
            self.window.infos = infos
            return
        self.window = self.window.rebuilt(infos)
        self._lay_out()

    def _lay_out(self) -> None:
        """Assign the window's columns to nodes: each has a run of them."""
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
        gpus, nodes = len(self.window.gpus), len(self.window.nodes)
        self._sums = [np.zeros((len(GPU_SIGNALS), gpus)), np.zeros((len(HOST_SIGNALS), nodes))]
        self._counts = [np.zeros(sums.shape, dtype=np.int32) for sums in self._sums]
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
        for at, part in enumerate((values, hosts)):
            new = _GATHERS[at](part)
            known = np.isfinite(new)
            self._sums[at] += np.where(known, new, 0.0)
            self._counts[at] += known
        newest = values[_NEWEST]
        np.copyto(self._newest, newest, where=np.isfinite(newest))

    def _read_lists(self) -> None:
        """Read processes, ports and mounts of some nodes, so that all had their turn after some looks."""
        self._turn = (self._turn + 1) % self._turns
        for node in self._nodes[self._turn :: self._turns]:
            self._read_lists_of(node)

    def _read_lists_of(self, node: NodeState) -> None:
        window, name = self.window, node.name
        table = node.process_table if PROCESSES in node.metrics else None
        # Decoding takes long, and most tables are those of the last turn.
        if name not in self._read or table is not self._read[name]:
            self._read[name] = table
            window.processes[name] = None if table is None else node.processes
        if HOST in node.metrics and node.listings and node.listings is not self._listings.get(name):
            self._listings[name] = node.listings
            window.ports[name] = node.listed(PORTS)
            window.mounts[name] = node.listed(MOUNTS)

    def _complete(self, now: float) -> None:
        self._step_began = now
        with np.errstate(invalid="ignore", divide="ignore"):
            gpus, hosts = (
                (sums / counts).astype(np.float32)
                for sums, counts in zip(self._sums, self._counts, strict=True)
            )
        self.window.push(Step(now, gpus, hosts, self._newest))
        self._clear()
        for finding in self.watch.look(self.window):
            # Viewers and the file take plain values only.
            plain = finding.plain() | {"dismissed": self._is_dismissed(finding)}
            self._publish(FindingChanged(now, Finding.from_plain(plain)))
        if self.window.steps % COVERAGE_STEPS == 1:
            self._missing = not_measured(self.window, self._rules)
        self._publish(FleetExamined(now, self.watch.ledger.totals(), self._causes(), self._missing))

    def _is_dismissed(self, finding: Finding) -> bool:
        """Return whether the user dismissed this finding, or the last one of its kind and place."""
        whom = finding.kind, finding.node, finding.gpu
        known = reversed(self._fleet.findings.values())
        return next((one.dismissed for one in known if (one.kind, one.node, one.gpu) == whom), False)

    def _causes(self) -> dict[str, bytes]:
        causes = self.watch.ledger.now.tobytes()
        if causes != self._causes_of[0]:
            self._causes_of = (
                causes,
                {
                    node.name: _by_row(self.watch.ledger.now[columns], rows, len(node.facts))
                    for node, columns, rows in self._places
                },
            )
        return self._causes_of[1]


def _gpus_of(info: NodeInfo) -> tuple[object, ...]:
    return info.hello.gpus, info.mine


def _by_row(causes: npt.NDArray[np.uint8], rows: npt.NDArray[np.intp], count: int) -> bytes:
    """Return the causes of a node's GPUs in the order of its rows."""
    if len(rows) == count:
        return causes.tobytes()
    of_rows = np.full(count, NO_CAUSE, dtype=np.uint8)
    of_rows[rows] = causes
    return of_rows.tobytes()
