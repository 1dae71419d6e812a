"""Marks set by a job on its nodes and by a user at the login node are recorded once each."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.person import allocated, ask, leave, start, user_env

CACHED = "PYTHONPATH=$(ls -td ~/.cache/gswarm-tui/agent-*/ | head -n 1) python3 -m gswarm_agent mark bare"
"""The documented command for a node without gswarm-tui."""


def test_marks_of_a_job_are_recorded(cluster: Cluster, tmp_path: Path) -> None:
    db = tmp_path / "run.duckdb"
    path = user_env(cluster)["PATH"]
    with allocated(cluster, "-N2 -w gpu01,gpu03 --gres=gpu:8") as terminal:
        start(terminal, f"--nodes $(scontrol show hostnames) --interval 0.5 --db {db}")
        job = re.search(r"job (\d+)", terminal.wait_for("nodes 2/2"))
        assert job is not None
        step = f"srun --overlap --jobid {job[1]} -N1"
        times = [time.time()]
        for command in (
            f"PATH={path} {step} -w gpu01 gswarm-tui mark 'epoch 1' --value loss=0.1 --value phase='warm up'",
            f"{step} -w gpu03 sh -c '{CACHED}'",
            f"PATH={path} gswarm-tui mark here",
        ):
            assert cluster.run(command).stdout == "marked in 1 recording\n"
            times.append(time.time())
        terminal.press("e")
        terminal.wait_for("epoch 1")
        terminal.press("q")  # back to the fleet
        status, said = leave(terminal)
        assert status == 0, said
    marks = ask(db, "SELECT epoch(ts), node, mark, CAST(values AS VARCHAR) FROM marks ORDER BY ts")
    assert [row[1:] for row in marks] == [
        ("gpu01", "epoch 1", '{"loss": 0.1, "phase": "warm up", "rank": 0}'),
        ("gpu03", "bare", '{"rank": 0}'),
        (None, "here", "{}"),
    ]
    for (ts, *_), before, after in zip(marks, times[:-1], times[1:], strict=True):
        assert before - 0.05 < ts < after + 0.05
