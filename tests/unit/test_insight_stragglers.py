"""What holds clocks down, the one that the others wait for, and when the rules are silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gswarm_tui.fleet.findings import NOTE, WASTE
from gswarm_tui.insight.rules import clocks, stragglers
from tests.jobs import faults
from tests.jobs.feed import run
from tests.jobs.model import T0, Fault, Job, State

RULES = (*clocks.RULES, *stragglers.RULES)
AT, WITHIN_S = 600.0, 300.0
JOB = Job(seconds=AT + WITHIN_S)
BARE = frozenset(("throttle_power_pct", "throttle_thermal_pct", "clock_reasons", "power_limit_now_w"))
Act = Callable[[State, Fault], None]


def named(job: Job) -> list[tuple[str, str, str | None, int | None]]:
    """Return kind, severity, node and GPU of what the rules find, in order."""
    return [(one.kind, one.severity, one.node, one.gpu) for one in run(job, RULES).at()]


@pytest.mark.parametrize(
    ("act", "kind", "gpu"),
    [
        (faults.heat, "thermal", 5),
        (faults.power_cap, "power_cap", 5),
        (faults.locked, "clocks_locked", 5),
        (faults.brake, "power_brake", None),
        (faults.slow_silicon, "slow_gpu", 5),
        (faults.input_one, "input_straggler", None),
    ],
)
@pytest.mark.parametrize("job", [JOB, replace(JOB, kind="packed", nodes=3, checkpoint_every=240)])
def test_the_one_that_all_wait_for_is_named(act: Act, kind: str, gpu: int | None, job: Job) -> None:
    fault = Fault(act, AT, node=2, gpu=5, strength=0.15)
    first, *others = named(job.with_faults(fault))
    assert first == (kind, WASTE, "gpu03", gpu)
    assert all(severity == NOTE for _, severity, _, _ in others)


def test_two_slow_gpus_are_both_named() -> None:
    hot, slow = Fault(faults.heat, AT, node=0, gpu=1), Fault(faults.slow_silicon, AT, node=2, gpu=5)
    assert {
        (kind, node, gpu)
        for kind, severity, node, gpu in named(JOB.with_faults(hot, slow))
        if severity == WASTE
    } == {
        ("thermal", "gpu01", 1),
        ("slow_gpu", "gpu03", 5),
    }


def test_heat_is_named_where_only_clocks_and_temperatures_are_measured() -> None:
    fault = Fault(faults.heat, AT, node=2, gpu=5)
    assert named(replace(JOB, missing=BARE).with_faults(fault))[0] == ("thermal", WASTE, "gpu03", 5)


def test_the_cost_is_what_the_others_lose_since_it_began() -> None:
    told = run(replace(JOB, seconds=AT + 1200, kind="fsdp").with_faults(Fault(faults.heat, AT, gpu=3)), RULES)
    (finding,) = (one for one in told.at() if one.kind == "thermal")
    moved = told.window.job("nvlink_mb_s", 1700)
    lost = 1.0 - float(np.mean(moved[-120:])) / float(np.mean(moved[:60]))
    assert finding.gpu_hours == pytest.approx(31 * lost * 1200 / 3600, rel=0.15)
    assert abs(finding.since - (T0 + AT)) <= 45
    assert finding.until is None


@pytest.mark.parametrize(
    "job",
    [
        JOB.with_faults(Fault(faults.hot_at_no_cost, AT, node=2, gpu=5)),
        JOB.with_faults(Fault(faults.capped_alike, AT)),
        replace(JOB, kind="packed", seconds=2400),
        replace(JOB, kind="moe", seconds=2400),
        replace(JOB, kind="pipeline", seconds=2400),
        replace(JOB, kind="pipeline", nodes=1, gpus=4, seconds=2400),
        replace(JOB, kind="inference", seconds=2400),
        replace(JOB, compile_s=600, seconds=1500),
        replace(JOB, checkpoint_every=300, checkpoint_s=40, seconds=2400),
        replace(JOB, ends_at=AT),
        JOB.with_faults(Fault(faults.evaluation_on_one, AT, strength=0.1, lasts=280)),
        JOB.with_faults(Fault(faults.evaluation_on_one, AT, strength=0.9, lasts=280)),
        JOB.with_faults(Fault(faults.restart, AT)),
        JOB.with_faults(Fault(faults.rank_restarts, AT, node=1, gpu=1, lasts=30)),
        replace(JOB, nodes=1, gpus=1, seconds=1500),
    ],
)
def test_a_job_that_loses_nothing_has_notes_at_most(job: Job) -> None:
    assert [one for one in named(job) if one[1] != NOTE] == []


def test_stages_that_differ_from_the_start_are_a_note_without_a_culprit() -> None:
    found = named(replace(JOB, kind="pipeline"))
    assert ("uneven_stages", NOTE, None, None) in found


def test_a_slower_job_without_a_culprit_says_so() -> None:
    told = run(replace(JOB, seconds=1500).with_faults(Fault(faults.congested, AT, strength=0.5)), RULES)
    (finding,) = {one.finding_id: one for _, one in told.changes if one.kind == "cannot_tell"}.values()
    assert finding.severity == NOTE
    assert "cannot tell which rank" in finding.sentence


def test_a_job_that_starts_has_a_note_that_ends() -> None:
    told = run(replace(JOB, compile_s=200), RULES)
    (finding,) = (one for one in told.at() if one.kind == "starting")
    assert finding.severity == NOTE
    assert finding.until is not None
    assert 200 <= finding.until - T0 <= 280
