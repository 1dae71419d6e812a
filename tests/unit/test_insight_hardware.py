"""Hard facts of hardware and nodes: which are named in modelled jobs, and what isn't."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from gswarm_agent.frame import ERROR, INFO, Note
from gswarm_agent.probes.gpus.nvidia_xid_catalogue import describe
from gswarm_tui.fleet.findings import NOTE, Finding
from gswarm_tui.insight.rules import hardware, memory, ports
from tests.jobs import faults as f
from tests.jobs.feed import run
from tests.jobs.model import GPU_MIB, HOST_MIB, T0, Fault, Job, State

JOB = Job(nodes=2, gpus=4, seconds=1000, seed=7)
Act = Callable[[State, Fault], None]


def found(*faults: Fault, job: Job = JOB) -> list[Finding]:
    """Return what the rules find, without the notes about how jobs start and nodes differ."""
    about = {"starting", "odd_node", "fragmented"}
    return [one for one in run(job.with_faults(*faults)).at() if one.kind not in about]


def named(*faults: Fault, job: Job = JOB) -> list[tuple[str, str | None, int | None]]:
    return [(one.kind, one.node, one.gpu) for one in found(*faults, job=job)]


@pytest.mark.parametrize(
    ("kind", "act", "names_gpu"),
    [
        ("gpu_lost", f.dies_with(79), True),
        ("gpu_lost", f.dies_with(119), True),
        ("memory_error", f.dies_with(94), True),
        ("program_error", f.dies_with(31), True),
        ("nvlink_degraded", f.nvlink_down, True),
        ("pcie_degraded", f.narrow_pcie, True),
        ("pcie_degraded", f.replays, True),
        ("rank_died", f.killed_rank, True),
        ("port_down", f.port_down, False),
        ("port_errors", f.port_errors, False),
        ("port_slow", f.port_slow, False),
        ("port_slow", f.port_unused, False),
        ("disk_full", f.disk_fills, False),
        ("gpu_memory", f.gpu_memory, True),
        ("host_memory", f.host_memory, False),
        ("swap", f.swap, False),
        ("blind", f.silent_node, False),
    ],
)
def test_a_hard_fact_is_the_first_finding_within_five_minutes(kind: str, act: Act, names_gpu: bool) -> None:
    first = found(Fault(act, 700, node=1, gpu=2), job=replace(JOB, nodes=3))[0]
    assert (first.kind, first.node, first.gpu) == (kind, "gpu02", 2 if names_gpu else None)
    assert 400 <= first.since - T0 <= 1000


def xids(*events: tuple[float, int, int, int]) -> Act:
    """Return a fault that reports XIDs: seconds after its start, node, GPU, number."""

    def act(state: State, fault: Fault) -> None:
        for after, node, gpu, number in events:
            if state.age >= fault.start + after:
                text, words = describe(number)
                state.notes.append((node, Note("xid", ERROR, text, gpu, None, json.dumps(words))))

    return act


def test_xids_that_follow_another_fault_are_its_consequences() -> None:
    # NVIDIA's catalogue: XID 45 says that work was cleaned up after an earlier error.
    assert named(Fault(xids((0, 1, 2, 79), (5, 0, 1, 45), (5, 0, 3, 43)), 700)) == [("gpu_lost", "gpu02", 2)]
    assert named(Fault(xids((0, 0, 3, 31), (5, 1, 1, 43)), 700)) == [("program_error", "gpu01", 3)]
    assert named(Fault(xids(*((0, 1, gpu, 45) for gpu in range(4))), 700)) == []


def test_two_faults_on_two_gpus_both_appear_and_one_gpu_has_one_name() -> None:
    both = named(Fault(f.dies_with(79), 700, node=1, gpu=2), Fault(xids((0, 0, 0, 48), (30, 1, 2, 48)), 700))
    assert sorted(both) == [("gpu_lost", "gpu02", 2), ("memory_error", "gpu01", 0)]


def test_a_gpu_that_answers_again_or_has_a_new_process_is_no_longer_lost() -> None:
    def back(state: State, fault: Fault) -> None:
        xids((0, 1, 2, 119))(state, fault)
        if state.age > fault.start + 60:
            state.notes.append((1, Note("gpu_back", INFO, "answers again", 2)))

    [one] = found(Fault(back, 600))
    assert one.until is not None
    restarted = found(Fault(xids((0, 1, 2, 79)), 500), Fault(f.restart, 560))
    assert [one.until is not None for one in restarted if one.kind == "gpu_lost"] == [True]


def test_a_remapped_row_alone_costs_nothing() -> None:
    # NVIDIA's catalogue advises to ignore XID 63, unless 48, 94 or 95 come with it.
    [one] = found(Fault(xids((0, 0, 1, 63)), 700))
    assert (one.kind, one.severity) == ("memory_error", NOTE)


def test_a_gpu_without_samples_is_lost_without_any_event() -> None:
    def silent(state: State, fault: Fault) -> None:
        state.lost.add(f.at(state, fault))

    assert named(Fault(silent, 700, node=1, gpu=2))[0] == ("gpu_lost", "gpu02", 2)


def idle_links(state: State, fault: Fault) -> None:
    # nvidia-smi: links go to Gen1 while the GPU is idle.
    state.pause()
    state.gpus(f.at(state, fault), pcie_gen=1)


def levels_off(state: State, fault: Fault) -> None:
    state.gpus(0, mem_used_mib=GPU_MIB - 15_000 * math.exp(-(state.age - fault.start) / 60))


def page_cache(state: State, fault: Fault) -> None:
    # memory.current has the page cache in it, which the kernel frees when it needs memory.
    state.hosts(0, job_memory_mib=min(899_000, 300_000 + 1500 * (state.age - fault.start)))


def fabric_discards(state: State, fault: Fault) -> None:
    for node in range(state.job.nodes):
        for port in range(4):
            state.ports[node, f"mlx5_{port}/1"] = {"port_xmit_discards": 500 * (state.age - fault.start)}


def unused_port(state: State, fault: Fault) -> None:
    for node in range(state.job.nodes):
        state.ports[node, "mlx5_3/1"] = {"state": 1, "phys_state": 2, "rx_mb_s": 0, "tx_mb_s": 0}


def full_before(state: State, fault: Fault) -> None:
    state.hosts(0, swap_used_mib=40_000, memory_used_mib=HOST_MIB - 20_000)
    state.gpus(1, mem_used_mib=GPU_MIB - 300, remap_pending=1, ecc_uncorrected=3)


def restarts_soon(state: State, fault: Fault) -> None:
    if state.age < fault.start + 90:
        f.rank_restarts(state, fault)


def ends_one_by_one(state: State, fault: Fault) -> None:
    """Most ranks end, and the last ones write a checkpoint."""
    state.alive[1:], state.hung = False, True


@pytest.mark.parametrize(
    ("act", "start"),
    [
        (restarts_soon, 700),
        (ends_one_by_one, 700),
        (idle_links, 700),
        (levels_off, 300),
        (page_cache, 300),
        (fabric_discards, 300),
        (unused_port, 0),
        (full_before, 0),
    ],
)
def test_what_only_looks_like_a_fault_isnt_one(act: Act, start: float) -> None:
    mine = {"hang", *(rule.kind for rule in (*hardware.RULES, *memory.RULES, *ports.RULES))}
    assert not mine & {kind for kind, *_ in named(Fault(act, start, node=1, gpu=2))}


@pytest.mark.parametrize("tick_s", [1.0, 30.0, 60.0])
def test_long_and_short_intervals_name_the_same(tick_s: float) -> None:
    job = Job(nodes=2, gpus=2, seconds=1200, tick_s=tick_s)
    for kind, act in (("rank_died", f.killed_rank), ("pcie_degraded", f.narrow_pcie), ("swap", f.swap)):
        assert named(Fault(act, 840, node=1, gpu=1), job=job)[0][:2] == (kind, "gpu02")
