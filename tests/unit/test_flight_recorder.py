"""Verdicts from Flight Recorder's records: who is behind in dependent groups, and answers that are none."""

from __future__ import annotations

from typing import Any

import pytest

from gswarm_tui.asking.flight_recorder import judge
from gswarm_tui.asking.verdict import RankProcess, Verdict

NOW = 1_795_890_000.0


def group(name: str, completed: int, scheduled: int, *, age: float = 40, **further: Any) -> dict[str, Any]:
    call = {"text": "all_reduce [1024, 8] BFloat16", "since": NOW - age}
    pending = {"pending": call} if scheduled > completed else {}
    return {
        "name": name,
        "description": name,
        "backend": "nccl",
        "members": [],
        "transfer": False,
        "newest": NOW - age,
        "scheduled": scheduled,
        "started": further.pop("started", 0),
        "completed": completed,
        **pending,
        **further,
    }


def verdict(*ranks: list[dict[str, Any]] | str) -> Verdict:
    """Return the verdict on ranks of one node, each with its groups or why there are none."""
    readings = [
        {"pid": pid, "why": each} if isinstance(each, str) else {"pid": pid, "now": NOW, "groups": each}
        for pid, each in enumerate(ranks)
    ]
    known = [RankProcess("gpu01", pid, pid, pid) for pid in range(len(ranks))]
    return judge({"gpu01": {"ranks": readings}}, known)


IN_ALL = group("dp", 9, 10)


@pytest.mark.parametrize(
    ("ranks", "behind", "sentence"),
    [
        pytest.param(
            [[group("dp", 9, 9), group("pp", 3, 3, transfer=True)], [IN_ALL], [group("pp", 3, 3)]],
            [],
            "rank 0 hasn't called all_reduce [1024, 8] BFloat16, collective 10 of group dp (dp)",
            id="a rank that may wait for a transfer isn't named",
        ),
        pytest.param(
            [[IN_ALL], [group("dp", 10, 11)], [group("dp", 10, 11)]],
            [0],
            "hasn't completed all_reduce [1024, 8] BFloat16, collective 10 of group dp (dp)",
            id="a GPU is stuck in what others completed",
        ),
        pytest.param(
            [[group("dp", 9, 10, started=10)], [IN_ALL], [group("dp", 9, 10, started=10)]],
            [1],
            "hasn't started all_reduce",
            id="a GPU hasn't begun what was called",
        ),
        pytest.param(
            [[group("a", 1, 2), group("b", 1, 1)], [group("a", 1, 1), group("b", 1, 2)]],
            [],
            "; all wait for each other",
            id="two ranks called two groups in different order",
        ),
        pytest.param(
            [[group("default_pg", 0, 1)], [group("default_pg", 0, 1)], [group("tp", 5, 5)]],
            [2],
            "hasn't called all_reduce [1024, 8] BFloat16, collective 1 of group default_pg (default_pg)",
            id="a rank has called nothing in the group",
        ),
        pytest.param(
            [[IN_ALL], [IN_ALL]],
            [],
            "each has called it, so look at the network",
            id="all wait",
        ),
        pytest.param(
            [[IN_ALL], "it wrote no dump"],
            [],
            "rank 0 waits in it for 40 s; rank 1 (gpu01:1): it wrote no dump",
            id="one has no record",
        ),
        pytest.param(
            [[group("dp", 9, 10, age=0.4)], [group("dp", 9, 9, age=1.4)]],
            [],
            "no rank waits; the last call is 1 s old",
            id="a short wait is none",
        ),
    ],
)
def test_first_rank_that_others_wait_for_is_behind(
    ranks: list[list[dict[str, Any]] | str], behind: list[int], sentence: str
) -> None:
    found = verdict(*ranks)
    assert [one.rank for one in found.behind] == behind
    assert sentence in found.sentence
    assert found.decided is bool(behind)
    assert found.since == (pytest.approx(NOW, abs=41) if behind else None)


@pytest.mark.parametrize(
    "reading",
    [
        {"groups": 7},
        {"groups": [IN_ALL | {"completed": float("nan")}]},
        {"groups": [IN_ALL | {"scheduled": 10**400}]},
        {"groups": [IN_ALL | {"members": [None]}]},
        {"groups": [IN_ALL | {"newest": "1e999"}]},
        {"groups": [IN_ALL | {"pending": 7}]},
        {"groups": []},
        {"now": None, "groups": [IN_ALL]},
        ["pid"],
    ],
)
def test_answer_that_is_none_ends_in_one_sentence(reading: Any) -> None:
    if isinstance(reading, dict):
        reading = {"pid": 0, "now": NOW} | reading
    found = judge({"gpu01": {"ranks": [reading]}}, [RankProcess("gpu01", 0, 0, 0)])
    assert found == Verdict(
        "flight_recorder",
        "no rank has a record; rank 0 (gpu01:0): its answer can't be understood",
    )


def test_text_of_a_job_cannot_control_the_terminal() -> None:
    named = group("dp\x1b[2J" + "x" * 500, 9, 10)
    sentence = verdict([named], [named]).sentence
    assert "\x1b" not in sentence
    assert len(sentence) < 400
