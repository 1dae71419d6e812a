"""Which rank isn't where the others wait, from the stacks of all; and why a stack can't be read."""

from __future__ import annotations

import base64
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from gswarm_agent.asking import stacks as agent
from gswarm_agent.asking import tool
from gswarm_tui.asking import stacks
from gswarm_tui.asking.verdict import MOVED, RankProcess, Verdict

SITE = "/opt/env/lib/python3.11/site-packages"
TRAIN = "train (/home/me/train.py:29)"
REDUCE = [
    f"all_reduce ({SITE}/torch/distributed/distributed_c10d.py:2810)",
    f"wrapper ({SITE}/torch/distributed/c10d_logger.py:83)",
    TRAIN,
]
INPUT = [
    "select (/usr/lib/python3.11/selectors.py:415)",
    "wait (/usr/lib/python3.11/multiprocessing/connection.py:947)",
    f"__next__ ({SITE}/torch/utils/data/dataloader.py:733)",
    "train (/home/me/train.py:28)",
]
BACKWARD = [f"_engine_run_backward ({SITE}/torch/autograd/graph.py:1072)", TRAIN]
STEP = ["train (/home/me/train.py:30)"]
RANKS = [RankProcess(f"gpu0{1 + rank // 4}", 100 + rank, rank, rank % 4) for rank in range(8)]


def judge(*looks: list[list[str]] | str) -> Verdict:
    """Return the verdict on the first ranks; a text is why there is no stack."""
    answers: dict[str, dict[str, Any]] = {"gpu01": {"stacks": {}}, "gpu02": {"stacks": {}}}
    for rank, look in zip(RANKS, looks, strict=False):
        values = {"why": look} if isinstance(look, str) else {"by": "py-spy", "looks": look}
        answers[rank.node]["stacks"][str(rank.pid)] = values
    return stacks.judge(answers, RANKS[: len(looks)])


def test_the_rank_outside_the_collective_is_behind() -> None:
    verdict = judge(*[[REDUCE] * 3] * 5, [INPUT] * 3, [REDUCE] * 3, [["x (/lib/gloo.py:1)", *REDUCE]] * 3)
    assert verdict.decided
    assert [one.rank for one in verdict.behind] == [5]
    reduce = "all_reduce (distributed_c10d.py:2810) < train (train.py:29)"
    odd = "__next__ (dataloader.py:733) < train (train.py:28)"
    assert verdict.sentence == f"it is in {odd}, the other 7 in {reduce}"
    assert verdict.lines == (f"rank 5 (gpu02:1): {odd}", f"ranks 0-4,6-7: {reduce}")
    assert [(one.value, one.peers) for one in verdict.evidence] == [(odd, reduce)]


def test_of_two_ranks_the_one_that_waits_for_nobody_is_behind() -> None:
    assert [one.rank for one in judge([INPUT] * 2, [REDUCE] * 2).behind] == [0]


def test_without_a_known_collective_the_odd_rank_is_shown_and_not_accused() -> None:
    late = [STEP, INPUT, STEP]
    verdict = judge([BACKWARD] * 3, late, [BACKWARD] * 3, [BACKWARD] * 3)
    assert not verdict.decided
    assert verdict.sentence.startswith("rank 1 (gpu01:1): it is in ")
    assert verdict.sentence.endswith("which is no collective that gswarm-tui knows")


@pytest.mark.parametrize(
    ("looks", "decided", "said"),
    [
        ([[REDUCE, STEP], [STEP, INPUT], [STEP, REDUCE]], True, MOVED),
        ([[BACKWARD], [BACKWARD], [STEP]], False, "0 of 3 ranks moved in the last second, and no majority"),
        ([[BACKWARD] * 2] * 3, False, "3 of 3 ranks are in _engine_run_backward"),
        (
            [[BACKWARD] * 2, [BACKWARD] * 2, [STEP, BACKWARD]],
            False,
            "2 of 3 ranks are in _engine_run_backward",
        ),
        (
            [[REDUCE], [INPUT], [REDUCE], [INPUT]],
            False,
            "0 of 4 ranks moved in the last second, and no majority",
        ),
        (
            [[REDUCE] * 2, [REDUCE] * 2, "it has ended"],
            False,
            "; rank 2 (gpu01:2) can't be read: it has ended",
        ),
        (
            ["it isn't a Python process"] * 2,
            False,
            "ranks 0-1 can't be read: it isn't a Python process",
        ),
    ],
)
def test_what_stacks_cannot_tell(looks: list[Any], decided: bool, said: str) -> None:
    verdict = judge(*looks)
    assert (verdict.decided, verdict.behind) == (decided, ())
    assert said in verdict.sentence


