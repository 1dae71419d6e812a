"""Rules against modelled jobs: faults drawn at random, near-misses, and recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import faults
from tests.jobs.blind import blind, near_misses
from tests.jobs.feed import diagnosed, record_job, run
from tests.jobs.model import Act, Fault, Job

NO_ACTIVITY = frozenset(("sm_active_pct", "tensor_active_pct", "dram_active_pct", "nvlink_tx_mb_s", "ports"))


def test_nine_of_ten_hidden_faults_are_the_first_finding_within_five_minutes() -> None:
    missed = blind(20, seed=35)
    assert len(missed) <= 2, "\n".join(f"{case}: {[one.sentence for one in found]}" for case, found in missed)


def test_jobs_with_which_nothing_is_wrong_raise_no_alarm() -> None:
    alarms = {name: run(job).alarms for name, job in near_misses(900)}
    assert not {name: [one.sentence for one in found] for name, found in alarms.items() if found}


@pytest.mark.parametrize(
    ("act", "kind", "missing", "node", "gpu"),
    [
        (faults.heat, "thermal", frozenset(), "gpu02", 2),
        (faults.killed_rank, "rank_died", NO_ACTIVITY, "gpu02", 2),
        (faults.dies_with(79), "gpu_lost", frozenset(), "gpu02", 2),
        (faults.port_down, "port_down", frozenset({"mem_util_pct", "mounts"}), "gpu02", None),
        (faults.hang, "hang", frozenset({"processes"}), None, None),
    ],
)
def test_a_recording_has_the_findings_of_the_running_fleet(
    tmp_path: Path, act: Act, kind: str, missing: frozenset[str], node: str | None, gpu: int | None
) -> None:
    job = Job(nodes=2, gpus=4, seconds=600, tick_s=1.0, missing=missing).with_faults(
        Fault(act, 300, kind, 1, 2)
    )
    record_job(tmp_path / "job.duckdb", job)
    found = diagnosed(tmp_path / "job.duckdb")["findings"]
    live = run(job).at()
    assert (found[0]["kind"], found[0]["node"], found[0]["gpu"]) == (kind, node, gpu)
    assert [(one["kind"], one["node"], one["gpu"]) for one in found] == [
        (one.kind, one.node, one.gpu) for one in live
    ]
    assert abs(found[0]["gpu_hours"] - live[0].gpu_hours) < 0.02
