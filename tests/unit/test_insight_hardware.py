"""Hard facts of hardware and nodes, named in modelled jobs and in crafted windows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gswarm_tui.fleet.findings import Finding
from tests.jobs import faults as f
from tests.jobs.feed import run
from tests.jobs.model import Fault, Job, State

JOB = Job(nodes=2, gpus=4, seconds=1000, seed=7)


def found(*faults: Fault, job: Job = JOB) -> list[Finding]:
    return run(job.with_faults(*faults)).at()


@pytest.mark.parametrize(
    ("kind", "act", "names_gpu"),
    [
        ("gpu_lost", f.dies_with(79), True),
        ("gpu_lost", f.dies_with(119), True),
        ("memory_error", f.dies_with(94), True),
        ("program_error", f.dies_with(31), True),
        ("nvlink_degraded", f.nvlink_down, True),
        ("pcie_degraded", f.narrow_pcie, True),
        ("rank_died", f.killed_rank, True),
        ("port_down", f.port_down, False),
        ("port_errors", f.port_errors, False),
        ("port_slow", f.port_slow, False),
        ("disk_full", f.disk_fills, False),
        ("gpu_memory", f.gpu_memory, True),
        ("host_memory", f.host_memory, False),
        ("swap", f.swap, False),
        ("blind", f.silent_node, False),
    ],
)
def test_a_hard_fact_is_the_first_finding_within_five_minutes(
    kind: str, act: Callable[[State, Fault], None], names_gpu: bool
) -> None:
    first = found(Fault(act, 700, node=1, gpu=2))[0]
    assert (first.kind, first.node, first.gpu) == (kind, "gpu02", 2 if names_gpu else None)
