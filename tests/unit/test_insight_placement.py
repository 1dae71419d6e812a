"""Rules about where ranks run and what they use: each with jobs that have the fault and jobs that don't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gswarm_agent.frame import ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_tui.fleet.findings import NOTE, WASTE, Finding
from gswarm_tui.insight.rules import placement, use
from tests.jobs import faults as f
from tests.jobs.feed import run
from tests.jobs.model import USER, Fault, Job, State, pid_of

MINE = {rule.kind for rule in (*placement.RULES, *use.RULES)}
JOB = Job(nodes=3, gpus=4, seconds=900)
ALL = slice(None)


def found(job: Job) -> list[Finding]:
    """Return the findings of this module's kinds, the most important first."""
    return [one for one in run(job).at() if one.kind in MINE]


def with_act(act: Callable[[State, Fault], None], job: Job = JOB, start: float = 0.0) -> Job:
    """Return a job to which something happens on the GPU 2 of its second node."""
    return job.with_faults(Fault(act, start, node=1, gpu=2, strength=0.3))


def oversubscribed(state: State, fault: Fault) -> None:
    """Each rank of a node starts a thread for each CPU."""
    state.hosts(fault.node, load_1m=(250, 300), cpu_pct=(96, 100), psi_cpu_pct=60)
    state.rank(f.here(state, fault), threads=200, cpu_pct=2400, involuntary_switches_s=1500)


def plain_fp32(state: State, _: Fault) -> None:
    """All ranks multiply matrices without tensor cores."""
    state.gpus(ALL, tensor_active_pct=0, sm_active_pct=(88, 95), dram_active_pct=(15, 25))


def small_kernels(state: State, _: Fault) -> None:
    """Python launches kernels too slowly for the GPUs."""
    state.gpus(ALL, util_pct=(92, 97), sm_active_pct=(20, 30), power_w=(200, 240), mem_util_pct=(8, 12))
    state.gpus(ALL, dram_active_pct=6, tensor_active_pct=4)


def computes_on_cpu(state: State, fault: Fault) -> None:
    """The model of all ranks of a node is left on the CPU."""
    state.pause(1000, f.here(state, fault))


def node_unused(state: State, fault: Fault) -> None:
    """The launcher started no rank on a node."""
    state.alive[f.here(state, fault)] = False


def nothing_runs(state: State, _: Fault) -> None:
    """The job holds its GPUs and starts nothing."""
    state.alive[:] = False


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (f.few_cores, ("few_cores", WASTE, "gpu02", None)),
        (f.wrong_numa, ("numa", NOTE, "gpu02", None)),
        (f.foreign, ("foreign_process", WASTE, "gpu02", 2)),
        (f.shared, ("shared_gpu", WASTE, "gpu02", 2)),
        (f.idle_gpu, ("idle_gpus", WASTE, "gpu02", 2)),
        (node_unused, ("idle_gpus", WASTE, "gpu02", None)),
        (nothing_runs, ("idle_gpus", WASTE, None, None)),
        (f.sockets, ("sockets", WASTE, None, None)),
        (f.nvlink_unused, ("nvlink_unused", WASTE, None, None)),
        (oversubscribed, ("oversubscribed", WASTE, "gpu02", None)),
        (plain_fp32, ("tensor_unused", WASTE, None, None)),
        (small_kernels, ("launch_bound", WASTE, None, None)),
        (computes_on_cpu, ("cpu_instead", WASTE, "gpu02", None)),
    ],
)
def test_each_fault_is_named_alone_among_its_kinds(
    act: Callable[[State, Fault], None], expected: tuple[str, str, str | None, int | None]
) -> None:
    late = act in (nothing_runs, computes_on_cpu)
    job = with_act(act, replace(JOB, seconds=1300 if late else 500))
    assert [(one.kind, one.severity, one.node, one.gpu) for one in found(job)] == [expected]


def test_contexts_of_other_ranks_are_counted() -> None:
    job = JOB.with_faults(Fault(f.ghosts, 0, node=1))
    (ghosts,) = found(job)
    assert (ghosts.kind, ghosts.node, ghosts.gpu) == ("ghosts", "gpu02", 0)
    assert "contexts of 3 other ranks" in ghosts.sentence
    assert "1,440 MiB unused" in ghosts.sentence


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_other_users_are_noticed_from_a_moment_on(nodes: int) -> None:
    job = replace(JOB, nodes=nodes).with_faults(Fault(f.other_users, 600, strength=0.3))
    (first, *_) = found(job)
    assert (first.kind, first.node, first.gpu) == ("other_users", "gpu01", None)
    assert first.severity == WASTE