@pytest.mark.parametrize(
    "answer",
    [
        *({}, {"stacks": []}, {"stacks": {"100": 5}}, {"stacks": {"100": {"looks": 3}}}),
        *({"stacks": {"100": {"looks": [[1]]}}}, {"why": 7}, None, [], {"stacks": {"100": {"why": None}}}),
    ],
)
def test_a_malformed_answer_is_one_clause(answer: Any) -> None:
    (one,) = stacks.read({"gpu01": answer}, RANKS[:1])
    assert one.why == "its node sent something else than a stack"


def test_hostile_text_is_clipped_and_escaped() -> None:
    frames = [["\x1b]0;x\x07" + "f" * 10**6] * 10**4] * 100
    verdict = judge([["f (a.py:1)"]] * 2, frames, [["f (a.py:1)"]] * 2)
    assert verdict.sentence.isprintable()
    assert len(verdict.sentence) < 1000


FAULTHANDLER = """Current thread 0x00007fa68effd6c0 (most recent call first):
  <no Python frame>

Thread 0x00007fa758a48b80 (most recent call first):
  File "/e/torch/distributed/distributed_c10d.py", line 6371 in barrier
  File "/e/rank.py", line 35 in <module>
"""
PROFILER = """Stack dump for PID 12, thread 140735 (main thread, has GIL, on CPU; most recent call last):
  File "/e/rank.py", line 35, in <module>
    barrier()
  File "/e/torch/distributed/distributed_c10d.py", line 6371, in barrier
"""


@pytest.mark.parametrize("text", [FAULTHANDLER, PROFILER])
def test_dumps_in_text_are_read(text: str) -> None:
    frames = ["barrier (/e/torch/distributed/distributed_c10d.py:6371)", "<module> (/e/rank.py:35)"]
    assert agent.parse_text(text) == frames


@pytest.mark.parametrize(
    ("stderr", "scope", "said"),
    [
        ("Error: Failed to find python version from target process", "0", "it isn't a Python process"),
        ("Error: Failed to get process name. Check that the process is running.", "0", "it has ended"),
        (
            "Permission Denied: Try running again",
            "1",
            "ptrace_scope is 1, which lets only its parent read it",
        ),
        ("Permission Denied: Try running again", "2", "ptrace_scope is 2, which lets only root read it"),
        (
            "Permission Denied: Try running again",
            "",
            "the kernel refuses it, as a container's seccomp profile",
        ),
        ("Error: odd\nStack backtrace:", "", "it couldn't be read: Error: odd"),
    ],
)
def test_why_a_process_cannot_be_read(stderr: str, scope: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "sys/kernel/yama/ptrace_scope").write_text(f"{scope}\n")
    assert said in agent.why_refused(stderr, 12, str(tmp_path))


def test_a_program_that_made_itself_unreadable_belongs_to_another_in_proc(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12/stat").write_text(f"12 (train) S {'0 ' * 49}")
    (tmp_path / "12/status").write_text(f"Name:\ttrain\nUid:\t{os.geteuid() + 1}\t0\t0\t0\n")
    (tmp_path / "12/environ").touch()
    assert "PR_SET_DUMPABLE 0" in agent.why_refused("Permission Denied: Try running again", 12, str(tmp_path))


def test_a_program_that_others_can_change_is_not_run(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    answer = agent.ask({"seconds": 30, "pids": [os.getpid()], "py_spy": str(program)})
    assert answer["stacks"][str(os.getpid())]["why"].endswith(f"others can change {program}")
    answer = agent.ask({"seconds": 30, "pids": [os.getpid()], "digest": "00", "machine": "vax"})
    assert answer["stacks"][str(os.getpid())]["why"].startswith("the recorder's py-spy is for vax")


def test_a_program_is_kept_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "cache"
    monkeypatch.setattr(tool, "folder", lambda: str(place))
    digest = hashlib.sha256(b"program").hexdigest()
    for content in (b"other", b"program"):
        data = base64.b64encode(zlib.compress(content)).decode()
        answer = tool.ask({"digest": digest, "data": data})
        assert answer == ({} if content == b"program" else {"why": "py-spy arrived damaged"})
    kept = Path(tool.kept(digest))
    assert (kept.stat().st_mode & 0o777, list(place.iterdir())) == (0o700, [kept])
    place.chmod(0o755)
    assert tool.kept(digest) == ""
