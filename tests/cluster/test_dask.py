"""Dask across the nodes, started by Slurm and by SSH, recorded and compared."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from gswarm_tui.runs.dask_work import _hosts
from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import remove_what_is_left
from tests.cluster.person import ask, closed_properly, user_env
from tests.cluster.running import wait_until
from tests.cluster.test_trial import allocated, ended, start_trial
from tests.integration.test_compare import frames
from tests.unit.store_recording import INFO, T0, record

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


def start_dask(cluster: Cluster, stack: ExitStack, *words: str) -> None:
    """Start a scheduler on gpu01 and workers by SSH as a person does; they end with their ssh."""
    env = user_env(cluster)
    worker = "worker tcp://gpu01:8786 --nthreads 1 --no-dashboard --no-nanny"
    scheduler = " ".join(("scheduler --port 8786 --no-dashboard", *words))
    for name, command in (("gpu01", scheduler), ("gpu01", worker), ("gpu02", worker), ("gpu02", worker)):
        ssh = subprocess.Popen(
            ["ssh", "-tt", name, f"exec {sys.executable} -m dask {command}"],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        stack.callback(ssh.wait)
        stack.callback(ssh.terminate)
    with Client("tcp://gpu01:8786", timeout=60, set_as_default=False) as client:
        client.wait_for_workers(3, timeout=60)


def test_workers_started_by_ssh_sum_and_are_recorded(cluster: Cluster, folder: Path) -> None:
    sums = [sys.executable, SUM, "--scheduler=tcp://gpu01:8786", "--workers=3", "--close", *SIZE]
    record = ["gswarm-tui", "record", "--nodes=gpu01,gpu02", "--db=run.duckdb", "--", *sums]
    with ExitStack() as stack:
        start_dask(cluster, stack, "--preload gswarm_tui.runs.dask_marks")
        done = subprocess.run(
            record, check=False, env=user_env(cluster), cwd=folder, capture_output=True, text=True, timeout=90
        )
    assert done.returncode == 0, done.stderr
    assert THREADS.findall(done.stdout) == ["3"]
    [(tasks,)] = ask(folder / "run.duckdb", MARKS)
    assert tasks > 36


def make_runs(folder: Path, count: int) -> None:
    """Make recordings of a run, of which each is a little longer than the one before."""
    (folder / "runs").mkdir()
    for number in range(count):
        seconds, info = 20 + number, replace(INFO, uid=f"{number:032x}")
        record(folder / "runs" / f"{number:02}.duckdb", frames(2, seconds), info, ended_at=T0 + seconds)


def compared(cluster: Cluster, folder: Path, *words: str) -> tuple[list[dict[str, str]], str]:
    """Return the rows of a comparison, and what it printed on standard error."""
    done = subprocess.run(
        ["gswarm-tui", "compare", *words, "--format=csv"],
        check=False, env=user_env(cluster), cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(done.stdout.splitlines())), done.stderr


def stop_worker(cluster: Cluster) -> tuple[str, int]:
    """Stop a worker on gpu02, not the one that looks for files; return its address and process."""
    with Client("tcp://gpu01:8786", timeout=60, set_as_default=False) as client:
        found = client.run(lambda: (os.uname().nodename, os.getpid())).items()
        looking = _hosts(client).values()
        address, pid = next((at, pid) for at, (name, pid) in found if name == "gpu02" and at not in looking)
    cluster["gpu02"].run(["kill", "-STOP", str(pid)])
    return address, pid


def kill_with_work(cluster: Cluster, address: str, pid: int) -> None:
    """Kill a stopped worker as soon as it has files to read."""

    def has_work(dask_scheduler: Any) -> bool:
        return bool(dask_scheduler.workers[address].processing)

    with Client("tcp://gpu01:8786", timeout=60, set_as_default=False) as client:
        wait_until(lambda: client.run_on_scheduler(has_work), "work for the stopped worker")
        cluster["gpu02"].run(["kill", "-KILL", str(pid)])


def figures(row: dict[str, str]) -> dict[str, str]:
    """Return a row of a comparison without where it is from and what it is compared with."""
    others = ("run", "file", "speed_up", "efficiency", "energy_ratio")
    return {name: value for name, value in row.items() if name not in others}


def test_lost_worker_costs_time_only_and_files_of_one_node_are_read_there(
    cluster: Cluster, folder: Path
) -> None:
    make_runs(folder, 10)
    expected, _ = compared(cluster, folder, "runs/*.duckdb")
    cluster["gpu02"].run(["cp", str(folder / "runs" / "09.duckdb"), "/tmp/only-there.duckdb"])
    words = ("--dask=tcp://gpu01:8786", "runs/*.duckdb", "/tmp/only-there.duckdb", "lost.duckdb")
    with ExitStack() as stack:
        start_dask(cluster, stack)
        stopped = stop_worker(cluster)
        killed = stack.enter_context(ThreadPoolExecutor(1)).submit(kill_with_work, cluster, *stopped)
        found, said = compared(cluster, folder, *words)
        killed.result()
    assert f"skipped: there is no file {folder}/lost.duckdb" in said
    *shared, there = sorted(found, key=lambda row: row["file"] == "/tmp/only-there.duckdb")
    assert [figures(row) for row in shared] == [figures(row) for row in expected]
    assert figures(there) == figures(expected[-1])


def test_job_that_slurm_refuses_is_one_sentence(cluster: Cluster, folder: Path) -> None:
    done = subprocess.run(
        ["gswarm-tui", "runs", "--dask=slurm"],  # 4 GB are more than a node has
        check=False, env=user_env(cluster), cwd=folder, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert done.returncode == 2
    # Before it, Dask may warn that the machine has no way to the internet.
    last = done.stderr.splitlines()[-1]
    assert "gswarm-tui: Dask can't start workers as Slurm jobs" in last
    assert "Requested node configuration is not available" in last
    assert "Traceback" not in done.stderr


def test_slurm_starts_workers_that_list_runs_as_one_machine_does(cluster: Cluster, folder: Path) -> None:
    make_runs(folder, 6)
    config = 'jobs = 2\njob_directives_skip = ["--mem"]\nscheduler_options = {interface = "bridge"}\n'
    (folder / "config.toml").write_text(f"[dask]\n{config}")
    env = user_env(cluster) | {"GSWARM_TUI_CONFIG": str(folder / "config.toml")}
    answers = []
    for words in ([], ["--dask=slurm"]):
        done = subprocess.run(
            ["gswarm-tui", "runs", "runs", "--json", *words],
            check=False, env=env, cwd=folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert len(answers[0]) == 6
    assert answers[0] == answers[1]
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "runs"]
    assert not cluster.run("squeue --noheader").stdout
