"""Groups of events: events of one kind and minute share a line; few lines keep warnings and errors."""

from __future__ import annotations

from gswarm_agent.frame import ERROR, INFO, WARNING
from gswarm_tui.fleet.event_groups import grouped, latest
from gswarm_tui.fleet.events import EventLogged

T0 = 1_000_020.0
"""A whole minute."""


def cap(at: float, node: str, gpu: int | None) -> EventLogged:
    return EventLogged(at, "throttle", INFO, "throttled: power cap", node, gpu)


def test_events_of_one_kind_and_minute_are_counted_in_one_line() -> None:
    events = [cap(T0 + gpu, f"gpu{gpu % 21:02}", gpu) for gpu in range(38)]
    (group,) = grouped(events)
    assert group.message == "power cap: 38 GPUs on 21 nodes within 37 s"
    assert (group.at, group.node, group.gpu) == (T0 + 37, None, None)


def test_few_gpus_are_named_and_one_node_is_named() -> None:
    (few,) = grouped([cap(T0, "gpu10", 5), cap(T0, "gpu9", 4)])
    assert few.message == "power cap: gpu9:4, gpu10:5"
    (two,) = grouped([cap(T0, "gpu02", 7), cap(T0, "gpu02", 5)])
    assert (two.message, two.node) == ("power cap: GPUs 5, 7", "gpu02")
    (one_node,) = grouped([cap(T0, "gpu01", gpu) for gpu in range(8)])
    assert (one_node.message, one_node.node) == ("power cap: 8 GPUs", "gpu01")


def test_other_minutes_kinds_severities_and_reasons_are_other_lines() -> None:
    events = [
        cap(T0, "gpu01", 0),
        cap(T0 + 60, "gpu02", 0),
        EventLogged(T0, "throttle", WARNING, "throttled: thermal (hardware)", "gpu01", 1),
        EventLogged(T0, "link_lost", ERROR, "connection reset", "gpu03"),
    ]
    assert [g.message for g in grouped(events)] == [
        "throttled: power cap",
        "throttled: thermal (hardware)",
        "connection reset",
        "throttled: power cap",
    ]


def test_messages_that_differ_only_in_figures_are_one_line() -> None:
    ends = [EventLogged(T0 + gpu, "stale", WARNING, f"no data for {gpu} s", "gpu01", gpu) for gpu in range(5)]
    assert [g.message for g in grouped(ends)] == ["no data: 5 GPUs within 4 s"]
    again = [cap(T0 + second, "gpu01", 3) for second in (1, 2)]
    assert [g.message for g in grouped(again)] == ["power cap: 2 times within 1 s"]
    lost = [EventLogged(T0, "link_lost", ERROR, "connection reset", f"gpu{n:02}") for n in range(12)]
    assert [g.message for g in grouped(lost)] == ["connection reset: 12 nodes"]


def test_frequent_marks_leave_half_of_the_lines_to_other_events() -> None:
    marks = [EventLogged(T0 + n, "mark", INFO, "step", "gpu01", detail=f'{{"loss": {n}}}') for n in range(99)]
    notices = [EventLogged(T0 + n, "notice", INFO, f"notice {n}") for n in range(4)]
    shown = [group.message for group in latest(grouped([*notices, *marks]), 6, T0 + 99)]
    assert shown == ["notice 1", "notice 2", "notice 3", *(f"step · loss={n}" for n in (96, 97, 98))]
    assert len(latest(grouped([*notices[:1], *marks]), 6, T0 + 99)) == 6


def test_marks_and_events_of_the_whole_fleet_stay_single() -> None:
    marks = [EventLogged(T0, "mark", INFO, "epoch", "gpu01", detail=f'{{"loss": {n}}}') for n in range(2)]
    notices = [EventLogged(T0, "notice", WARNING, "no disk") for _ in range(2)]
    assert len(grouped([*marks, *notices])) == 4
