"""Stacks of real Python processes by the real py-spy, lent as to a node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_agent.asking import stacks as agent
from gswarm_agent.asking import tool
from gswarm_agent.wire import MAX_MESSAGE
from gswarm_tui.asking import py_spy, stacks
from gswarm_tui.asking.verdict import RankProcess
from tests.integration.heads import nothing_left
from tests.integration.test_record import record, run_beside
from tests.jobs import worker_server
from tests.unit.store_recording import query

TRACEBACK = """Current thread 0x00007fa68effd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fa758a48b80 (most recent call first):
  File "/e/distributed_c10d.py", line 6371 in barrier
"""
RANK = """
import sys
def all_reduce():
    print("ready", flush=True) or sys.stdin.readline()
def load():
    print("ready", flush=True) or sys.stdin.readline()
def train(rank):
    load() if rank == 1 else all_reduce()
train(int(sys.argv[1]))
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[RankProcess]]:
    """Return three ranks, of which rank 1 loads data while the others wait for it."""
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    started = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield [RankProcess("gpu01", process.pid, rank) for rank, process in enumerate(started)]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_py_spy_is_lent_once_and_the_loading_rank_is_named(
    ranks: list[RankProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "folder", lambda: str(tmp_path / "cache"))
    request = {"pids": [one.pid for one in ranks], "seconds": 30, "again_s": 0.3, **py_spy.request("")}
    assert agent.ask(request) == {"need": request["digest"]}
    assert tool.ask(py_spy.loan()) == {}
    answer = agent.ask(request)
    verdict = stacks.judge({"gpu01": answer}, ranks)
    assert [one.rank for one in verdict.behind] == [1]
    assert verdict.sentence == ("it is in load (rank.py:6), the other 2 in all_reduce (rank.py:4)"), answer


def test_the_loan_fits_into_one_message() -> None:
    assert len(json.dumps(py_spy.loan())) < MAX_MESSAGE - 1024


def test_processes_without_python_or_gone_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "folder", lambda: str(tmp_path / "cache"))
    assert tool.ask(py_spy.loan()) == {}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        answer = agent.ask({"pids": [other.pid, 2**22 + 1], "seconds": 30, **py_spy.request("")})
        assert list(answer["stacks"].values()) == [
            {"why": "it isn't a Python process"},
            {"why": "it has ended"},
        ]


@pytest.mark.parametrize(
    ("answer", "by", "place"),
    [
        (TRACEBACK, "worker server", "barrier (/e/distributed_c10d.py:6371)"),
        ("HANG", "py-spy", "select (/"),
        ("HUGE", "py-spy", "select (/"),
        ("nonsense", "py-spy", "select (/"),
    ],
)
def test_a_worker_server_is_preferred_to_py_spy_while_it_answers(
    answer: str, by: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "folder", lambda: str(tmp_path / "cache"))
    tool.ask(py_spy.loan())
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"dump_traceback": answer}))
    command = [sys.executable, worker_server.__file__, "--state", str(state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            asked = agent.ask({"pids": [process.pid], "seconds": 30, **py_spy.request("")})
        finally:
            process.kill()
    found = asked["stacks"][str(process.pid)]
    assert found["by"] == by
    assert found["looks"][0][0].startswith(place)


JOB = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, sys.argv[1], str(rank)],
        env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    for rank in range(3)
]
for rank in ranks:
    rank.stdout.readline()
print("ranks started", file=sys.stderr, flush=True)
sys.stdin.readline()
for rank in ranks:
    rank.communicate()
"""


def test_the_command_prints_the_odd_rank_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, db = tmp_path / "rank.py", tmp_path / "run.duckdb"
    program.write_text(RANK)
    job = sys.executable, "-c", JOB, str(program)
    with nothing_left(db), record(tmp_path, "--launcher", "local", "--", *job) as running:
        running.wait_for("ranks started")
        status = run_beside(tmp_path, "stacks")
        printed = capsys.readouterr()
        some = run_beside(tmp_path, "stacks", "--ranks", "0,7", "--json")
        chosen = capsys.readouterr()
        running.end("\n")
    assert (status, some) == (0, 1), printed.err
    assert [line for line in printed.out.splitlines() if not line.startswith("    <module>")] == [
        *(f"rank 1 ({node_of(db)})", "    load (rank.py:6)", "    train (rank.py:8)"),
        *("ranks 0,2", "    all_reduce (rank.py:4)", "    train (rank.py:8)"),
    ]
    assert "no stack of rank 7: no process of yours has that rank" in chosen.err
    (group,) = json.loads(chosen.out)["groups"]
    assert [one["rank"] for one in group["ranks"]] == [0, 2]


def node_of(db: Path) -> str:
    ((node,),) = query(db, "SELECT node FROM nodes")
    return str(node)
