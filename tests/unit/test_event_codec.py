"""Events for viewers: each is read back as it was, after its way through a message."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_tui.control.messages import LENGTH, decode, encode
from gswarm_tui.fleet.event_codec import EventError, EventReader, encode_event
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FindingChanged,
    FleetExamined,
    FrameArrived,
    FramesLost,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    MetricsChanged,
    NodeIntroduced,
    Phase,
    SessionChanged,
    SessionStarted,
    SessionStopped,
    StopUndone,
)
from gswarm_tui.fleet.findings import SEVERITIES, Evidence, Finding
from tests.unit.store_recording import arrived, introduced
from tests.unit.test_wire import frames, hellos

times = st.floats(0, 4e9)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe_text, maybe_time = st.none() | texts, st.none() | times
counts = st.integers(0, 2**62)
whole_numbers = st.none() | st.integers(0, 2**31 - 1)
evidence = st.builds(Evidence, texts, times | texts, st.none() | times | texts, texts)
findings = st.builds(
    Finding,
    texts,
    texts,
    st.sampled_from(SEVERITIES),
    maybe_text,
    whole_numbers,
    whole_numbers,
    st.lists(texts).map(tuple),
    times,
    maybe_time,
    times,
    texts,
    st.lists(evidence).map(tuple),
    texts,
    texts,
    st.booleans(),
)
PLAIN: dict[type[Any], st.SearchStrategy[Event]] = {
    LinkChanged: st.builds(LinkChanged, texts, times, st.sampled_from(Phase), texts, texts, maybe_time),
    LinkMeasured: st.builds(LinkMeasured, texts, times, times, times),
    FramesLost: st.builds(FramesLost, texts, times, times, texts, counts, texts),
    IntervalChanged: st.builds(IntervalChanged, times, counts),
    MetricsChanged: st.builds(MetricsChanged, times, st.lists(texts).map(tuple)),
    SessionStarted: st.builds(SessionStarted, texts, times, texts, times, texts),
    SessionChanged: st.builds(SessionChanged, texts, times, maybe_text, maybe_text),
    SessionStopped: st.builds(SessionStopped, texts, times, times),
    StopUndone: st.builds(StopUndone, texts, times),
    FindingChanged: st.builds(FindingChanged, times, findings),
    FleetExamined: st.builds(
        FleetExamined,
        times,
        st.dictionaries(texts, times),
        st.dictionaries(texts, st.binary()),
        st.dictionaries(texts, st.lists(texts)),
    ),
    EventLogged: st.builds(
        EventLogged, times, texts, texts, texts, maybe_text, st.none() | counts, maybe_text
    ),
}


def through_a_message(event: Event, reader: EventReader) -> Event:
    packed = encode({"events": [encode_event(event)]})
    (values,) = decode(packed[LENGTH.size :])["events"]
    return reader.event(values)


def test_examples_cover_every_kind_of_event() -> None:
    assert {*PLAIN, NodeIntroduced, FrameArrived} == set(get_args(Event))


@given(st.one_of(*PLAIN.values()))
def test_plain_events_are_read_back(event: Event) -> None:
    assert through_a_message(event, EventReader()) == event


@given(st.data(), texts, times, times, times, st.booleans())
def test_hellos_and_their_frames_are_read_back(
    data: st.DataObject, node: str, at: float, ts: float, offset_s: float, former: bool
) -> None:
    hello = data.draw(hellos())
    reader = EventReader()
    introduction = NodeIntroduced(node, at, hello, former)
    assert through_a_message(introduction, reader) == introduction
    for frame in data.draw(st.lists(frames(hello), max_size=3)):
        event = FrameArrived(node, at, ts, hello.life, frame, offset_s)
        assert through_a_message(event, reader) == event


def test_frames_of_a_former_and_the_present_agent_run_may_alternate() -> None:
    reader = EventReader()
    for life in ("former", "present"):
        through_a_message(introduced(life=life), reader)
    for life in ("former", "present", "former"):
        event = arrived(1, [None, None], life=life)
        assert through_a_message(event, reader) == event


@pytest.mark.parametrize(
    "values",
    [
        [],
        [99],
        ["LinkChanged", "n1", 1.0, "dancing", "", "", None],
        ["LinkMeasured", "n1"],
        ["FrameArrived", "n1"],
        ["FrameArrived", "n1", 1.0, 1.0, "unknown run", b"", 0.0],
        ["NodeIntroduced", "n1", 1.0, b"no hello", False],
        ["1"],
    ],
    ids=["nothing", "kind", "phase", "fields missing", "frame missing", "no hello", "no message", "a text"],
)
def test_invalid_values_are_refused(values: list[Any]) -> None:
    with pytest.raises(EventError):
        EventReader().event(values)
