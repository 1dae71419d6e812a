"""``gswarm-tui trial`` with real Slurm: runs under srun, failures, kills, limits, denied allocations."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import MARK, nothing_is_left, remove_what_is_left
from tests.cluster.person import ask, closed_properly, user_env
from tests.cluster.running import wait_until

NODES = ("gpu01", "gpu02")
# Fails on two nodes with two GPUs each, hangs on one, and writes down what it got.
COMMAND = """\
echo "$(hostname): $SLURM_NNODES nodes, GPUs $CUDA_VISIBLE_DEVICES" >>got
echo "rate: $SLURM_NNODES.5 samples/s"
case $SLURM_NNODES-$CUDA_VISIBLE_DEVICES in
2-0,1) echo "no memory for 4 GPUs" >&2; exit 3 ;;
1-0,1) trap "" TERM; sleep 600 ;;
esac
"""
UNTIL_GO = "echo $SLURM_NNODES >>started; [ -e go ] || { touch waits; exec sleep 600; }"
RUNS = """
SELECT nodes, gpus_per_node, warm_up, status, throughput, exit_status, reason, session_id IS NOT NULL
FROM trial_runs ORDER BY warm_up, nodes, gpus_per_node
"""


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    yield made
    remove_what_is_left(cluster)
    shutil.rmtree(made)


@contextmanager
def allocated(cluster: Cluster, size: str = f"-N2 -w {','.join(NODES)}") -> Iterator[str]:
    """Allocate nodes, by default two, with two GPUs each; yield the job's ID."""
    said = cluster.run(f"salloc {size} --gres=gpu:2 --no-shell").stderr
    job = said.rpartition(" ")[2].strip()
    try:
        yield job
    finally:
        cluster.run(["scancel", job])


def start_trial(cluster: Cluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the command at the login node, in a process group of its own."""
    return subprocess.Popen(
        ["gswarm-tui", "trial", *words],
        env=user_env(cluster) | {MARK: str(cluster.root)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(popen: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end; return the exit status, standard output and standard error."""
    out, said = popen.communicate(timeout=90)
    return popen.returncode, out, said


def test_placements_run_under_srun_and_failures_are_kept(cluster: Cluster, folder: Path) -> None:
    with allocated(cluster) as job:
        status, out, said = ended(
            start_trial(
                cluster, folder, f"--job={job}", "--gpus-per-node=1,2", "--repeat=1", "--ntasks-per-node=1",
                "--timeout=4", "--throughput=rate: ([0-9.]+)", "--db=run.duckdb", "--json",
                "--", "bash", "-c", COMMAND,
            )
        )  # fmt: skip
    assert status == 1, said
    assert ask(folder / "run.duckdb", RUNS) == [
        (1, 1, False, "ok", 1.5, 0, "", True),
        (1, 2, False, "timeout", 1.5, None, "it was ended by --timeout after 4 s", True),
        (2, 1, False, "ok", 2.5, 0, "", True),
        (2, 2, False, "failed", 2.5, 3, "exit status 3: no memory for 4 GPUs", True),
        (1, 1, True, "ok", 1.5, 0, "", True),
    ]
    assert sorted((folder / "got").read_text().splitlines()) == [
        "gpu01: 1 nodes, GPUs 0",
        "gpu01: 1 nodes, GPUs 0",
        "gpu01: 1 nodes, GPUs 0,1",
        "gpu01: 2 nodes, GPUs 0",
        "gpu01: 2 nodes, GPUs 0,1",
        "gpu02: 2 nodes, GPUs 0",
        "gpu02: 2 nodes, GPUs 0,1",
    ]
    speed_ups = [each["speed_up"] for each in json.loads(out)["placements"]]
    assert speed_ups == [1, None, pytest.approx(2.5 / 1.5), None]
    (log,) = (folder / "run-trial").glob("*-2x2-1.log")
    assert "no memory for 4 GPUs\n" in log.read_text()
    closed_properly(folder / "run.duckdb")
    nothing_is_left(cluster)


def test_killed_or_stopped_trial_ends_its_step(cluster: Cluster, folder: Path) -> None:
    with allocated(cluster) as job:
        words = [f"--job={job}", "--node-counts=1", "--repeat=1", "--ntasks-per-node=1"]
        for name in ("killed", "stopped", "interrupted"):
            popen = start_trial(cluster, folder, *words, f"--db={name}.duckdb", "--", "bash", "-c", UNTIL_GO)
            wait_until((folder / "waits").exists, "the start of a run that waits")
            if name == "killed":
                os.killpg(popen.pid, signal.SIGKILL)
                assert ended(popen)[0] == -signal.SIGKILL
            else:
                if name == "interrupted":
                    popen.send_signal(signal.SIGINT)
                else:
                    stop = ["gswarm-tui", "recording", "stop"]
                    subprocess.run(stop, env=user_env(cluster), check=True, capture_output=True)
                status, _, said = ended(popen)
                assert status == {"interrupted": 130, "stopped": 3}[name], said
                assert "the trial was interrupted, and its step has ended." in said
            steps = ["squeue", "--steps", "--noheader", "--format=%j"]
            wait_until(lambda: "gswarm-trial" not in cluster.run(steps).stdout, "the end of the step")  # noqa: B023
            (folder / "waits").unlink()
    assert ask(folder / "stopped.duckdb", "SELECT name FROM sessions") == [("trial-warm-up",)]
    closed_properly(folder / "stopped.duckdb")
    nothing_is_left(cluster)


def test_steps_with_too_few_cpus_fail_with_slurm_s_reason(cluster: Cluster, folder: Path) -> None:
    words = ["--node-counts=1", "--gpus-per-node=2", "--repeat=1", "--db=run.duckdb", "--", "true"]
    with allocated(cluster, "-N1 --cpus-per-task=1") as job:
        status, _, said = ended(start_trial(cluster, folder, f"--job={job}", *words))
    assert status == 1, said
    why = "%More processors requested than permitted%"
    runs = f"SELECT status FROM trial_runs WHERE reason LIKE '{why}'"
    assert ask(folder / "run.duckdb", runs) == [("failed",)] * 2
    closed_properly(folder / "run.duckdb")
    nothing_is_left(cluster)


def test_trial_whose_job_loses_its_node_ends_and_keeps_the_run(cluster: Cluster, folder: Path) -> None:
    words = ["--node-counts=1", "--gpus-per-node=1", "--repeat=1", "--db=run.duckdb"]
    state = ["scontrol", "update", "nodename=gpu02"]
    with allocated(cluster, "-N1 -w gpu02") as job:
        popen = start_trial(cluster, folder, f"--job={job}", *words, "--", "bash", "-c", UNTIL_GO)
        wait_until((folder / "waits").exists, "the start of the warm-up run")
        cluster.run([*state, "state=down", "reason=test"])
        status, _, said = ended(popen)
    cluster.run([*state, "state=resume"], check=False)  # its slurmd may have been quicker
    assert status == 3, said
    # srun prints "Node failure on gpu02" or "STEP … CANCELLED … DUE TO NODE FAILURE": what it learns first.
    runs = "SELECT warm_up, status, contains(lower(reason), 'node failure') FROM trial_runs"
    assert ask(folder / "run.duckdb", runs) == [(True, "failed", True)]
    nothing_is_left(cluster)
