"""The job is asked through a real recorder and a real agent on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.integration.heads import nothing_left
from tests.integration.test_record import record, run_beside
from tests.unit.store_recording import query

RANK = "print(flush=True); import time; time.sleep(300)"
JOB = f"""
import os, signal, subprocess, sys
count, size, stopped = map(int, sys.argv[1:])
ranks = [
    subprocess.Popen(
        [sys.executable, "-c", {RANK!r}],
        env=os.environ | {{"RANK": str(rank), "WORLD_SIZE": str(size)}},
        stdout=subprocess.PIPE,
    )
    for rank in range(count)
]
for rank in ranks:
    rank.stdout.readline()
for rank in ranks[stopped:]:
    rank.send_signal(signal.SIGSTOP)
    os.waitpid(rank.pid, os.WUNTRACED)
print("ranks started", file=sys.stderr, flush=True)
sys.stdin.readline()
for rank in ranks:
    rank.kill()
    rank.wait()
"""


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ("3 4 3", "rank 3 is behind, by the process table: the watched nodes have no process of it"),
        ("3 3 2", "rank 2 ({node}) is behind, by the process table: its process is stopped by a signal"),
    ],
)
def test_a_rank_without_a_running_process_is_named_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], numbers: str, sentence: str
) -> None:
    db, job = tmp_path / "run.duckdb", (sys.executable, "-c", JOB, *numbers.split())
    with nothing_left(db), record(tmp_path, "--launcher", "local", "--", *job) as running:
        running.wait_for("ranks started")
        status = run_beside(tmp_path, "who", "--json")
        printed = capsys.readouterr()
        running.end("\n")
    assert status == 0, printed.err
    assert "the agents read /proc, which the job doesn't notice" in printed.err
    ((node,),) = query(db, "SELECT node FROM nodes")
    assert json.loads(printed.out)["sentence"].startswith(sentence.format(node=node))
    ((text,),) = query(db, "SELECT sentence FROM findings WHERE kind = 'rank_behind'")
    assert text.startswith(sentence.format(node=node))
