"""The job scripts of docs/guide/batch-jobs.md, run by ``sbatch`` on smaller allocations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.person import all_ended, ask, user_env
from tests.cluster.running import wait_until
from tests.docs.generated import DOCS

SCRIPT = re.compile(r"^```bash\n(#!/bin/bash\n#SBATCH .*?)^```$", re.MULTILINE | re.DOTALL)
SINGLE, MULTI_NODE, ARRAY, REQUEUED = SCRIPT.findall((DOCS / "guide" / "batch-jobs.md").read_text())

UNTIL_TERM = """\
import signal, sys
def save(*_):
    print("saved at SIGTERM", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
while True:
    signal.pause()
"""
BRIEFLY = """\
import subprocess, sys, time
print("task", *sys.argv[1:], flush=True)
subprocess.run(["gswarm-tui", "session", "start", "warm-up", "--json"], check=True)
time.sleep(3)
"""
REQUEUES_AT_USR1 = """\
import os, pathlib, signal, subprocess, time
state = pathlib.Path("checkpoint")
def save(*_):
    state.write_text("epoch 7")
    print("saved at SIGUSR1", flush=True)
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
signal.signal(signal.SIGUSR1, save)
if not state.exists():
    while True:
        signal.pause()
print("resumed from", state.read_text(), flush=True)
time.sleep(3)
"""
TORCHRUN = """\
#!/bin/bash
echo rank $SLURM_PROCID of $SLURM_NTASKS: "${@: -1}"
sleep 3
exit 5
"""


class BatchJob:
    """A submitted script of the documentation; ``train.py`` has the text ``train``."""

    def __init__(
        self, cluster: Cluster, folder: Path, script: str, options: Sequence[str], train: str
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        (folder / "train.py").write_text(train)
        (folder / "job.sh").write_text(script)
        self._output = folder / "job.out"
        words = ["sbatch", "--parsable", f"--output={self._output}", f"--chdir={folder}", *options]
        path = f"PATH={folder}:{user_env(cluster)['PATH']}"
        self.id = cluster.run(["env", path, *words, str(folder / "job.sh")]).stdout.strip()

    @property
    def log(self) -> str:
        """The output of all tasks and runs so far."""
        return self._output.read_text() if self._output.exists() else ""

    def wait_for(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.log.count(words) >= times, f"{words!r} in the job's output", self._output)

    def show(self, field: str) -> set[str]:
        """Return the values of a field of ``scontrol show job``, one for each task."""
        answer = self._cluster.run(["scontrol", "show", "job", self.id, "--oneliner"]).stdout
        return {
            word.partition("=")[2] for word in answer.split() if word.startswith((f"{field}=", f"({field}="))
        }

    def wait_ended(self) -> set[str]:
        """Wait for the end of all tasks; return their states."""
        wait_until(
            lambda: not self.show("JobState") & {"RUNNING", "COMPLETING", "PENDING"},
            "the job's end",
            self._output,
        )
        return self.show("JobState")

    def database(self, task: str = "") -> Path:
        return self._folder / f"gswarm-job{self.id}{task}.duckdb"


@pytest.fixture(scope="module", autouse=True)
def limited_job(cluster: Cluster) -> Iterator[BatchJob]:
    """Submit a job that reaches its time limit while other tests run: Slurm checks limits every 30 s.

    At the end nothing of any test runs.
    """
    made = cluster.home / "limited"
    made.mkdir()
    job = BatchJob(cluster, made, SINGLE, ["-w", "gpu04"], UNTIL_TERM)
    job.wait_for("1 node sends data")
    cluster.run(f"scontrol update JobId={job.id} EndTime=now+2")
    yield job
    all_ended(cluster, ["gpu01", "gpu02", "gpu04"])


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path) -> Path:
    """Make a folder in the home that login node and compute nodes share."""
    made = cluster.home / tmp_path.name
    made.mkdir()
    return made


@pytest.fixture
def taken_on_gpu02(cluster: Cluster) -> Iterator[str]:
    """Give the agents' usual folder on gpu02 to another user; return its path."""
    path = "/var/tmp/gswarm-tui-0"
    cluster["gpu02"].run(f"rm -rf {path}; mkdir -m 700 {path}; chown nobody {path}")
    yield path
    cluster["gpu02"].run(f"rm -rf {path}")


def test_step_on_several_nodes_is_recorded_with_its_exit_status(
    cluster: Cluster, folder: Path, taken_on_gpu02: str
) -> None:
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    job = BatchJob(cluster, folder, MULTI_NODE, ["-N2", "-w", "gpu01,gpu02"], "")
    assert job.wait_ended() == {"FAILED"}
    assert job.show("ExitCode") == {"5:0"}
    assert "rank 0 of 2: train.py" in job.log
    assert "rank 1 of 2: train.py" in job.log
    assert "2 nodes send data, 16 GPUs" in job.log
    why = f"{taken_on_gpu02}: it belongs to nobody"
    assert f"gswarm-tui: no traces on gpu02: {why}" in job.log, job.log
    assert all(len(line) <= 76 for line in job.log.partition("train · ")[2].splitlines()[1:])
    db = job.database()
    assert ask(db, "SELECT session, gpus FROM session_summary WHERE scope = 'all'") == [("train", 16)]
    assert ask(db, "SELECT count(*), count(ended_at) FROM recordings") == [(1, 1)]
    assert ask(db, "SELECT capabilities->>'traces' FROM nodes ORDER BY node") == [(None,), (why,)]
    assert (folder / "train.html").stat().st_size > 10_000


def test_each_task_of_an_array_has_its_own_file(cluster: Cluster, folder: Path) -> None:
    job = BatchJob(cluster, folder, ARRAY, ["--array=0-1", "-w", "gpu01"], BRIEFLY)
    assert job.wait_ended() == {"COMPLETED"}, job.log
    for task in "01":
        assert f"task --lr {task}" in job.log
        db = job.database(f"_{task}")
        found = ask(db, "SELECT session, gpus FROM session_summary WHERE scope = 'all' ORDER BY session")
        assert found == [(f"lr{task}", 1), ("warm-up", 1)], job.log
        assert ask(db, "SELECT slurm_job_id FROM recordings") == [(f"{job.id}_{task}",)]


def test_job_that_requeues_itself_goes_on_in_the_same_file(cluster: Cluster, folder: Path) -> None:
    job = BatchJob(cluster, folder, REQUEUED, ["-w", "gpu01"], REQUEUES_AT_USR1)
    job.wait_for("1 node sends data")
    cluster.run(["scancel", "--batch", "--signal=USR1", job.id])
    job.wait_for("received SIGTERM: the job was requeued")
    wait_until(lambda: job.show("JobState") == {"PENDING"}, "the job's return to the queue")
    cluster.run(["scontrol", "update", f"JobId={job.id}", "StartTime=now"])
    assert job.wait_ended() == {"COMPLETED"}
    assert job.log.count("saved at SIGUSR1") == 1, job.log
    assert "resumed from epoch 7" in job.log
    db = job.database()
    assert ask(db, "SELECT count(*), count(ended_at) FROM recordings") == [(2, 2)]
    assert ask(db, "SELECT name, ended_at IS NOT NULL FROM sessions") == [("train", True)] * 2
    assert (folder / "train.html").exists()


def test_job_at_its_time_limit_saves_once_and_its_recording_is_complete(limited_job: BatchJob) -> None:
    job = limited_job
    assert job.wait_ended() == {"TIMEOUT"}
    assert "received SIGTERM: the job reached its time limit" in job.log, job.log
    assert job.log.count("saved at SIGTERM") == 1, job.log
    db = job.database()
    assert ask(db, "SELECT ended_at IS NOT NULL FROM recordings") == [(True,)]
    assert ask(db, "SELECT name FROM sessions WHERE ended_at IS NOT NULL") == [("train",)]
    [(why,)] = ask(db, "SELECT message FROM events WHERE kind = 'recording_ended'")
    assert why.startswith(
        "received SIGTERM: the job reached its time limit; python ended with status 3 after "
    )
