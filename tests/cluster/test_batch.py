"""``gswarm-tui record`` in batch scripts: a multi-node step, the time limit, and a requeued job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import all_ended, ask
from tests.cluster.running import wait_until

GSWARM = f"{sys.executable} -m gswarm_tui"


class BatchJob:
    """A submitted script; ``log`` is its output so far."""

    def __init__(self, cluster: Cluster, folder: Path, options: Sequence[str], lines: Sequence[str]) -> None:
        self._cluster = cluster
        self._output = folder / "job.out"
        script = folder / "job.sh"
        script.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        words = [
            "sbatch",
            "--parsable",
            f"--output={self._output}",
            "--open-mode=append",
            f"--chdir={folder}",
        ]
        self.id = cluster.run([*words, *options, str(script)]).stdout.strip()

    @property
    def log(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def wait_for(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(words) >= times, f"{words!r} in the job's output", self._output)

    def state(self) -> str:
        answer = self._cluster.run(["scontrol", "show", "job", self.id, "--oneliner"]).stdout
        return next(word for word in answer.split() if word.startswith("JobState=")).partition("=")[2]

    def wait_ended(self) -> str:
        wait_until(
            lambda: self.state() not in ("RUNNING", "COMPLETING", "PENDING"), "the job's end", self._output
        )
        return self.state()


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Path:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    return made


def test_multi_node_step_is_recorded_with_its_exit_status(cluster: Cluster, folder: Path) -> None:
    step = "srun --overlap bash -c 'echo rank $SLURM_PROCID; sleep 3; exit 5'"
    job = BatchJob(
        cluster,
        folder,
        ["-N2", "-w", "gpu01,gpu02", "--gres=gpu:8", "--job-name=bert"],
        [f"{GSWARM} record --interval 0.5 --report bert.html -- {step}", "echo status $?"],
    )
    job.wait_for("status ")
    assert "status 5" in job.log, job.log
    assert job.wait_ended() == "COMPLETED"
    assert "rank 0" in job.log
    assert "rank 1" in job.log
    assert "2 nodes send data, 16 GPUs" in job.log
    db = folder / f"gswarm-job{job.id}.duckdb"
    assert ask(db, "SELECT session, gpus FROM session_summary WHERE scope = 'all'") == [("srun", 16)]
    assert ask(db, "SELECT ended_at IS NOT NULL FROM recordings") == [(True,)]
    assert (folder / "bert.html").stat().st_size > 10_000
    all_ended(cluster, ["gpu01", "gpu02"])


def test_time_limit_leaves_a_complete_recording(cluster: Cluster, folder: Path) -> None:
    job = BatchJob(
        cluster,
        folder,
        ["-N1", "-w", "gpu01", "--gres=gpu:8"],
        [f"{GSWARM} record --launcher srun --interval 0.5 --name train -- sleep 600"],
    )
    job.wait_for("1 node sends data")
    cluster.run(f"scontrol update JobId={job.id} EndTime=now+2")
    assert job.wait_ended() == "TIMEOUT"
    assert "received SIGTERM: the job reached its time limit" in job.log, job.log
    db = folder / f"gswarm-job{job.id}.duckdb"
    assert ask(db, "SELECT ended_at IS NOT NULL FROM recordings") == [(True,)]
    assert ask(db, "SELECT name FROM sessions WHERE ended_at IS NOT NULL") == [("train",)]
    all_ended(cluster, ["gpu01"])


def test_requeued_job_adds_a_recording_to_its_file(cluster: Cluster, folder: Path) -> None:
    job = BatchJob(
        cluster,
        folder,
        ["-N1", "-w", "gpu01", "--gres=gpu:8", "--requeue"],
        [
            'command="sleep 600"',
            '[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || command="sleep 2"',
            f"{GSWARM} record --launcher srun --interval 0.5 --name train -- $command",
        ],
    )
    job.wait_for("1 node sends data")
    cluster.run(["scontrol", "requeue", job.id])
    job.wait_for("received SIGTERM")
    wait_until(lambda: job.state() == "PENDING", "the job's return to the queue")
    cluster.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now"])
    assert job.wait_ended() == "COMPLETED"
    db = folder / f"gswarm-job{job.id}.duckdb"
    assert ask(db, "SELECT count(*), count(ended_at) FROM recordings") == [(2, 2)]
    assert ask(db, "SELECT name, ended_at IS NOT NULL FROM sessions") == [("train", True)] * 2
    all_ended(cluster, ["gpu01"])
