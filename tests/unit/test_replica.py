"""Replicas of a fleet: restored at any moment, they stay equal to the original."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import ALL_GROUPS
from gswarm_tui.control.messages import LENGTH, decode, encode
from gswarm_tui.fleet.event_codec import EventError, EventReader, encode_event
from gswarm_tui.fleet.events import (
    Event,
    FindingChanged,
    FleetExamined,
    FrameArrived,
    FramesLost,
    LinkChanged,
    LinkMeasured,
    Phase,
    SessionStopped,
)
from gswarm_tui.fleet.replica import (
    ReplicaError,
    fleet_state,
    node_history,
    restore_fleet,
    restore_history,
)
from gswarm_tui.fleet.state import Fleet
from tests.tui.client import LocalHub
from tests.unit.store_recording import (
    T0,
    arrived,
    finding,
    gpu_row,
    host_row,
    introduced,
    listings,
    process_row,
)

NODES = ("n1", "n2", "n3")


class Drive:
    """A hub with three nodes, driven by chance; ``events`` are those that its sinks got since last asked."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._now = T0
        fleet = Fleet(NODES, allocation={"n1": frozenset({0})})
        self.hub = LocalHub(fleet, clock=lambda: self._now)
        self.hub.sinks.append(self)
        self._seq = dict.fromkeys(NODES, 0)
        self._life = dict.fromkeys(NODES, "life0")
        self._late: list[FrameArrived] = []
        self.events: list[Event] = []
        for node in NODES[:2]:  # the third one is never connected
            self._introduce(node)

    def submit(self, events: Sequence[Event]) -> None:
        self.events += events

    def tick(self) -> None:
        """Let a second pass."""
        self._now += 1
        for node in NODES[:2]:
            self._frame(node)
        happenings = self._session, self._session, self._stop, self._lose, self._change, self._restart
        self._chance.choice((*happenings, self._find, self._late_frame))(self._chance.choice(NODES[:2]))
        self.hub.flush()

    def _introduce(self, node: str) -> None:
        self.hub.publish(introduced(node, self._now, life=self._life[node]))
        self.hub.publish(LinkChanged(node, self._now, Phase.LIVE))
        self.hub.publish(LinkMeasured(node, self._now, 0.25, 0.001))

    def _frame(self, node: str) -> None:
        self._seq[node] += 1
        chance, energy_mj = self._chance, 1e3 * self._seq[node]
        rows = [
            gpu_row(util_pct=chance.randint(0, 100), power_w=chance.uniform(50, 700), energy_mj=energy_mj)
            for _ in range(2)
        ]
        process = ProcessSample(0, 17, "ada", "train", 3, None, process_row(sm_pct=40.0))
        event = arrived(
            self._seq[node], rows, node, self._life[node], self._now - 0.2, host_row(cpu_pct=12.0),
            (process,) if chance.random() < 0.3 else None,
            listed=listings(state=4, new_errors=chance.randint(0, 9)) if chance.random() < 0.3 else None,
        )  # fmt: skip
        if chance.random() < 0.1:
            self._late.append(event)
        else:
            self.hub.publish(event)

    def _late_frame(self, _node: str) -> None:
        while self._late:
            self.hub.publish(self._late.pop())

    def _session(self, _node: str) -> None:
        started_at = self._now - self._chance.choice((0, 3, 20))
        self.hub.start_session(f"run {self._now:.0f}", started_at=max(T0, started_at), note="a note")

    def _stop(self, _node: str) -> None:
        for session in self.hub.fleet.sessions.running[:2]:
            ended_at = self._now - self._chance.choice((0, 2))
            self.hub.publish(SessionStopped(session.session_id, self._now, ended_at))
            if self._chance.random() < 0.5:
                self.hub.undo_stop(session.session_id)
            else:
                self.hub.change_session(session.session_id, name=f"{session.name} again")

    def _lose(self, node: str) -> None:
        self._seq[node] += 3
        why = "the disk is full"
        self.hub.publish(FramesLost(node, self._now, self._now, self._life[node], self._seq[node], why))
        self.hub.publish(LinkChanged(node, self._now, Phase.LOST, "reset", "wait", self._now + 2))
        self.hub.publish(LinkChanged(node, self._now, Phase.LIVE))

    def _change(self, _node: str) -> None:
        self.hub.set_interval(self._chance.choice((500, 1000, 2000)))
        self.hub.set_metrics(self._chance.choice((ALL_GROUPS, ("core", "host"))))

    def _find(self, node: str) -> None:
        """Open a finding, close the last one, and look with the rules."""
        number = len(self.hub.fleet.findings)
        if number:
            self.hub.publish(FindingChanged(self._now, finding(number, self._now)))
        self.hub.publish(FindingChanged(self._now, finding(number + 1, rank=None, node=node)))
        ledger, missing = {"working": 16.0 * number}, {"ib_mb_s": ["n1"]}
        self.hub.publish(FleetExamined(self._now, ledger, {node: bytes([0, 255])}, missing))

    def _restart(self, node: str) -> None:
        self._late_frame(node)  # frames follow the hello of their own run
        self._life[node], self._seq[node] = f"life {self._now:.0f}", 0
        self._introduce(node)


