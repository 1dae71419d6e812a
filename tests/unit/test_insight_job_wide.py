"""What slows or stops all GPUs alike is found and names no GPU, and the ledger says where the time went."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.jobs import faults
from tests.jobs.feed import run
from tests.jobs.model import T0, Fault, Job, State


def _stuck(state: State, fault: Fault) -> None:
    """One rank waits for a lock outside of the collective in which all others spin."""
    faults.hang(state, fault)
    state.gpus(faults.at(state, fault), util_pct=0)
    state.rank(faults.at(state, fault), cpu_pct=0, state="S", wchan="futex_wait_queue")


def _slow_reads(state: State, fault: Fault) -> None:
    """The ranks read from a slow file system, and the CPUs have nothing to do."""
    state.input_s += 2.5
    state.rank(slice(None), cpu_pct=12, state="D")
    state.hosts(slice(None), cpu_busiest_pct=30, cpu_iowait_pct=25)


def _longer_sequences(state: State, fault: Fault) -> None:
    """The job begins a phase in which it computes twice as long between two exchanges of gradients."""
    state.load *= 2


JOB = Job(nodes=3, gpus=4)
FOUND = [
    ("hang", JOB, Fault(faults.hang, 600), 90),
    ("hang", Job(nodes=1, gpus=2, missing=frozenset({"mem_util_pct"})), Fault(faults.hang, 600), 90),
    (
        "hang",
        replace(JOB, tick_s=60, missing=frozenset({"power_w", "processes"})),
        Fault(faults.hang, 600),
        240,
    ),
    ("hang", JOB, Fault(_stuck, 600, node=2, gpu=3), 690),
    ("storage_stall", JOB, Fault(faults.storage, 600), 90),
    ("input_bound", JOB, Fault(faults.input_all, 600), 270),
    ("input_bound", Job(nodes=1, gpus=1), Fault(_slow_reads, 600), 270),
    ("scheduler_waits", JOB, Fault(faults.scheduler_busy, 600), 90),
    ("fabric", replace(JOB, kind="fsdp"), Fault(faults.congested, 800, strength=0.2), 270),
]
KINDS = {kind for kind, *_ in FOUND} | {"checkpoint"}


@pytest.mark.parametrize(("kind", "job", "fault", "within"), FOUND)
def test_a_fault_of_all_gpus_is_the_first_finding(kind: str, job: Job, fault: Fault, within: float) -> None:
    found = run(job.with_faults(fault))
    first = found.at()[0]
    assert (first.kind, first.node, first.gpu) == (kind, None, None)
    assert first.nodes == tuple(job.names)
    opened = next(when for when, one in found.opened() if one.kind == kind)
    assert fault.start < opened <= fault.start + within
    assert first.since - T0 == pytest.approx(fault.start, abs=max(90, 2 * job.tick_s))
    assert [one.kind for one in found.alarms if one.kind in KINDS] == [kind]


def test_a_hang_holds_for_hours_and_names_the_rank_that_rests() -> None:
    found = run(Job(nodes=2, seconds=12_000, tick_s=30).with_faults(Fault(_stuck, 900, node=1, gpu=2)))
    (hang,) = found.alarms
    assert hang.until is None
    assert "gpu02:2 is idle" in hang.sentence
    assert hang.gpu_hours == pytest.approx(16 * (12_000 - 900) / 3600, rel=0.03)


def test_checkpoints_are_waste_from_a_twentieth_of_the_time() -> None:
    job = Job(nodes=2, seconds=3000, tick_s=10, checkpoint_every=300, checkpoint_s=30)
    (found,) = run(job).alarms
    assert (found.kind, found.node) == ("checkpoint", None)
    assert "checkpoints of 30 s every 300 s" in found.sentence
    assert found.gpu_hours == pytest.approx(16 * 0.1 * 3000 / 3600, rel=0.15)
    assert not run(replace(job, checkpoint_s=10)).alarms
    assert not run(replace(job, asynchronous=True)).alarms


SILENT = {
    "compiles for ten minutes": replace(JOB, compile_s=600),
    "compiles again": JOB.with_faults(Fault(faults.recompiles, 700, lasts=180)),
    "ends": replace(JOB, ends_at=1200),
    "restarts": JOB.with_faults(Fault(faults.restart, 700)),
    "evaluates on one GPU": JOB.with_faults(Fault(faults.evaluation_on_one, 700, lasts=500)),
    "evaluates on one GPU, the others idle": JOB.with_faults(
        Fault(faults.evaluation_on_one, 700, strength=0.9, lasts=500)
    ),
    "evaluates on all": JOB.with_faults(Fault(faults.validates, 700, lasts=400)),
    "serves nobody": replace(JOB, kind="inference").with_faults(Fault(faults.no_requests, 600)),
    "packed sequences": replace(JOB, kind="packed", seconds=3600),
    "mixture of experts": replace(JOB, kind="moe", seconds=3600),
    "capped alike": JOB.with_faults(Fault(faults.capped_alike, 900, strength=0.3)),
    "longer sequences": replace(JOB, seconds=2400).with_faults(Fault(_longer_sequences, 900)),
    "loads slowly at first": JOB.with_faults(Fault(faults.warm_start, 0)),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_healthy_job_has_no_finding_of_all_gpus(name: str) -> None:
    assert not KINDS & {one.kind for one in run(SILENT[name]).at()}


def _shares(job: Job) -> dict[str, float]:
    ledger = run(job).ledger
    assert sum(ledger.values()) == pytest.approx(job.nodes * job.gpus * job.seconds)
    return {cause: 100 * seconds / sum(ledger.values()) for cause, seconds in ledger.items()}


# Shares in % of GPU-hours, as the model makes them: a job of 40 min whose first minute is its start.
LEDGERS: list[tuple[Job, dict[str, float]]] = [
    (JOB, {"working": 97.5, "starting": 2.5}),
    (replace(JOB, compile_s=480), {"working": 80, "starting": 20}),
    (replace(JOB, ends_at=1800), {"working": 72.5, "idle": 25}),
    (replace(JOB, checkpoint_every=300, checkpoint_s=30), {"working": 88, "checkpoint": 8.75}),
    (JOB.with_faults(Fault(faults.hang, 1200)), {"working": 47.5, "hung": 50}),
    (JOB.with_faults(Fault(faults.storage, 1200)), {"working": 47.5, "input": 50}),
    # A step takes 2.5 instead of 1 while the data is waited for.
    (JOB.with_faults(Fault(faults.input_all, 1200)), {"working": 69, "input": 29}),
    (JOB.with_faults(Fault(faults.silent_node, 1200)), {"working": 85, "unexplained": 12.5}),
    # The clock of one is lower by 40 %, so that all others wait for a third of each step.
    (
        JOB.with_faults(Fault(faults.heat, 1160, strength=0.4, node=1, gpu=2)),
        {"working": 80, "waiting": 17, "throttled": 0.6},
    ),
    (
        JOB.with_faults(Fault(faults.evaluation_on_one, 1200, lasts=600)),
        {"working": 73.3, "waiting": 24.2},
    ),
]


@pytest.mark.parametrize(("job", "truth"), LEDGERS)
def test_the_ledger_divides_the_time_by_cause(job: Job, truth: dict[str, float]) -> None:
    shares = _shares(replace(job, seconds=2400))
    assert {cause: share for cause, share in shares.items() if share >= 5 or cause in truth} == pytest.approx(
        truth, abs=5
    )
