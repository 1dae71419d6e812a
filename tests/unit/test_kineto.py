"""The agent's side of Kineto's protocol: who is answered, with what, and who is named as untraceable."""

from __future__ import annotations

import os
import selectors
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gswarm_agent import kineto
from gswarm_agent.asking.ranks import LocalRank, find_ranks
from gswarm_agent.kineto import TraceRun
from gswarm_agent.wire import RequestTrace, TraceReport
from tests.kineto_standin import KinetoProcess

REQUEST = RequestTrace("t1", (), 1_800_000_000_123_456_789, 500, False)


def candidate(pid: int, rank: int, *, torch: bool = True, **kineto_variables: str) -> LocalRank:
    return LocalRank(pid, rank, None, kineto_variables, torch)


@pytest.fixture
def folder() -> Iterator[str]:
    """A private folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as path:
        yield path


def answered(
    folder: str, monkeypatch: pytest.MonkeyPatch, foreign: bool = False
) -> tuple[dict[str, str], ...]:
    """Let a process ask twice; return the configurations that it got, and close the run."""
    me = candidate(os.getpid(), 3, KINETO_USE_DAEMON="1", KINETO_IPC_SOCKET_DIR=folder)
    monkeypatch.setattr(kineto, "find_ranks", lambda _job, _proc: [me])
    reports: list[TraceReport] = []
    with selectors.PollSelector() as selector:
        run = TraceRun(REQUEST, selector, reports.append, {})
        while not selector.get_map():
            run.handle_due()
        if foreign:
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        process = KinetoProcess(folder, 42)
        configs = []
        for _ in range(2):
            process.send_question()
            for key, _ in selector.select(5):
                key.data()
            configs.append(process.read_answer())
        process.close()
        monkeypatch.undo()
        run.close()
    assert [report.state for report in reports] == ([] if foreign else ["requested"])
    return tuple(configs)


def test_ranks_are_found_in_time_among_hundreds_of_loaders(folder: str, tmp_path: Path) -> None:
    anonymous = "7f0000000000-7f0000001000 rw-p 00000000 00:00 0\n"
    library = f"{anonymous[:26]}r-xp 00000000 103:02 7    /home/ada/env/lib/python3.11/site-packages/"
    mapped = (anonymous * 2 + f"{library}numpy/core.so\n") * 2_000
    files = {
        "status": f"Name:\tpython\nUid:\t{os.geteuid()}\n",
        "environ": f"RANK=3\0KINETO_IPC_SOCKET_DIR={folder}\0",
        "maps": f"{mapped}{library}torch/lib/libtorch_cpu.so\n{mapped}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for pid in range(100, 400):
        process = tmp_path / "proc" / str(pid)
        process.mkdir(parents=True)
        (process / "stat").write_text(f"{pid} (python) S 99{' 0' * 48}")
        for name in files:
            (process / name).hardlink_to(tmp_path / name)
    reports: list[TraceReport] = []
    with selectors.PollSelector() as selector:
        run = TraceRun(REQUEST, selector, reports.append, {}, str(tmp_path / "proc"))
        while not (selector.get_map() or reports):
            run.handle_due()
        run.close()
    assert reports == []


def test_a_process_gets_the_configuration_once_and_the_socket_is_removed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = answered(folder, monkeypatch)
    assert first["PROFILE_START_TIME"] == "1800000000123"
    assert first["ACTIVITIES_DURATION_MSECS"] == "500"
    assert second == {}
    assert not Path(folder, "dynolog").exists()


def test_requests_of_other_users_get_no_answer(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(folder, monkeypatch, foreign=True) == ({}, {})


def test_a_trace_is_found_reported_to_a_new_head_and_removed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "_TICK_S", 0.0)
    me = candidate(
        os.getpid(),
        3,
        KINETO_USE_DAEMON="1",
        KINETO_IPC_SOCKET_DIR=folder,
        KINETO_ONDEMAND_TRACE_DIR=folder,
    )
    monkeypatch.setattr(kineto, "find_ranks", lambda _job, _proc: [me])
    reports: list[TraceReport] = []
    with selectors.PollSelector() as selector:
        run = TraceRun(REQUEST, selector, reports.append, {})
        while not selector.get_map():
            run.handle_due()
        process = KinetoProcess(folder, 42)
        process.send_question()
        for key, _ in selector.select(5):
            key.data()
        process.close()
        written = Path(folder, "gswarm-t1_42.json")
        written.write_text('{"traceEvents": []}')
        for _ in range(2):  # seen twice with one size, it is whole
            run.handle_due()
        part = run.part(os.getpid(), 3)
        reports.clear()
        run.repeat_reports()
        run.close()
    assert part is not None
    assert part.data == b'raceEvents": []}'
    assert [(report.state, report.size) for report in reports if report.pid] == [("ready", 19)]
    assert not written.exists()


def test_torchrun_is_not_taken_for_the_rank_that_slurm_gives_it(tmp_path: Path) -> None:
    for pid, environ in ((10, "SLURM_PROCID=0"), (11, "SLURM_PROCID=0\0RANK=0"), (12, "")):
        process = tmp_path / str(pid)
        process.mkdir()
        (process / "status").write_text(f"Name:\tpython\nUid:\t{os.geteuid()}\n")
        (process / "environ").write_text(environ)
        (process / "stat").write_text(f"{pid} (python) S 1{' 0' * 48}")
        (process / "maps").write_text("7f-80 r-xp 00000000 103:02 7    /env/torch/lib/libtorch_cpu.so\n")
    assert [found.pid for found in find_ranks({}, str(tmp_path))] == [11]