def sent(values: dict[str, Any]) -> dict[str, Any]:
    """Return values after their way through a message."""
    return decode(encode(values)[LENGTH.size :])


def replica_of(fleet: Fleet, reader: EventReader) -> Fleet:
    replica = restore_fleet(sent(fleet_state(fleet)), reader)
    for node in fleet.nodes.values():
        if (history := node_history(node)) is not None:
            restore_history(replica, sent({"history": history})["history"])
    return replica


@pytest.mark.parametrize("seed", range(8))
def test_replica_stays_equal_to_the_fleet(seed: int) -> None:
    drive, chance = Drive(seed), random.Random(seed)
    for _ in range(chance.randint(0, 40)):
        drive.tick()
    drive.hub.flush()
    drive.events.clear()
    reader = EventReader()
    replica = replica_of(drive.hub.fleet, reader)
    for _ in range(40):
        drive.tick()
        for event in drive.events:
            replica.apply(reader.event(sent({"event": encode_event(event)})["event"]))
        drive.events.clear()
    assert fleet_state(replica) == fleet_state(drive.hub.fleet)
    for name, node in drive.hub.fleet.nodes.items():
        assert node_history(replica.nodes[name]) == node_history(node)
        assert replica.nodes[name].mine == node.mine


def test_replica_has_the_history_of_a_node_without_gpus() -> None:
    hub = LocalHub(Fleet(["login1"]), clock=lambda: T0)
    hub.publish(introduced("login1", T0, gpus=0))
    hub.publish(arrived(1, [], "login1", host=host_row(cpu_pct=12.0)))
    hub.flush()
    replica = replica_of(hub.fleet, EventReader())
    history = node_history(hub.fleet.nodes["login1"])
    assert history is not None
    assert node_history(replica.nodes["login1"]) == history


@pytest.mark.parametrize("part", ["columns", "nodes", "sessions", "log", "rules"])
def test_invalid_states_are_refused(part: str) -> None:
    state = fleet_state(Drive(1).hub.fleet)
    with pytest.raises(ReplicaError):
        restore_fleet(state | {part: [["unknown"]]}, EventReader())


@pytest.mark.parametrize(
    "lie",
    [
        {"severity": "catastrophe"},
        {"sentence": 5},
        {"since": float("nan")},
        {"until": 1e300},
        {"gpu_hours": float("inf")},
        {"nodes": [5]},
        {"evidence": [{"metric": "temp_c", "value": [], "peers": None, "unit": ""}]},
    ],
)
def test_a_finding_that_is_none_is_refused(lie: dict[str, Any]) -> None:
    kind, at, plain = encode_event(FindingChanged(T0, finding()))
    assert EventReader().event([kind, at, plain]) == FindingChanged(T0, finding())
    with pytest.raises(EventError):
        EventReader().event([kind, at, plain | lie])
