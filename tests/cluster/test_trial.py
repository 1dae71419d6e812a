"""``gswarm-tui trial`` with real Slurm: runs under srun, failures, kills, denied allocations, Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.killed_profiles import MARK, nothing_is_left
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


def test_trial_is_resumed_after_a_killed_head_and_ends_with_its_recording(
    cluster: Cluster, folder: Path
) -> None:
    with allocated(cluster) as job:
        words = [f"--job={job}", "--node-counts=1", "--repeat=1", "--ntasks-per-node=1"]
        popen = start_trial(cluster, folder, *words, "--db=run.duckdb", "--", "bash", "-c", UNTIL_GO)
        wait_until((folder / "waits").exists, "the start of a run that waits")
        os.killpg(popen.pid, signal.SIGKILL)
        assert ended(popen)[0] == -signal.SIGKILL
        steps = ["squeue", "--steps", "--noheader", "--format=%j"]
        wait_until(lambda: "gswarm-trial" not in cluster.run(steps).stdout, "the end of the killed step")
        (folder / "waits").unlink()
        popen = start_trial(cluster, folder, "--resume", f"--job={job}")
        wait_until((folder / "waits").exists, "the start of a run that waits")
        stop = ["gswarm-tui", "recording", "stop"]
        subprocess.run(stop, env=user_env(cluster), check=True, capture_output=True)
        status, _, said = ended(popen)
        assert status == 3, said
        assert "the trial was interrupted, and its step has ended." in said
        (folder / "go").touch()
        status, _, said = ended(start_trial(cluster, folder, "--resume", f"--job={job}"))
        assert status == 0, said
        assert "resuming the trial of bash -c " in said
        status, _, said = ended(start_trial(cluster, folder, "--resume", f"--job={job}"))
        assert (status, said) == (
            2, "gswarm-tui: nothing to resume: all 2 runs of the newest trial in run.duckdb ended.\n",
        )  # fmt: skip
    assert (folder / "started").read_text() == "1\n" * 4, (
        "the killed run, the stopped one, and both of the resumed trial"
    )
    runs = "SELECT run, status FROM trial_runs ORDER BY run, ts"
    assert ask(folder / "run.duckdb", runs) == [
        (1, "interrupted"), (1, "interrupted"), (1, "ok"), (2, "ok")
    ]  # fmt: skip
    nothing_is_left(cluster)


def test_submitted_trial_reaches_its_limit_is_interrupted_resumed_and_denied_an_allocation(
    cluster: Cluster, folder: Path
) -> None:
    words = ["--submit", "--node-counts=1", "--gpus-per-node=1,32", "--repeat=1", "--salloc=-w gpu01"]
    words += ["--max-gpu-hours=0.0006", "--db=run.duckdb", "--seed=1"]
    status, _, said = ended(start_trial(cluster, folder, *words, "--", "bash", "-c", UNTIL_GO))
    assert status == 3, said
    assert said.count("--max-gpu-hours is 0.0006. Raise it to resume.") == 1
    (folder / "waits").unlink()
    popen = start_trial(cluster, folder, "--resume", "--max-gpu-hours=1")
    wait_until((folder / "waits").exists, "the start of a run that waits")
    popen.send_signal(signal.SIGINT)
    status, _, said = ended(popen)
    assert status == 130, said
    assert "the trial was interrupted" in said
    assert "to do the runs that are left: gswarm-tui trial --resume --db " in said
    nothing_is_left(cluster)
    (folder / "go").touch()
    status, _, said = ended(start_trial(cluster, folder, "--resume"))
    assert status == 1, said
    runs = (
        "SELECT gpus_per_node, status, starts_with(reason, 'Slurm denied the allocation: ') FROM trial_runs"
    )
    assert sorted(ask(folder / "run.duckdb", runs)) == [
        (1, "interrupted", False), (1, "ok", False), (1, "ok", False), (1, "over_limit", False),
        (32, "refused", True),
    ]  # fmt: skip
    closed_properly(folder / "run.duckdb")
    nothing_is_left(cluster)


def test_run_of_a_requeued_job_is_kept_with_that_reason(cluster: Cluster, folder: Path) -> None:
    words = ["gswarm-tui", "trial", "--node-counts=1", "--repeat=1", "--ntasks-per-node=1", "--db=run.duckdb"]
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\n{shlex.join([*words, '--', 'bash', '-c', UNTIL_GO])}\n")
    submit = ["sbatch", "--parsable", "-w", "gpu01", "--gres=gpu:1", "--requeue", f"--chdir={folder}"]
    env = user_env(cluster)
    done = subprocess.run([*submit, str(script)], env=env, capture_output=True, text=True, check=True)
    job = done.stdout.strip()
    try:
        wait_until((folder / "waits").exists, "the start of a run that waits")
        cluster.run(["scontrol", "requeue", job])
        wait_until(lambda: "to do the runs that are left" in output(folder), "the end of the trial")
    finally:
        cluster.run(["scancel", job])
    runs = "SELECT run, status, reason FROM trial_runs"
    assert ask(folder / "run.duckdb", runs) == [(1, "requeued", "the job was requeued")]
    closed_properly(folder / "run.duckdb")


def test_runs_that_slurm_refused_are_done_when_the_trial_is_resumed(cluster: Cluster, folder: Path) -> None:
    words = ["--submit", "--node-counts=1", "--gpus-per-node=1", "--repeat=1"]
    words += ["--salloc=-w gpu01 --immediate=1", "--db=run.duckdb"]
    said = cluster.run("salloc -w gpu01 --exclusive --no-shell").stderr
    job = said.rpartition(" ")[2].strip()
    try:
        status, _, said = ended(start_trial(cluster, folder, *words, "--", "true"))
    finally:
        cluster.run(["scancel", job])
    assert status == 1, said
    assert "warm-up: refused: Slurm denied the allocation: Unable to allocate resources: " in said
    assert "to do the runs that are left: gswarm-tui trial --resume --db " in said
    status, _, said = ended(start_trial(cluster, folder, "--resume"))
    assert status == 0, said
    runs = "SELECT warm_up, status FROM trial_runs ORDER BY run, ts"
    assert ask(folder / "run.duckdb", runs) == [
        (True, "refused"), (True, "ok"), (False, "refused"), (False, "ok")
    ]  # fmt: skip
    closed_properly(folder / "run.duckdb")
    nothing_is_left(cluster)


def test_steps_that_slurm_refused_are_done_in_another_job(cluster: Cluster, folder: Path) -> None:
    words = ["--node-counts=1", "--gpus-per-node=2", "--repeat=1", "--db=run.duckdb", "--", "true"]
    for cpus, expected, trial in ((1, 1, words), (2, 0, ["--resume"])):
        with allocated(cluster, f"-N1 --cpus-per-task={cpus}") as job:
            status, _, said = ended(start_trial(cluster, folder, f"--job={job}", *trial))
        assert status == expected, said
    runs = "SELECT warm_up, status, reason[:68] FROM trial_runs ORDER BY run, ts"
    refused = "Slurm refused the step: the job has fewer CPUs on a node than ranks;"
    assert ask(folder / "run.duckdb", runs) == [
        (True, "refused", refused), (True, "ok", ""), (False, "refused", refused), (False, "ok", "")
    ]  # fmt: skip
    closed_properly(folder / "run.duckdb")
    nothing_is_left(cluster)


def output(folder: Path) -> str:
    """Return what the batch job in a folder has printed."""
    return "".join(path.read_text() for path in folder.glob("slurm-*.out"))


def test_run_that_loses_its_node_is_kept_and_the_next_one_follows(cluster: Cluster, folder: Path) -> None:
    words = ["--submit", "--node-counts=1", "--gpus-per-node=1", "--repeat=1", "--salloc=-w gpu02"]
    popen = start_trial(cluster, folder, *words, "--db=run.duckdb", "--", "bash", "-c", UNTIL_GO)
    wait_until((folder / "waits").exists, "the start of the warm-up run")
    (folder / "go").touch()
    state = ["scontrol", "update", "nodename=gpu02"]
    cluster.run([*state, "state=down", "reason=test"])
    ended_runs = ["squeue", "--noheader", "--states=RUNNING", "--format=%i"]
    wait_until(lambda: not cluster.run(ended_runs).stdout, "the end of the job")
    cluster.run([*state, "state=resume"], check=False)  # its slurmd may have been quicker
    status, _, said = ended(popen)
    assert status == 1, said
    runs = "SELECT warm_up, status, reason FROM trial_runs ORDER BY run"
    assert ask(folder / "run.duckdb", runs) == [(True, "node_lost", "gpu02 failed"), (False, "ok", "")]
    nothing_is_left(cluster)
