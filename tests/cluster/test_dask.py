"""Dask across the nodes, started by Slurm and by SSH, recorded and compared."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import remove_what_is_left
from tests.cluster.person import ask, closed_properly, user_env
from tests.cluster.test_trial import allocated, ended, start_trial

SUM = str(Path(__file__).parents[2] / "contrib" / "dask_sum.py")
THREADS = re.compile(r"on (\d+) threads: [0-9.]+ s")
SIZE = ("--size=6000", "--chunk=1000")
MARKS = """
SELECT value FROM mark_values WHERE mark = 'dask tasks' AND key = 'dask_tasks' ORDER BY ts
"""


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    yield made
    remove_what_is_left(cluster)
    shutil.rmtree(made)


def test_trial_compares_a_dask_sum_on_one_and_two_nodes(cluster: Cluster, folder: Path) -> None:
    words = ["--node-counts=1,2", "--gpus-per-node=1", "--repeat=1", "--throughput=([0-9.]+) GB/s"]
    command = ["--db=run.duckdb", "--json", "--", sys.executable, SUM, *SIZE]
    with allocated(cluster) as job:
        status, out, said = ended(start_trial(cluster, folder, f"--job={job}", *words, *command))
    assert status == 0, said
    assert [each["gpus"] for each in json.loads(out)["placements"]] == [1, 2]
    logs = [log.read_text() for log in (folder / "run-trial").glob("*.log")]
    assert sorted(THREADS.findall("\n".join(logs))) == ["1", "1", "2"]
    marks = ask(folder / "run.duckdb", MARKS)
    assert len(marks) == 3, "each sum sends a mark"
    assert len({tasks for (tasks,) in marks}) == 1
    closed_properly(folder / "run.duckdb")


def test_workers_started_by_ssh_sum_and_are_recorded(cluster: Cluster, folder: Path) -> None:
    dask, env = f"cd {folder}; exec {sys.executable} -m dask", user_env(cluster)
    scheduler = "scheduler --port 8786 --no-dashboard --preload gswarm_tui.runs.dask_marks"
    worker = "worker tcp://gpu01:8786 --nthreads 1 --no-dashboard --no-nanny"
    with ExitStack() as stack:
        for name, words in (("gpu01", scheduler), ("gpu01", worker), ("gpu02", worker)):
            # With a terminal, the command ends with its ssh.
            ssh = subprocess.Popen(
                ["ssh", "-tt", name, f"{dask} {words}"], env=env, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(ssh.wait)
            stack.callback(ssh.terminate)
        sums = [sys.executable, SUM, "--scheduler=tcp://gpu01:8786", "--workers=2", "--close", *SIZE]
        record = ["gswarm-tui", "record", "--nodes=gpu01,gpu02", "--db=run.duckdb", "--", *sums]
        done = subprocess.run(
            record, check=False, env=env, cwd=folder, capture_output=True, text=True, timeout=90
        )
    assert done.returncode == 0, done.stderr
    assert THREADS.findall(done.stdout) == ["2"]
    [(tasks,)] = ask(folder / "run.duckdb", MARKS)
    assert tasks > 36
