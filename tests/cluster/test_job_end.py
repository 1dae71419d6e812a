"""Agents started over SSH end by themselves when the job ends."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.person import (
    all_ended,
    ask,
    closed_properly,
    measuring,
    seated,
    told,
    user_env,
    wait_seconds,
)
from tests.cluster.running import wait_until
from tests.cluster.terminal import Terminal


def test_agent_of_a_killed_head_ends_with_its_job_and_keeps_its_frames(
    cluster: Cluster, tmp_path: Path
) -> None:
    db = tmp_path / "run.duckdb"
    job = cluster.run("salloc -N1 -w gpu01 --gres=gpu:2 --no-shell").stderr.split()[-1]
    try:
        cluster.run(f"scontrol update JobId={job} EndTime=now+15")
        words = ["gswarm-tui", "--job", job, "--interval", "0.5", "--db", str(db)]
        with Terminal(words, env=user_env(cluster), size=(140, 40), folder=cluster.home) as terminal:
            terminal.wait_for("nodes 1/1")
            wait_seconds(terminal, 1)
            terminal.kill(db)
        assert len(measuring(cluster["gpu01"])) == 1
        wait_until(lambda: not measuring(cluster["gpu01"]), "the agent's end")
        with seated(cluster) as terminal:
            status, said = told(terminal, f"recover 1 --finish --db {db}")
        assert status == 0, said
        all_ended(cluster, ["gpu01"])
    finally:
        cluster.run(["scancel", job])
    closed_properly(db)
    assert ask(db, "SELECT count(*) FROM links WHERE frames = last_seq AND lost_frames = 0") == [(1,)]
