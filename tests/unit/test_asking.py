"""The ladder over agents that answer as they like: it takes steps in order, and ends in one sentence."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from gswarm_agent.wire import Answer, Ask
from gswarm_tui.asking.asking import MIB, AskError, Asking, Step
from gswarm_tui.asking.processes import judge
from gswarm_tui.asking.verdict import RankProcess, Verdict
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Hub

RANKS = json.dumps({"ranks": [{"pid": 40 + rank, "rank": rank} for rank in range(4)]}).encode()


class Node:
    """A link whose agent answers each request with these bytes."""

    is_live = True

    def __init__(self, answer: bytes = RANKS) -> None:
        self.answer = answer
        self.take_answer: Callable[[Answer], None] = lambda _answer: None

    def ask(self, ask: Ask) -> None:
        """Answer in two parts, after a part for another request."""
        half = len(self.answer) // 2
        for token, part, last in (
            ("another", b"{}", True),
            (ask.token, self.answer[:half], False),
            (ask.token, self.answer[half:], True),
        ):
            self.take_answer(Answer(token, part, last))


def asking_of(node: Node, *verdicts: Verdict) -> Asking:
    """Return a ladder whose steps see this."""

    def step(verdict: Verdict) -> Step:
        async def ask(_asking: Asking, _ranks: Sequence[RankProcess]) -> Verdict:
            return verdict

        return Step(verdict.step, f"the {verdict.step}", "nothing", ask)

    hub = Hub(Fleet(["gpu01"]))
    hub.links = cast(Any, {"gpu01": node})
    return Asking(hub, lambda: [step(one) for one in verdicts], itertools.count(1), {})


async def answer_of(asking: Asking, *steps: str) -> dict[str, Any]:
    """Ask, and return the state at the end."""
    asking.start(steps, force=False)
    async with asyncio.timeout(20):
        while asking.state()["running"]:
            await asyncio.sleep(0.01)
    return asking.state()


async def test_the_first_step_that_can_tell_ends_the_ladder_and_is_kept() -> None:
    culprit = RankProcess("gpu01", 42, 2)
    saw = Verdict("stacks", "it is in a \x1b[31m loader", decided=True, behind=(culprit,))
    asking = asking_of(Node(), Verdict("ras", "all counts are equal"), saw, Verdict("trace", "-"))
    state = await answer_of(asking)
    assert [step["state"] for step in state["steps"]] == ["cannot tell", "decided", "not asked"]
    sentence = "rank 2 (gpu01) is behind, by the stacks: it is in a \\x1b[31m loader"
    assert state["sentence"] == sentence
    (finding,) = asking.hub.fleet.findings.values()
    assert (finding.kind, finding.node, finding.rank, finding.until) == ("rank_behind", "gpu01", 2, None)
    assert finding.sentence.startswith(sentence)
    # Only another answer replaces it.
    assert "cannot tell which rank" in (await answer_of(asking, "ras"))["sentence"]
    assert asking.hub.fleet.findings[finding.finding_id].until is None
    await answer_of(asking)
    assert asking.hub.fleet.findings[finding.finding_id].until is not None


async def test_ranks_that_moved_are_no_finding() -> None:
    asking = asking_of(Node(), Verdict("ras", "", decided=True))
    assert (await answer_of(asking))["sentence"] == "all ranks moved in the last second, by the ras"
    assert not asking.hub.fleet.findings


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"{]", "its agent's answer can't be understood"),
        (b"[" * 100_000, "its agent's answer can't be understood"),
        (b'{"ranks": [{"pid": "x"}]}', "its agent's answer can't be understood"),
        (b'{"why": "no answer within 10 s"}', "no answer within 10 s"),
        (b" " * (MIB + 1), "its answer has more than 1 MiB"),
    ],
)
async def test_an_answer_that_makes_no_sense_ends_in_one_sentence(answer: bytes, why: str) -> None:
    state = await answer_of(asking_of(Node(answer), Verdict("ras", "-")))
    assert state["sentence"] == f"no process of yours on 1 node has a rank (gpu01: {why})"


async def test_one_request_at_a_time_and_only_known_steps() -> None:
    asking = asking_of(Node(), Verdict("ras", "-"))
    with pytest.raises(AskError, match="there is no step nvml; choose from ras"):
        asking.start(["nvml"], force=False)
    asking.start([], force=False)
    with pytest.raises(AskError, match="being asked already"):
        asking.start([], force=False)
    await asking.close()


def test_ranks_of_a_node_that_was_not_read_are_not_missing() -> None:
    ranks = [RankProcess("gpu01", 40 + rank, rank, world_size=4) for rank in range(3)]
    gone = judge(ranks, {})
    assert (gone.decided, [one.rank for one in gone.behind]) == (True, [3])
    unread = judge(ranks, {"gpu02": "no answer within 10 s"})
    assert (unread.decided, unread.sentence) == (
        False,
        "3 ranks found; not read: gpu02 (no answer within 10 s)",
    )
