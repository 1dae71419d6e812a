"""Feeds a window from a live fleet and publishes what its rules find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gswarm_agent.metrics import GPU_COLUMNS, HOST, HOST_COLUMNS, MOUNTS, PORTS, PROCESSES
from gswarm_tui.fleet.events import Event, EventLogged, FindingChanged, FleetExamined
from gswarm_tui.fleet.history import Floats
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.catalogue import RULES
from gswarm_tui.insight.coverage import not_measured
from gswarm_tui.insight.signals import GPU_SIGNALS, HOST_SIGNALS, NEWEST, Signal
from gswarm_tui.insight.watch import Watch
from gswarm_tui.insight.window import STEP_S, NodeInfo, Step, Window

LOOK_S = 1.0
"""The fleet's newest values are read this often."""
TURNS = 5
"""Processes, ports and mounts of a fifth of the nodes are read at each look."""
NO_CAUSE = 255


def _gather(signals: Sequence[Signal], columns: Sequence[str], values: Floats) -> Floats:
    """Return the signals (signals, rows) of values (rows, columns)."""
    out = np.empty((len(signals), len(values)))
    for at, signal in enumerate(signals):
        first = values[:, columns.index(signal.columns[0])]
        if signal.bits:
            held = np.nan_to_num(first).astype(np.int64) & signal.bits != 0
            out[at] = np.where(np.isnan(first), np.nan, 100.0 * held)
        else:
            out[at] = first
            for name in signal.columns[1:]:
                out[at] += values[:, columns.index(name)]
    return out


class LiveWatch:
    """Watches a fleet: call ``observe`` after each flush. It publishes findings as events.

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
    ) -> None:
        self._fleet, self._publish = fleet, publish
        self._step_s = max(STEP_S * scale, fleet.interval_s)
        self._looked_at = self._step_began = 0.0
        self._look_s = LOOK_S * scale
        self._hellos: list[object] = []
        self.window = Window(tuple(fleet.nodes), {}, self._step_s, scale, pp, user)
        self.watch = Watch(RULES, first_id)
        self._turn = 0
        self._clear()

    def submit(self, events: Sequence[Event]) -> None:
        """Note the events that rules read, as a sink of the hub."""
        self.window.events.extend(event for event in events if isinstance(event, EventLogged))

    def observe(self, now: float) -> None:
        """Read the fleet's newest values, and look with all rules when a step is complete."""
        if now - self._looked_at < 0.99 * self._look_s:
            return
        self._looked_at = now
        nodes = list(self._fleet.nodes.values())
        if [node.hello for node in nodes] != self._hellos:
            self._hellos = [node.hello for node in nodes]
            infos = {node.name: NodeInfo(node.hello, node.mine) for node in nodes if node.hello is not None}
            self.window = self.window.rebuilt(infos)
            self._rows = {
                node.name: [gpu.row for gpu in self.window.gpus if gpu.node == node.name] for node in nodes
            }
            self._clear()
        if not self._step_began:
            self._step_began = now
        self._add(now)
        self._read_lists()
        if now - self._step_began >= 0.99 * self._step_s:
            self._complete(now)

    def _clear(self) -> None:
        gpus, nodes = len(self.window.gpus), len(self.window.nodes)
        self._sums = [np.zeros((len(GPU_SIGNALS), gpus)), np.zeros((len(HOST_SIGNALS), nodes))]
        self._counts = [np.zeros_like(sums) for sums in self._sums]
        self._newest = np.full((len(NEWEST), gpus), np.nan)

    def _add(self, now: float) -> None:
        """Add the newest values of live nodes to the step."""
        gpus: list[Floats] = []
        hosts = np.full((len(self.window.nodes), len(HOST_COLUMNS)), np.nan)
        for at, node in enumerate(self._fleet.nodes.values()):
            rows = self._rows[node.name]
            if node.standing(now) is Standing.LIVE:
                gpus.append(node.gpus[rows])
                hosts[at] = node.host
            else:
                gpus.append(np.full((len(rows), len(GPU_COLUMNS)), np.nan))
        values = np.concatenate(gpus) if gpus else np.empty((0, len(GPU_COLUMNS)))
        parts = _gather(GPU_SIGNALS, GPU_COLUMNS, values), _gather(HOST_SIGNALS, HOST_COLUMNS, hosts)
        for at, part in enumerate(parts):
            known = np.isfinite(part)
            self._sums[at] += np.where(known, part, 0.0)
            self._counts[at] += known
        newest = values[:, [GPU_COLUMNS.index(name) for name in NEWEST]].T
        self._newest = np.where(np.isfinite(newest), newest, self._newest)

    def _read_lists(self) -> None:
        """Read processes, ports and mounts of some nodes, so that all had their turn after some looks."""
        window, self._turn = self.window, (self._turn + 1) % TURNS
        for node in list(self._fleet.nodes.values())[self._turn :: TURNS]:
            window.processes[node.name] = (
                node.processes if node.process_table is not None and PROCESSES in node.metrics else None
            )
            if HOST in node.metrics and node.listings:
                window.ports[node.name] = node.listed(PORTS)
                window.mounts[node.name] = node.listed(MOUNTS)
                window.first_ports.setdefault(node.name, window.ports[node.name])

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
            self._publish(FindingChanged(now, finding))
        self._publish(
            FleetExamined(now, self.watch.ledger.totals(), self._causes(), not_measured(self.window, RULES))
        )

    def _causes(self) -> dict[str, bytes]:
        found: dict[str, bytearray] = {
            node.name: bytearray([NO_CAUSE]) * len(node.facts) for node in self._fleet.nodes.values()
        }
        for gpu, cause in zip(self.window.gpus, self.watch.ledger.now.tolist(), strict=True):
            found[gpu.node][gpu.row] = cause
        return {name: bytes(causes) for name, causes in found.items()}
