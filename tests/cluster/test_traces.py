"""Traces of a job's ranks on several nodes come home to the recorder and into its recording."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.person import allocated, ask, start, user_env

REPOSITORY = Path(__file__).parents[2]


def test_ranks_on_two_nodes_are_traced_at_one_time(cluster: Cluster, tmp_path: Path) -> None:
    folder = cluster.home / tmp_path.name
    folder.mkdir()
    db, script = folder / "run.duckdb", folder / "rank.sh"
    path = user_env(cluster)["PATH"]
    # PyTorch takes longer to start than an agent; Kineto looks for the folder only once.
    wait = 'until [ -d "$KINETO_IPC_SOCKET_DIR" ]; do sleep 0.1; done'
    script.write_text(
        f"{wait}; cd {REPOSITORY}; RANK=$SLURM_PROCID exec {sys.executable} -m tests.kineto_standin\n"
    )
    with allocated(cluster, "-N2 -w gpu01,gpu02 --gres=gpu:8") as terminal:
        start(terminal, f"record --db {db} -- srun -l --quit-on-interrupt -N2 -n2 bash {script}")
        terminal.wait_for("2 nodes send data")
        terminal.wait_for("1: ready")
        done = cluster.run(f"env PATH={path} gswarm-tui trace --db {db} --duration 0.2 --json")
        result = json.loads(done.stdout)
        terminal.press("C-c")
        terminal.wait_for("status ")
    traced = [(one["rank"], one["node"], one["state"], one["imported"]) for one in result["ranks"]]
    assert traced == [(0, "gpu01", "done", True), (1, "gpu02", "done", True)]
    assert ask(db, "SELECT DISTINCT last_rank FROM trace_waits") == [(1,)]
    assert ask(db, "SELECT node, rank FROM profiles ORDER BY rank") == [("gpu01", 0), ("gpu02", 1)]
