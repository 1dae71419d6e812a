"""Fleet in memory that runs a simulated job on a manual clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from gswarm_agent.frame import TABLES, Frame, GpuFacts, GpuLink, Hello, HostFacts, Note
from gswarm_agent.metrics import (
    GPU_COLUMNS,
    HOST,
    PROCESSES,
    columns_off,
)
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.simulated import SimulatedNode, Simulation
from gswarm_tui.fleet.events import FrameArrived, LinkChanged, NodeIntroduced, Phase, RecorderStatus
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.insight.live import LiveWatch
from tests.tui.client import LocalClient, LocalHub

BEGINNING = datetime(2026, 3, 2, 14, 0, tzinfo=UTC).timestamp()
TAPED_READINGS = 12_800
"""Most readings of a scene's nodes that are kept for the next scenes."""


class Tape:
    """Readings of a simulated node, computed once for all scenes that take them at the same times."""

    def __init__(self, simulation: Simulation) -> None:
        self.probe = SimulatedNode(simulation)
        self.times: list[int] = []
        self._most = TAPED_READINGS // simulation.nodes
        self._readings: list[TickSamples] = []

    def reading(self, number: int, now_ns: int) -> TickSamples | None:
        """Return a reading, None if the one of this number isn't of this time."""
        if number == len(self.times) < self._most:
            self.times.append(now_ns)
            self._readings.append(self.probe.read(now_ns))
        return self._readings[number] if self.times[number : number + 1] == [now_ns] else None


@lru_cache(maxsize=2048)
def tape(simulation: Simulation, _interval_s: float) -> Tape:
    """Return the tape of a node that is read at an interval."""
    return Tape(simulation)


class TapedNode:
    """Simulated node of a scene, read from a tape as long as the times agree."""

    def __init__(self, simulation: Simulation, interval_s: float) -> None:
        self._simulation = simulation
        self._tape = tape(simulation, interval_s)
        self._taped = 0
        self._own: SimulatedNode | None = None

    def facts(self) -> tuple[HostFacts, tuple[GpuFacts, ...], dict[str, str]]:
        """Return the facts of the node."""
        return self._tape.probe.facts()

    def links(self) -> tuple[GpuLink, ...]:
        """Return how its GPUs are connected."""
        return self._tape.probe.links()

    def read(self, now_ns: int, *, fresh: bool = False) -> TickSamples:
        """Return the samples at a time."""
        if self._own is None:
            if (reading := self._tape.reading(self._taped, now_ns)) is not None:
                self._taped += 1
                return reading
            self._own = SimulatedNode(self._simulation)
            for earlier in self._tape.times[: self._taped]:
                self._own.read(earlier)
        return self._own.read(now_ns)


@lru_cache(maxsize=20_000)
def packed(reading: TickSamples, lost: frozenset[int], groups: frozenset[str]) -> Frame:
    """Return a frame of samples without those of lost GPUs and of groups that aren't measured."""
    off = columns_off(groups)
    rows = tuple(
        None
        if gpu in lost or row is None
        else tuple(None if c in off else v for c, v in zip(GPU_COLUMNS, row, strict=True))
        if off
        else row
        for gpu, row in enumerate(reading.gpus)
    )
    return TABLES.frame(
        seq=0,
        ts_ns=0,
        late_ms=0.4,
        missed=0,
        gpus=rows,
        host=reading.host if HOST in groups else None,
        processes=reading.processes if PROCESSES in groups else None,
        listings=reading.listings if HOST in groups else None,
    )


