"""Rules against modelled jobs: faults drawn at random, near-misses, and recordings."""

from __future__ import annotations

from pathlib import Path

from tests.jobs import faults
from tests.jobs.feed import diagnosed, record_job, run
from tests.jobs.model import Fault, Job


def test_a_recording_and_the_running_fleet_have_the_same_findings(tmp_path: Path) -> None:
    job = Job(nodes=2, gpus=4, seconds=600, tick_s=1.0).with_faults(Fault(faults.heat, 300, "thermal", 1, 2))
    record_job(tmp_path / "job.duckdb", job)
    found = diagnosed(tmp_path / "job.duckdb")["findings"]
    first = run(job).at()[0]
    assert (first.kind, first.node, first.gpu, first.rank) == ("thermal", "gpu02", 2, 6)
    assert [(one["kind"], one["node"], one["gpu"]) for one in found] == [("thermal", "gpu02", 2)]
    assert abs(found[0]["gpu_hours"] - first.gpu_hours) < 0.02
