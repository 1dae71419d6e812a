"""Marks travel from the command to the frames exactly once; invalid ones are refused with a reason."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gswarm_agent import mark
from gswarm_agent.frame import TABLES, Frame, Hello, HostFacts, Note
from gswarm_agent.mark import (
    MOST_WAITING,
    MarkError,
    Marks,
    Value,
    checked,
    parse_value,
    read_request,
    request,
    values_of,
)
from gswarm_agent.wire import Ack, Stop
from tests.integration.agent_node import Node, disconnect, gone, hear_of, kill, until
from tests.integration.agent_process import Agent

HELLO = Hello("1", "l", 1000, False, HostFacts("n", "b"), (), {})
FRAME = TABLES.frame(1, 10**18, 0.0, 0, gpus=(), host=None)
printable = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
plain = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | printable


def mark_on(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gswarm_agent", "mark", "--folder", str(node.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"RANK": "3"})


def marks_in(agent: Agent, kind: str = "mark") -> list[Note]:
    return [n for m in agent.heard if isinstance(m, Frame) for n in m.notes if n.kind == kind]


def hear_marks(agent: Agent, count: int, kind: str = "mark") -> list[Note]:
    while len(marks_in(agent, kind)) < count:
        agent.hear(Frame, sum(isinstance(m, Frame) for m in agent.heard) + 1)
    return marks_in(agent, kind)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("loss=1.25", ("loss", 1.25)),
        ("loss=-1e-3", ("loss", -0.001)),
        ("step=12", ("step", 12)),
        ("step=-12", ("step", -12)),
        ("big=9007199254740993", ("big", 9007199254740993)),
        ("loss=nan", ("loss", "nan")),
        ("loss=inf", ("loss", "inf")),
        ("run=2026_11", ("run", "2026_11")),
        ("note=", ("note", "")),
        ("url=a=b", ("url", "a=b")),
        (" lr =0.1", ("lr", 0.1)),
    ],
)
def test_a_value_is_a_number_where_it_reads_as_one(word: str, value: tuple[str, Value]) -> None:
    assert parse_value(word) == value
    assert type(parse_value(word)[1]) is type(value[1])


@pytest.mark.parametrize("word", ["loss", "=3", " =3", ""])
def test_a_value_needs_a_key(word: str) -> None:
    with pytest.raises(MarkError, match="KEY=VALUE"):
        parse_value(word)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"SLURM_PROCID": "5"}, 5),
        ({"SLURM_PROCID": "1", "RANK": "9"}, 9),
        ({"RANK": "none"}, None),
    ],
)
def test_the_rank_is_added_if_the_launcher_sets_it(environ: dict[str, str], rank: int | None) -> None:
    assert values_of([], environ).get("rank") == rank
    assert values_of(["rank=7"], environ)["rank"] == 7


@given(printable, st.dictionaries(printable, plain, max_size=8))
def test_a_mark_survives_its_request(name: str, values: dict[str, Value]) -> None:
    found, detail = read_request(request(name, values))
    assert (found, json.loads(detail)) == (name, values)
    assert detail.isprintable()


@given(st.text(max_size=40) | st.text("0123456789=.-+e_", max_size=40))
@example("a=" + "9" * 400)
@example("a=" + "9" * 5000)
@example("a=1e999")
def test_any_text_is_a_value_or_refused(word: str) -> None:
    with contextlib.suppress(MarkError):
        _, detail = read_request(request("x", values_of([word], {})))
        assert detail.isprintable()


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        (" \t", {}, "a mark needs a name"),
        ("x" * 201, {}, "a mark's name can have 200 characters; this one has 201"),
        ("x", dict.fromkeys(map(str, range(33)), 1), "a mark can have 32 values; this one has 33"),
        ("x", {"a": "y" * 5000}, "a mark's values can have 4096 characters"),
        ("x", {"a": [1]}, r"a mark's values are numbers and text, not \[1\]"),
        ("x", {"a": True}, "a mark's values are numbers and text, not True"),
        ("x", {"a": 10**400}, "a mark's whole numbers are below 2 to the power of 63"),
    ],
)
def test_a_mark_has_bounds(name: str, values: dict[str, object], said: str) -> None:
    with pytest.raises(MarkError, match=said):
        checked(name, values)


def test_frames_carry_marks_in_order_up_to_a_bound_each() -> None:
    marks = Marks()
    for number in range(MOST_WAITING):
        marks.add(f"m{number}", "{}", number)
    with pytest.raises(MarkError, match="4096 marks wait"):
        marks.add("one more", "{}", 0)
    own = Note("xid", "error", "XID 79")
    frames = [marks.put_on(replace(FRAME, notes=(own,))) for _ in range(marks.frames_needed)]
    assert [frame.notes[0] for frame in frames] == [own] * len(frames)
    told = [note for frame in frames for note in frame.notes[1:]]
    assert [note.message for note in told] == [f"m{number}" for number in range(MOST_WAITING)]
    assert [note.ts_ns for note in told] == list(range(MOST_WAITING))
    assert marks.frames_needed == 0
    assert marks.put_on(FRAME) is FRAME


def test_a_mark_goes_with_the_next_frame_and_has_its_own_time(node: Node) -> None:
    agent = node.attach(interval_ms=500)
    agent.hear(Frame)
    done = mark_on(node, "epoch 3", "--value", "loss=1.2", "--value", "phase=warm up")
    assert (done.returncode, done.stdout, done.stderr) == (0, "marked in 1 recording\n", "")
    (note,) = hear_marks(agent, 1)
    assert (note.kind, note.severity, note.message, note.gpu) == ("mark", "info", "epoch 3", None)
    assert note.detail is not None
    assert json.loads(note.detail) == {"loss": 1.2, "phase": "warm up", "rank": 3}
    before, carrier = [m for m in agent.heard if isinstance(m, Frame)][-2:]
    assert note.ts_ns is not None
    assert before.ts_ns < note.ts_ns < carrier.ts_ns
    assert note in carrier.notes


def test_a_mark_waits_while_no_head_is_connected(node: Node) -> None:
    first = node.attach()
    (hello,) = first.hear(Hello)
    disconnect(first)
    assert mark_on(node, "alone").returncode == 0
    before = node.waiting()[hello.life]
    until(lambda: node.waiting()[hello.life] > before)
    kill(node.pid, signal.SIGTERM)
    second = node.attach()
    assert [note.message for note in hear_marks(second, 1)] == ["alone"]


def test_a_mark_just_before_the_end_goes_with_a_last_frame(node: Node) -> None:
    agent = node.attach(interval_ms=60_000)
    (hello,) = agent.hear(Hello)
    agent.hear(Frame)
    pid = node.pid
    assert mark_on(node, "done").returncode == 0
    agent.say(Stop())
    assert [note.message for note in hear_marks(agent, 1)] == ["done"]
    agent.say(Ack(hello.life, 10**6))
    until(lambda: gone(pid))


def test_many_marks_at_once_arrive_once_and_in_order(node: Node) -> None:
    agent = node.attach()
    (hello,) = agent.hear(Hello)
    agent.hear(Frame)
    for number in range(300):
        assert mark.send("step", {"n": number}, top=str(node.folder)).recordings == ["rec"]
    found = [json.loads(note.detail or "")["n"] for note in hear_marks(agent, 300)]
    assert found == list(range(300))
    last = max(m.seq for m in agent.heard if isinstance(m, Frame))
    hear_of(agent, hello.life, last + 3)
    assert len(marks_in(agent)) == 300


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("epoch",), "gswarm-agent: no recording has an agent of yours on this node\n", 1),
        ((), "the following arguments are required: NAME", 2),
        (("epoch", "3"), "unrecognized arguments: 3", 2),
        (("epoch", "--value", "loss"), "'loss' isn't of the form KEY=VALUE", 2),
        (("epoch", "--value"), "argument --value: expected one argument", 2),
        (("x" * 201,), "a mark's name can have 200 characters", 2),
    ],
)
def test_an_invalid_mark_is_refused_with_a_reason(
    node: Node, words: tuple[str, ...], said: str, status: int
) -> None:
    done = mark_on(node, *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr


def test_steps_are_sent_as_medians_every_half_minute(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "7")
    agent = node.attach()
    agent.hear(Frame)
    steps = mark.Steps(top=str(node.folder))
    for second in range(40):
        steps.take(100.0 + second + 0.4 * (second == 20), None, 0.25)
    (note,) = hear_marks(agent, 1, "step")
    found = {"step": 31, "seconds": 1.0, "compute": 0.25, "rank": 7}
    assert json.loads(note.detail or "") == found


def test_steps_never_fail_and_warn_once_in_rank_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        steps = mark.Steps(top=str(tmp_path))
        for second in (0.0, 40.0, 80.0):
            steps.take(second, None, None)
            if steps.sender is not None:
                steps.sender.join()
        monkeypatch.setattr(mark, "_steps", mark.Steps(top=str(tmp_path)))
        mark.step("three", compute="long")  # type: ignore[arg-type]
    said = [str(warning.message) for warning in recwarn]
    assert [text.partition(";")[0] for text in said] == [
        "gswarm_agent.mark.step: no gswarm-tui has an agent of yours on this node",
        "gswarm_agent.mark.step: a step can't be counted: invalid literal for int() with base 10: 'three'",
    ]