class Scene:
    """A hub whose nodes are ``SimulatedNode`` probes, read in this process.

    ``client`` is what the app gets. Nothing happens until ``advance``. A node stays as
    ``lose``, ``silence`` or ``forget_gpu`` left it until ``bring_back`` and ``remember_gpu``.
    """

    def __init__(
        self,
        nodes: int = 4,
        gpus: int = 8,
        *,
        seed: int = 1,
        names: Sequence[str] | None = None,
        simulated: bool = True,
        interval_s: float = 1.0,
    ) -> None:
        digits = max(2, len(str(nodes)))
        self.names = list(names or (f"gpu{n:0{digits}}" for n in range(1, nodes + 1)))
        self.time = BEGINNING
        self.interval_s = interval_s
        self.fleet = Fleet(self.names, round(interval_s * 1000))
        self.hub = LocalHub(self.fleet, clock=lambda: self.time)
        self.client = LocalClient(self.hub)
        self._simulated = simulated
        self._watch: LiveWatch | None = None
        simulations = {
            name: Simulation(name, index, len(self.names), gpus, seed, origin_ns=0)
            for index, name in enumerate(self.names)
        }
        self._probes = {name: TapedNode(each, interval_s) for name, each in simulations.items()}
        self._seq = dict.fromkeys(self.names, 0)
        self._quiet: set[str] = set(self.names)
        self._forgotten: set[tuple[str, int]] = set()
        self._notes: dict[str, list[Note]] = {}

    def connect(self, *names: str) -> Scene:
        """Connect these nodes, by default all."""
        for name in names or self.names:
            host, gpus, capabilities = self._probes[name].facts()
            hello = Hello(
                agent_version="1.0",
                life=f"life-{name}",
                interval_ms=round(self.interval_s * 1000),
                simulated=self._simulated,
                host=host,
                gpus=gpus,
                capabilities=capabilities,
                links=self._probes[name].links(),
            )
            self.hub.publish(LinkChanged(name, self.time, Phase.LIVE))
            self.hub.publish(NodeIntroduced(name, self.time, hello))
            self._quiet.discard(name)
        return self

    def advance(self, seconds: float) -> Scene:
        """Advance the clock: each connected node sends a frame per tick, then the hub flushes."""
        for _ in range(max(1, round(seconds / self.interval_s))):
            self.time += self.interval_s
            groups = frozenset(self.fleet.metrics)
            for name in self.names:
                if name not in self._quiet:
                    self._frame(name, groups)
            if self._watch is not None:
                self.hub.flush()
                self._watch.observe(self.time)
        self.hub.flush()
        return self

    def watch(self) -> Scene:
        """Look at the fleet with all rules from now on."""
        self._watch = LiveWatch(self.fleet, self.hub.publish)
        return self

    def set_interval(self, interval_s: float) -> Scene:
        """Sample all nodes at another interval from now on."""
        self.interval_s = interval_s
        self.hub.set_interval(round(interval_s * 1000))
        return self

    def set_metrics(self, *groups: str) -> Scene:
        """Measure only these groups of metrics from now on."""
        self.hub.set_metrics(groups)
        return self

    def _frame(self, name: str, groups: frozenset[str]) -> None:
        reading: TickSamples = self._probes[name].read(round((self.time - BEGINNING) * 1e9))
        lost = frozenset(gpu for node, gpu in self._forgotten if node == name)
        self._seq[name] += 1
        frame = replace(
            packed(reading, lost, groups),
            seq=self._seq[name],
            ts_ns=round(self.time * 1e9),
            notes=(*reading.notes, *self._notes.pop(name, ())),
        )
        self.hub.publish(FrameArrived(name, self.time, self.time, f"life-{name}", frame))

    def lose(self, name: str, reason: str, remedy: str = "", retry_in: float | None = None) -> Scene:
        """Lose a node's link."""
        retry_at = None if retry_in is None else self.time + retry_in
        self.hub.publish(LinkChanged(name, self.time, Phase.LOST, reason, remedy, retry_at))
        self._quiet.add(name)
        return self

    def silence(self, name: str) -> Scene:
        """Stop a node's frames while its link stays up."""
        self._quiet.add(name)
        return self

    def bring_back(self, name: str) -> Scene:
        """Reconnect a node."""
        self.hub.publish(LinkChanged(name, self.time, Phase.LIVE))
        self._quiet.discard(name)
        return self

    def forget_gpu(self, name: str, gpu: int) -> Scene:
        """Make a GPU stop responding."""
        self._forgotten.add((name, gpu))
        return self

    def remember_gpu(self, name: str, gpu: int) -> Scene:
        """Make a GPU respond again."""
        self._forgotten.discard((name, gpu))
        return self

    def note(self, name: str, note: Note) -> Scene:
        """Send a note with the node's next frame."""
        self._notes.setdefault(name, []).append(note)
        return self

    def recording(self, rows: int = 1_234_567, file_bytes: int = 14_200_000, error: str = "") -> Scene:
        """Publish a recorder status."""
        self.hub.recorded(RecorderStatus("run.duckdb", rows, file_bytes, 0, {}, error))
        return self


def scene(nodes: int = 4, gpus: int = 8, seconds: float = 60, *, seed: int = 1) -> Scene:
    """Return a connected fleet after a while."""
    made = Scene(nodes, gpus, seed=seed).connect()
    return made.advance(seconds) if seconds else made
