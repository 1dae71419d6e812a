"""The hub hands every event to the sinks once and in order, and acknowledges commits to their nodes."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gswarm_agent.frame import TABLES
from gswarm_agent.server import SPILL_S
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FrameArrived,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    Phase,
    RecorderStatus,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.node import Standing
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub, next_flush
from gswarm_tui.link.link import Link
from tests.unit.store_recording import T0, arrived, gpu_row, introduced


class ListSink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def submit(self, events: Sequence[Event]) -> None:
        self.events.extend(events)


class FakeLink(Link):
    def __init__(self, node: str) -> None:
        self.node = node
        self.acknowledged: list[tuple[str, int]] = []
        self.intervals: list[int] = []
        self.reconnects = self.energy_readings = 0

    async def run(self) -> None:
        return

    async def stop(self) -> None:
        return

    def acknowledge(self, life: str, seq: int) -> None:
        self.acknowledged.append((life, seq))

    def resume(
        self, life: str, seq: int, offset_s: float, round_trip_s: float, last: tuple[int, float] | None = None
    ) -> None:
        return

    def reconnect(self) -> None:
        self.reconnects += 1

    def may_hold_frames(self) -> bool:
        return self.node == "n2"

    def set_interval(self, interval_ms: int) -> None:
        self.intervals.append(interval_ms)

    def set_metrics(self, groups: tuple[str, ...]) -> None:
        self.groups = groups

    def read_energy(self) -> None:
        self.energy_readings += 1

    def set_job_end(self, at: float) -> None:
        self.job_end = at


def hub(*nodes: str) -> tuple[Hub, ListSink]:
    sink = ListSink()
    made = Hub(Fleet(nodes), clock=lambda: 100.0)
    made.sinks.append(sink)
    return made, sink


def test_sink_gets_events_and_derived_events_once_and_in_order() -> None:
    made, sink = hub("n1")
    lost = LinkChanged("n1", 99.0, Phase.LOST, "refused", "look")
    mark = EventLogged(99.5, "mark", "info", "epoch 3")
    made.publish(lost)
    made.publish(mark)
    made.flush()
    made.flush()
    assert sink.events == [
        lost,
        EventLogged(99.0, "unreachable", "error", "refused", "n1", detail="look"),
        mark,
    ]


def test_frames_of_a_tick_are_applied_together_and_in_order() -> None:
    made, sink = hub("n1")
    node = made.fleet.nodes["n1"]
    frames = [arrived(seq, [gpu_row(util_pct=seq), None]) for seq in (1, 2, 3, 4)]
    before: list[Event] = [introduced(), *frames[:2], LinkMeasured("n1", T0, 0.0, 0.1)]
    for event in before:
        made.publish(event)
    assert (node.frames, node.round_trip_s) == (0, 0.1)
    made.publish(lost := LinkChanged("n1", T0 + 2, Phase.LOST, "refused"))
    assert (node.frames, node.phase) == (2, Phase.LOST)
    made.publish(frames[3])
    made.flush()
    assert (node.frames, node.gpus[0, 0]) == (3, 4)
    written = [event for event in sink.events if not isinstance(event, LinkMeasured)]
    assert written[1:4] == [*frames[:2], lost]
    assert [event.kind for event in written if isinstance(event, EventLogged)] == ["link_lost", "gap"]


def test_commit_is_acknowledged_once_to_its_node() -> None:
    made, _ = hub("n1", "n2")
    links = {name: FakeLink(name) for name in ("n1", "n2")}
    made.links.update(links)
    status = RecorderStatus("f", 1, 1, 0, {("n1", "life"): 7})
    for _ in range(4):
        made.recorded(status)
        made.flush()
    assert links["n1"].acknowledged == [("life", 7)]
    assert links["n2"].acknowledged == []


@pytest.mark.parametrize("commit_takes", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_acknowledgement_arrives_before_the_agent_would_spill(commit_takes: float) -> None:
    """Each commit contains the flushed frames and starts two seconds after the previous one."""
    now = 0.0
    made, sink = Hub(Fleet("abc"), clock=lambda: now), ListSink()
    made.recorder = RecorderStatus("f", 0, 0, 1, {})
    made.links.update(links := {name: FakeLink(name) for name in "abc"})
    made.sinks.append(sink)
    flushes, begins, ends, writing = next_flush(0.0, 1.0), 0.0, math.inf, 0
    longest = dict.fromkeys("abc", 0.0)
    for tick in range(600):
        now = tick / 10
        if tick % 10 == 0:
            frame = TABLES.frame(round(now) + 1, 1, 0.0, 0, gpus=(), host=None)
            for name in "abc":
                made.publish(FrameArrived(name, now, now, "life", frame))
        if now >= flushes:
            flushes = next_flush(now, 1.0)
            made.flush()
        if now >= ends:
            made.recorded(RecorderStatus("f", 1, 1, 0, {(name, "life"): writing for name in "abc"}))
            begins, ends = now + 2.0, math.inf
        if now >= begins and sink.events:
            writing = max(event.frame.seq for event in sink.events if isinstance(event, FrameArrived))
            sink.events.clear()
            begins, ends = math.inf, now + commit_takes
        for name, link in links.items():
            known = link.acknowledged[-1][1] if link.acknowledged else 0
            longest[name] = max(longest[name], now - known)
    assert max(longest.values()) < SPILL_S


def test_frames_are_not_acknowledged_before_the_commit() -> None:
    made, _ = hub("n1")
    made.links["n1"] = link = FakeLink("n1")
    made.recorder = RecorderStatus("f", 0, 0, 1, {})
    made.publish(FrameArrived("n1", 1.0, 1.0, "life", TABLES.frame(1, 1, 0.0, 0, gpus=(), host=None)))
    made.flush()
    assert link.acknowledged == []
    made.recorded(RecorderStatus("f", 1, 1, 0, {("n1", "life"): 1}))
    made.flush()
    assert link.acknowledged == [("life", 1)]


def test_node_whose_frames_were_refused_reconnects_once() -> None:
    made, _ = hub("n1", "n2")
    links = {name: FakeLink(name) for name in ("n1", "n2")}
    made.links.update(links)
    status = RecorderStatus("f", 1, 1, 0, {}, refused=("n1",))
    made.recorded(status)
    made.recorded(status)
    assert (links["n1"].reconnects, links["n2"].reconnects) == (1, 0)
    made.publish(introduced("n1"))
    made.recorded(status)
    assert links["n1"].reconnects == 2


def test_new_interval_reaches_every_node_and_its_stale_timeout() -> None:
    made, sink = hub("n1")
    link = FakeLink("n1")
    made.links["n1"] = link
    made.set_interval(10_000)
    made.flush()
    assert link.intervals == [10_000]
    assert made.fleet.nodes["n1"].stale_after_s == 30.0
    assert made.fleet.interval_ms == 10_000
    changed, happened = sink.events
    assert changed == IntervalChanged(100.0, 10_000)
    assert isinstance(happened, EventLogged)
    assert happened.message == "sampling interval changed from 1 s to 10 s"
    assert json.loads(happened.detail or "") == {"old_ms": 1000, "new_ms": 10_000}


def test_sessions_that_start_and_stop_read_the_energy_of_all_nodes_at_most_twice_a_tick() -> None:
    made, _ = hub("n1", "n2")
    links = {name: FakeLink(name) for name in ("n1", "n2")}
    made.links.update(links)
    asked = []
    for number in range(100):
        made.publish(SessionStarted(str(number), 100.0, f"s{number}", 100.0))
        asked.append(links["n2"].energy_readings)
    made.flush()
    made.flush()
    made.publish(SessionStopped("1", 101.0, 101.0))
    made.flush()
    assert (asked[0], asked[-1], links["n1"].energy_readings, links["n2"].energy_readings) == (1, 1, 3, 3)


def test_switched_metric_groups_reach_every_node_and_are_an_event() -> None:
    made, sink = hub("n1")
    link = FakeLink("n1")
    made.links["n1"] = link
    made.publish(introduced())
    made.set_metrics(("core", "nvlink", "pcie", "activity", "health", "host"))
    made.set_metrics(("core", "pcie", "activity", "health", "processes"))
    made.flush()
    assert link.groups == ("core", "pcie", "activity", "health", "processes")
    first, second = (event for event in sink.events if isinstance(event, EventLogged))
    assert first.message == "metrics: processes switched off"
    assert (second.kind, second.message) == (
        "metrics_changed",
        "metrics: nvlink, host switched off; processes switched on",
    )
    assert json.loads(second.detail or "")["new"] == ["core", "pcie", "activity", "health", "processes"]
    missing = made.fleet.nodes["n1"].unmeasured
    assert missing == dict.fromkeys(("nvlink_rx_mb_s", "nvlink_tx_mb_s", "host", "counters"), "switched off")


@pytest.mark.parametrize(
    ("now", "interval_s", "due"),
    [
        (100.0, 1.0, 100.4),  # frames sampled at 100 have arrived by then
        (100.4, 1.0, 101.4),
        (100.39, 1.0, 101.4),  # a timer that was early
        (100.45, 1.0, 101.4),
        (101.2, 1.0, 101.4),  # a tick that took long
        (102.0, 1.0, 102.4),
        (100.4, 10.0, 101.4),  # ages are shown each second
        (100.04, 0.1, 100.14),
        (100.7, 0.5, 101.2),
    ],
)
def test_flush_comes_after_the_frames(now: float, interval_s: float, due: float) -> None:
    assert next_flush(now, interval_s) == pytest.approx(due)


async def test_paused_head_logs_the_pause_and_calls_no_node_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    made = Hub(Fleet(["a", "b"]), clock=lambda: now)
    made.publish(LinkChanged("a", now, Phase.LIVE))
    made.publish(introduced("a"))
    made.publish(replace(arrived(1, [gpu_row(), None], node="a"), at=now, ts=now))
    made.flush()
    made.fleet.event_log.clear()

    async def stopped_while_asleep(seconds: float) -> None:
        nonlocal now
        now += seconds + 36
        monkeypatch.setattr(asyncio, "sleep", end)

    async def end(_seconds: float) -> None:
        raise RuntimeError("that is enough")

    monkeypatch.setattr(asyncio, "sleep", stopped_while_asleep)
    with pytest.raises(ExceptionGroup):
        await made.run()
    assert [(event.kind, event.node, event.message) for event in made.fleet.event_log] == [
        ("standstill", None, "gswarm-tui itself was paused for 36 s (stopped, suspended or without CPU)")
    ]
    assert made.fleet.nodes["a"].standing(now) is Standing.LIVE