def test_all_ranks_on_the_wrong_socket_are_one_finding() -> None:
    job = JOB.with_faults(*(Fault(f.wrong_numa, 0, node=node, strength=0) for node in range(3)))
    (numa,) = found(job)
    assert (numa.node, numa.nodes) == (None, ("gpu01", "gpu02", "gpu03"))


def unbound(state: State, _: Fault) -> None:
    """Ranks may use all CPUs, and tasks wait for one now and then."""
    state.rank(ALL, cpus="0-95", involuntary_switches_s=300)
    state.hosts(ALL, psi_cpu_pct=30)


def idle_processes(state: State, fault: Fault) -> None:
    """The processes of a node live and do nothing, as others do while one evaluates, or without requests."""
    state.pause(100, f.here(state, fault))


def ends(state: State, _: Fault) -> None:
    """All ranks end, and the job's allocation remains."""
    state.alive[:] = False


def two_scripts(state: State, fault: Fault) -> None:
    """Somebody debugs with two processes without ranks on one of the GPUs."""
    state.alive[:] = False
    values = tuple(900 if name == "gpu_memory_mib" else None for name in PROCESS_COLUMNS)
    for pid in (1, 2):
        one = ProcessSample(fault.gpu, pid, USER, "python", None, None, values, "0-95", "S", None)
        state.processes.append((fault.node, one))
    state.gpus(f.at(state, fault), util_pct=(0, 20))


def all_contexts(state: State, fault: Fault) -> None:
    """Each rank has a context on each GPU of its node, as a program of JAX has."""
    for gpu in range(4):
        for rank in range(4, 8):
            if rank - 4 != gpu:
                values = tuple(500 if name == "gpu_memory_mib" else 0 for name in PROCESS_COLUMNS)
                one = ProcessSample(gpu, pid_of(state, rank), USER, "python", rank, gpu, values)
                state.processes.append((fault.node, one))


def waits(state: State, _: Fault) -> None:
    """All ranks spin, as in a hang."""
    state.hung = True


@pytest.mark.parametrize("act", [unbound, idle_processes, two_scripts, all_contexts])
@pytest.mark.parametrize("missing", [(), ("processes",)])
def test_what_only_looks_like_a_fault_is_none(
    act: Callable[[State, Fault], None], missing: tuple[str, ...]
) -> None:
    job = replace(JOB, seconds=1000, missing=frozenset(missing))
    assert found(with_act(act, job)) == []


@pytest.mark.parametrize("act", [ends, waits])
def test_a_job_that_ended_or_hangs_uses_its_gpus(act: Callable[[State, Fault], None]) -> None:
    assert found(with_act(act, replace(JOB, seconds=2000), start=600)) == []


def test_servers_that_know_nothing_of_each_other_waste_no_links() -> None:
    def serve(state: State, _: Fault) -> None:
        state.gpus(ALL, nvlink_tx_mb_s=0, nvlink_rx_mb_s=0, pcie_rx_mb_s=(2000, 3000))
        state.hosts(ALL, ib_rx_mb_s=0, ib_tx_mb_s=0, net_rx_mb_s=900)
        state.rank(ALL, world_size=1)

    job = replace(JOB, kind="inference")
    assert {one.severity for one in found(with_act(serve, job))} <= {NOTE}


def test_a_node_that_differs_is_a_note() -> None:
    hellos = JOB.hellos()
    odd = hellos["gpu03"]
    host = replace(odd.host, driver_version="550.54.15")

    class Mixed(Job):
        def hellos(self):  # type: ignore[no-untyped-def]
            return hellos | {"gpu03": replace(odd, host=host)}

    (note,) = found(Mixed(**vars(JOB)))
    assert (note.kind, note.severity, note.node) == ("odd_node", NOTE, "gpu03")
    assert "driver 550.54.15, others 570.86.15" in note.sentence


def test_masks_of_cpus_are_divided_among_ranks() -> None:
    assert placement.cores_each(("0-3", "0-3", "8,10-11")) == (2.0, 2.0, 3.0)
    assert np.isnan(placement.cores_each((None, "x", "0," * 130))).all()
