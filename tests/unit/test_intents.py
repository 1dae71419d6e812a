"""Intents are checked when they are created and when they arrive."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gswarm_tui.control.intents import (
    INTENTS,
    AskJob,
    CancelTrace,
    ChangeInterval,
    ChangeMetrics,
    ChangeSession,
    Detach,
    DismissFinding,
    Intent,
    IntentError,
    LogEvent,
    SetMark,
    StartSession,
    StartTrace,
    StopRecording,
    StopSession,
    UndoStop,
    read_intent,
)
from gswarm_tui.control.messages import LENGTH, VERSION, decode, encode

EXAMPLES = [
    AskJob(("ras", "stacks"), force=True),
    Detach(),
    StartSession(),
    StartSession("train", 1.8e9, "lr 1e-4"),
    StopSession(),
    StopSession("train", 1.8e9),
    UndoStop("ab12"),
    ChangeSession("train", name="eval"),
    ChangeSession("train", note=""),
    SetMark("epoch 3", {"loss": 1.2, "app": "bert"}, 1.8e9),
    LogEvent("profile", "nsys profiles python train.py on gpu01"),
    LogEvent("trial_run", "run 1 of 4 took 3 s", '{"run": 1}'),
    ChangeInterval(500),
    ChangeMetrics(("core", "pcie")),
    CancelTrace(),
    DismissFinding("7"),
    DismissFinding("7", dismissed=False),
    StartTrace(),
    StartTrace(ranks=(0, 7), stacks=True, max_mib=64),
    StopRecording(),
]


def test_examples_cover_every_kind_of_intent() -> None:
    assert {type(example) for example in EXAMPLES} == set(INTENTS.values())


@pytest.mark.parametrize("intent", EXAMPLES)
def test_intent_arrives_as_it_was_sent(intent: Intent) -> None:
    message = decode(encode(intent.message() | {"version": VERSION})[LENGTH.size :])
    arrived = read_intent(message)
    assert type(arrived) is type(intent)
    assert arrived is not None
    assert encode(arrived.message()) == encode(intent.message())


@pytest.mark.parametrize("message", [{}, {"want": "query"}, {"want": ["mark"]}, {"want": None}])
def test_message_of_another_kind_is_no_intent(message: dict[str, Any]) -> None:
    assert read_intent(message) is None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"want": "start_session", "name": ""}, "a session needs a name"),
        ({"want": "start_session", "name": "  "}, "a session needs a name"),
        ({"want": "start_session", "name": 3}, "or has one of another type"),
        ({"want": "start_session", "name": "a\x1b[2J"}, "one line of printable characters"),
        ({"want": "start_session", "name": "x" * 201}, "can have 200 characters; this one has 201"),
        ({"want": "start_session", "note": None}, "or has one of another type"),
        (
            {"want": "start_session", "note": "x" * 4001},
            "can have 4,000 characters; this one has 4,001",
        ),
        ({"want": "start_session", "started_at": "now"}, "or has one of another type"),
        ({"want": "start_session", "started_at": float("nan")}, "a time must be a number of seconds"),
        ({"want": "start_session", "ended_at": 1.0}, "start_session takes no ended_at"),
        ({"want": "stop_session", "ended_at": float("inf")}, "a time must be a number of seconds"),
        ({"want": "undo_stop"}, "undo_stop lacks a required value"),
        ({"want": "change_session", "name": "x"}, "change_session lacks a required value"),
        ({"want": "change_session", "session": "x", "name": "\n"}, "a session needs a name"),
        ({"want": "mark", "name": "x", "values": []}, "a mark has a name and values"),
        ({"want": "mark", "name": "x", "values": {"a": None}}, "numbers and text, not None"),
        ({"want": "interval", "interval_ms": 99}, "an interval must be 100 to 60000"),
        ({"want": "metrics", "groups": "core"}, "unknown metric groups; choose from core"),
        ({"want": "metrics", "groups": [["core"]]}, "unknown metric groups; choose from core"),
        ({"want": "metrics", "groups": ["gpu"]}, "unknown metric groups; choose from core"),
        ({"want": "stop_recording", 3: 4}, "stop_recording takes no 3"),
    ],
)
def test_invalid_message_is_refused_with_its_reason(message: dict[str, Any], problem: str) -> None:
    with pytest.raises(IntentError, match=re.escape(problem)):
        read_intent(message)


@pytest.mark.parametrize(
    "create", [lambda: StartSession(""), lambda: ChangeInterval(10), lambda: ChangeMetrics(("gpu",))]
)
def test_invalid_intent_cannot_be_created(create: Callable[[], Intent]) -> None:
    with pytest.raises(IntentError):
        create()
