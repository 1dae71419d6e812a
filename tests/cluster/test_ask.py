"""The job answers which rank is behind: real ranks below ``srun``, asked by a recorder's agents."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.person import user_env
from tests.cluster.running import tail, wait_until
from tests.cluster.standin import GpuProcess, Scenario
from tests.jobs import lock_step

NODES = "gpu01", "gpu02"
EACH = 3
"""Ranks of each node."""
STUCK = 4
MOVED = "all ranks moved in the last second"
DECIDE = {
    "ras": {},
    "flight_recorder": {"ras": "equal"},
    "stacks": {"ras": "closes", "recorder": "hostile"},
}
"""Steps, and how the job answers where each is the first that can tell."""
HOSTILE = {
    "huge": "more than 8 MiB",
    "escapes": "NCCL considers",
    "silent": "doesn't answer within 2 s",
    "half": "damaged",
}
"""Reports of NCCL RAS that nobody should trust, and a part of the sentence that each ends in."""


class Job:
    """A job in lock-step that is being recorded."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder, self.db, self.log = folder, folder / "run.duckdb", folder / "record.log"
        self.env = user_env(cluster)
        lock_step.install(folder)
        self.set()

    def set(self, *stuck: int, ras: str = "counts", recorder: str = "on") -> None:
        """Let these ranks be stuck, and the job answer in these ways."""
        new = self.folder / "state.new"
        new.write_text(json.dumps({"stuck": stuck, "ras": ras, "recorder": recorder}))
        new.rename(self.folder / "state.json")

    def steps(self) -> list[int]:
        """Return the steps of each rank that runs."""
        return [int(path.read_text()) for path in sorted(self.folder.glob("steps-?"))]

    def wait_stuck(self, rank: int) -> None:
        """Wait until all other ranks wait for this one."""

        def ahead() -> bool:
            steps = self.steps()
            return all(count == steps[rank] + 1 for at, count in enumerate(steps) if at != rank)

        wait_until(ahead, f"the wait for rank {rank}", self.log)

    def json(self, *words: str) -> Any:
        """Run a command on the recording; return the JSON that it prints."""
        words = ("gswarm-tui", *words, "--json", f"--db={self.db}")
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout, done.stderr + tail(self.log)
        return json.loads(done.stdout)


@contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Job]:
    """Record a job of Slurm's with a rank on each of a few GPUs."""
    nodes = f"-N{len(NODES)} -w {','.join(NODES)} --ntasks-per-node={EACH} --gres=gpu:8"
    number = cluster.run(f"salloc {nodes} --no-shell").stderr.split()[-1]
    job = Job(cluster, folder)
    rank = [sys.executable, lock_step.__file__, str(folder)]
    words = ["gswarm-tui", "record", f"--job={number}", f"--db={job.db}"]
    words += ["--", "srun", f"--jobid={number}", f"--ntasks={EACH * len(NODES)}", *rank]
    with job.log.open("w") as log:
        popen = subprocess.Popen(words, env=job.env, cwd=folder, stdout=log, stderr=log)
    try:
        wait_until(lambda: len(job.steps()) == EACH * len(NODES), "the start of all ranks", job.log)
        places = [json.loads(path.read_text()) for path in folder.glob("place-?")]
        for node in NODES:
            scenario = Scenario.of(node, 8)
            for place in places:
                if place["node"] == node:
                    scenario.gpus[place["nvml_dev"]].processes = [GpuProcess(place["pid"], 60_000)]
            scenario.write(cluster[node].scenario)
        query = "SELECT count(DISTINCT gpu_id) AS n FROM process_samples"
        wait_until(
            lambda: job.json("sql", query) == [{"n": len(places)}],
            "the processes on GPUs",
            job.log,
        )
        yield job
    finally:
        cluster.run(["scancel", number])
        popen.wait(60)
        for node in NODES:
            Scenario.of(node, 8).write(cluster[node].scenario)


def test_the_job_names_the_rank_that_is_behind(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.home / tmp_path.name
    folder.mkdir()
    with running(cluster, folder) as job:
        answer = job.json("who")
        assert (answer["decided_by"], answer["behind"]) == ("ras", []), answer
        assert MOVED in answer["sentence"]

        job.set(STUCK)
        job.wait_stuck(STUCK)
        culprit = (STUCK, "gpu02", STUCK - EACH)
        for decides, wanted in DECIDE.items():
            job.set(STUCK, **wanted)
            answer = job.json("who")
            behind = [(one["rank"], one["node"], one["gpu"]) for one in answer["behind"]]
            assert (answer["decided_by"], behind) == (decides, [culprit]), answer
        assert "load_batch" in answer["sentence"], answer
        query = "SELECT rank, node, gpu_index FROM findings WHERE kind = 'rank_behind'"
        wait_until(lambda: len(job.json("sql", query)) == len(DECIDE), "the findings in the recording")
        assert [(*one.values(),) for one in job.json("sql", query)] == [culprit] * len(DECIDE)
        found = job.json("diagnose")["findings"]
        assert [one["rank"] for one in found if one["kind"] == "rank_behind"] == [STUCK] * len(DECIDE)

        for ras, reason in HOSTILE.items():
            job.set(STUCK, ras=ras)
            sentence = job.json("who", "--step", "ras")["sentence"]
            assert reason in sentence, sentence
            assert sentence.isprintable(), sentence
        job.set(STUCK, recorder="hostile")
        sentence = job.json("who", "--step", "flight_recorder")["sentence"]
        assert "no rank has a record" in sentence, sentence
        steps = job.steps()
        job.set()
        wait_until(lambda: min(job.steps()) > max(steps), "the job to go on", job.log)
