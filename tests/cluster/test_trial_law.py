"""Results of ``gswarm-tui trial`` for a program whose time follows a known law, under real Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.test_trial import allocated, ended, folder, start_trial

__all__ = ["folder"]

SERIAL_S, PARALLEL_S, COMMUNICATION_S = 1.5, 3.0, 0.2
# It sleeps until its time has passed, since a busy machine wakes a sleeper at once.
PROGRAM = f"""
import os, time
began = time.monotonic()
n = int(os.environ["SLURM_NNODES"]) * len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
end = began + {SERIAL_S} + {PARALLEL_S} / n + {COMMUNICATION_S} * (n - 1)
time.sleep(end - time.monotonic())
took = time.monotonic() - began
if os.environ["SLURM_PROCID"] == "0":
    print("work/s:", 1 / took)
"""


def test_serial_part_of_a_known_law_is_found_within_5_percent(cluster: Cluster, folder: Path) -> None:
    with allocated(cluster) as job:
        status, out, said = ended(
            start_trial(
                cluster, folder, f"--job={job}", "--gpus-per-node=1,2", "--ntasks-per-node=1", "--repeat=1",
                "--throughput=work/s: ([0-9.]+)", "--db=run.duckdb", "--json", "--", "python3", "-c", PROGRAM,
            )
        )  # fmt: skip
    assert status == 0, said
    made = json.loads(out)
    assert made["fit"]["serial_s"] == pytest.approx(SERIAL_S, rel=0.05)
    assert made["fit"]["parallel_s"] == pytest.approx(PARALLEL_S, rel=0.05)
    one, *others = made["placements"]
    assert (one["nodes"], one["gpus"], one["efficiency"]) == (1, 1, 1.0)
    times = {row["gpus"]: 1 / row["throughput"] for row in others}
    assert times == pytest.approx({2: 3.2, 4: 2.85}, rel=0.02)
