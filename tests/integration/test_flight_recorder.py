"""Flight Recorder: records of real ranks, by worker server and by pipe, and answers that are no records."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.asking import flight_recorder
from gswarm_tui.asking import flight_recorder as judging
from gswarm_tui.asking.verdict import MOVED, RankProcess, Verdict
from tests.jobs import worker_server

DATA = Path(__file__).parents[1] / "data" / "flight_recorder"
"""Records of four ranks of PyTorch 2.14.1 with Gloo. In both hangs rank 3 sleeps instead of calling."""
PIPED = """
import os, select, sys, time
stem, dump = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"], os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "0"
os.mkfifo(stem + "0.pipe")
pipe = os.open(stem + "0.pipe", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
select.select([pipe], [], [])
data = open(sys.argv[1], "rb").read()
with open(dump, "wb", buffering=0) as file:
    file.write(data[:100])
    time.sleep(0.3)
    file.write(data[100:])
time.sleep(60)
"""
"""A rank that writes a dump as PyTorch does: when a byte comes, and in parts."""

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a rank; returns its process ID once it has printed a line."""
    processes = []

    def started(rank: int, *words: str, **environ: str) -> int:
        process = subprocess.Popen(
            [sys.executable, *words], env=os.environ | {"RANK": str(rank)} | environ, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process.pid

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def serve(start: Start, folder: Path, rank: int, answer: Any) -> int:
    state = folder / f"{rank}.json"
    state.write_text(json.dumps({"fr_trace_json": answer}))
    return start(rank, worker_server.__file__, "--state", str(state))


def ask(pids: list[int], seconds: float = 10) -> tuple[dict[str, Any], Verdict]:
    answer = flight_recorder.ask({"pids": pids, "seconds": seconds})
    answer = json.loads(json.dumps(answer))
    return answer, judging.judge(
        {"gpu01": answer}, [RankProcess("gpu01", pid, rank, rank) for rank, pid in enumerate(pids)]
    )


def test_rank_before_a_barrier_is_named_with_the_collective_and_since_when(
    start: Start, tmp_path: Path
) -> None:
    pids = [
        serve(start, tmp_path, rank, json.loads((DATA / f"barrier-{rank}.json").read_text()))
        for rank in range(4)
    ]
    answer, verdict = ask(pids)
    assert [one.rank for one in verdict.behind] == [3]
    assert verdict.decided
    assert "hasn't called barrier, collective 4 of group 0 (default_pg)" in verdict.sentence
    assert "ranks 0, 1, 2 wait" in verdict.sentence
    assert verdict.since == pytest.approx(1795891073, abs=60)
    assert len(json.dumps(answer)) < 4096


def test_rank_is_found_through_the_group_in_which_the_waited_for_rank_waits(
    start: Start, tmp_path: Path
) -> None:
    pids = [
        serve(start, tmp_path, rank, json.loads((DATA / f"groups-{rank}.json").read_text()))
        for rank in range(4)
    ]
    _answer, verdict = ask(pids)
    assert [one.rank for one in verdict.behind] == [3]
    # Rank 1 hasn't called what rank 0 waits in, as it waits for rank 3 itself.
    assert "hasn't called all_reduce [8, 16] " in verdict.sentence


def test_ranks_that_call_collectives_have_moved(start: Start, tmp_path: Path) -> None:
    record = json.loads((DATA / "barrier-3.json").read_text())
    record["entries"][-1]["time_created_ns"] = "-0.2"
    pids = [serve(start, tmp_path, rank, record) for rank in range(2)]
    assert ask(pids)[1] == Verdict("flight_recorder", MOVED, decided=True)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (worker_server.HANG, "its worker server didn't answer in time"),
        (worker_server.HUGE, "its worker server's answer has more than 64 MiB"),
        ("no JSON \x1b[31m", "what its Flight Recorder has can't be understood"),
        ("[" * 100_000, "what its Flight Recorder has can't be understood"),
        (
            json.loads((DATA / "barrier-3.json").read_text()) | {"pg_config": {"0": {"ranks": "[[1]]"}}},
            "what its Flight Recorder has can't be understood",
        ),
        ({"pg_status": {"0": []}}, "what its Flight Recorder has can't be understood"),
        ({"pg_status": {}, "entries": []}, "its Flight Recorder has no collective yet"),
        (None, "its worker server doesn't know fr_trace_json"),
    ],
)
def test_server_without_a_record_ends_in_one_sentence(
    start: Start, tmp_path: Path, answer: Any, why: str
) -> None:
    begin = time.monotonic()
    _answer, verdict = ask([serve(start, tmp_path, 0, answer)], seconds=3)
    assert verdict.sentence.startswith(f"no rank has a record; rank 0 (gpu01:0): {why}")
    assert not verdict.decided
    assert time.monotonic() - begin < 5


def piped(start: Start, folder: Path, data: bytes) -> int:
    (folder / "data").write_bytes(data)
    variables = {flight_recorder.PIPE: f"{folder}/pipe", flight_recorder.DUMPS[0]: f"{folder}/dump"}
    return start(0, "-c", PIPED, str(folder / "data"), **variables)


def test_dump_is_read_once_it_is_whole(start: Start, tmp_path: Path) -> None:
    pid = piped(start, tmp_path, (DATA / "dump-1.pickle").read_bytes())
    answer, verdict = ask([pid])
    assert [group["description"] for group in answer["ranks"][0]["groups"]] == ["dp", "tp", "default_pg"]
    assert verdict.sentence.startswith("no rank waits; the last call is ")
    assert answer["ranks"][0]["now"] == pytest.approx(time.time(), abs=5)


class Malicious:
    """An object whose pickle runs a command."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def test_dump_that_names_code_is_refused_and_runs_none(start: Start, tmp_path: Path) -> None:
    pid = piped(start, tmp_path, pickle.dumps([Malicious(tmp_path / "made"), "x" * 100]))
    _answer, verdict = ask([pid])
    assert verdict.sentence.endswith(": its dump isn't plain data: it names posix.mkdir")
    assert not (tmp_path / "made").exists()


def test_dump_that_is_a_link_is_refused(start: Start, tmp_path: Path) -> None:
    pid = piped(start, tmp_path, b"")
    (tmp_path / "dump0").symlink_to(tmp_path / "elsewhere")
    assert ask([pid])[1].sentence.endswith(": its dump can't be read: Too many levels of symbolic links")


def test_rank_without_server_and_pipe_names_the_remedy(start: Start) -> None:
    pid = start(0, "-c", "import time; print(flush=True); time.sleep(60)")
    assert ask([pid])[1].sentence.endswith(
        "it has no worker server and no pipe; start the job with gswarm-tui record"
    )
