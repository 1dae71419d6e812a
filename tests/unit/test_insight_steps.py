"""Ranks that send the times of their steps: the slow one is named, and nothing that they send does harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gswarm_agent.frame import INFO, Note
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.findings import NOTE, Finding
from gswarm_tui.insight.effect import slowdown
from gswarm_tui.insight.step_marks import StepMarks
from tests.jobs.faults import marks_steps
from tests.jobs.feed import diagnosed, record_job, run
from tests.jobs.model import T0, Fault, Job, State

JOB = Job(nodes=2, gpus=4, seconds=1200.0)
Times = Callable[[int, float], dict[str, float]]


def sending(times: Times) -> list[Finding]:
    """Return what costs time in a job whose ranks send these times of steps at each age."""

    def act(state: State, fault: Fault) -> None:
        if state.age % 30 < state.job.tick_s:
            for rank in range(JOB.count):
                values = {"step": round(state.age), "steps": 9, "rank": rank, **times(rank, state.age)}
                note = Note("step", INFO, "step time", None, None, json.dumps(values))
                state.notes.append((rank // JOB.gpus, note))

    return [one for one in run(JOB.with_faults(Fault(act, 0))).at() if one.severity != NOTE]


def test_the_rank_that_computes_longer_is_named_with_its_gpu_and_the_cost() -> None:
    told = run(JOB.with_faults(Fault(marks_steps, 0, node=1, gpu=2, strength=0.4)))
    [found] = [one for one in told.at() if one.severity != NOTE]
    assert (found.kind, found.node, found.gpu, found.rank) == ("slow_steps", "gpu02", 2, 6)
    assert "computes 1.8 s a step" in found.sentence
    assert "the fastest rank 1.1 s" in found.sentence
    assert T0 + 500 <= found.since <= T0 + 720
    # One rank's marks also show by how much the job is slower.
    assert len({json.loads(event.detail or "")["rank"] for event in told.window.events}) == 1
    assert slowdown(told.window, T0 + 600) is not None


def test_marks_of_a_recording_are_judged_alike(tmp_path: Path) -> None:
    path, fault = tmp_path / "run.duckdb", Fault(marks_steps, 0, node=1, gpu=2, strength=0.4)
    record_job(path, JOB.with_faults(fault))
    first = diagnosed(path)["findings"][0]
    assert (first["kind"], first["node"], first["gpu"]) == ("slow_steps", "gpu02", 2)


@pytest.mark.parametrize(
    ("times", "named"),
    [
        # Without "compute", a rank is compared with itself only, unless all got slower alike.
        (lambda rank, age: {"seconds": 3.0 if rank == 5 and age > 600 else 1.0}, ["gpu02"]),
        (lambda rank, _: {"seconds": 3.0 if rank == 5 else 1.0}, []),
        (lambda _, age: {"seconds": 3.0 if age > 600 else 1.0}, []),
        (lambda rank, _: {"seconds": 3.0, "compute": 2.0 if rank in (1, 6) else 1.0}, ["gpu01", "gpu02"]),
        (lambda rank, _: {"seconds": 3.0, "compute": 2.0 if rank else 1.0}, []),
        (lambda rank, _: {"seconds": 3.0, "compute": 1.2 if rank == 5 else 1.0}, []),
    ],
)
def test_ranks_are_compared_with_the_fastest_and_with_themselves(times: Times, named: list[str]) -> None:
    assert sorted({one.node or "" for one in sending(times) if one.kind == "slow_steps"}) == named


@pytest.mark.parametrize(
    "detail",
    [
        *(None, "[]", "{", "[" * 100_000, '{"seconds": 1e400}', '{"seconds": -1}', '{"seconds": "1"}'),
        *(
            '{"seconds": 1, "compute": Infinity}',
            '{"seconds": 1, "rank": 1.5}',
            '{"seconds": 1, "rank": [1]}',
        ),
    ],
)
def test_marks_that_make_no_sense_are_left_out(detail: str | None) -> None:
    marks = StepMarks()
    assert not marks.take(EventLogged(T0, "step", INFO, "step time", "n1", None, detail))
    assert marks.ranks == {}
