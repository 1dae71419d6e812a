"""Asking the job on the screen: the costs first, then each step as it is asked, and the answer's finding."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from gswarm_tui.asking.asking import Asking, Step
from gswarm_tui.asking.verdict import RankProcess, Verdict
from gswarm_tui.fleet.findings import Evidence
from gswarm_tui.tui.app import GswarmApp
from tests.tui.conftest import app_on, line_with, shows
from tests.tui.scene import Scene, scene
from tests.unit.test_asking import Node

COSTS = {
    "processes": ("the process table", "the agents read /proc, which the job doesn't notice"),
    "ras": ("NCCL RAS", "two queries to NCCL's own monitoring thread on one node"),
    "flight_recorder": ("the Flight Recorder", "each rank writes its last collectives to a file"),
    "stacks": ("stacks", "py-spy stops each rank for some milliseconds, six times within a second"),
    "trace": (
        "a trace of half a second",
        "each rank records half a second with PyTorch's profiler, which slows it; takes up to a minute",
    ),
}
GROUPS = (
    "rank 5 (gpu01:5): load_batch (input.py:41)",
    "    read_shard (input.py:88)",
    "31 ranks (0-4, 6-31): all_reduce (torch/distributed/distributed_c10d.py:2501)",
)


class Ladder:
    """Steps of which each waits for the verdict that the test gives it."""

    def __init__(self, made: Scene) -> None:
        self.verdicts = {name: asyncio.Queue[Verdict]() for name in COSTS}
        self.forced: list[bool] = []
        ranks = {
            name: [{"pid": 8 * at + gpu, "rank": 8 * at + gpu} for gpu in range(8)]
            for at, name in enumerate(made.names)
        }
        links = {name: Node(json.dumps({"ranks": of}).encode()) for name, of in ranks.items()}
        made.hub.links = cast("Any", links)
        steps = [Step(name, *texts, self._ask(name)) for name, texts in COSTS.items()]
        made.client.asking = Asking(made.hub, lambda: steps, itertools.count(1), {})

    def _ask(self, name: str) -> Callable[[Asking, Sequence[RankProcess]], Any]:
        async def ask(asking: Asking, _ranks: Sequence[RankProcess]) -> Verdict:
            self.forced.append(asking.force)
            return await self.verdicts[name].get()

        return ask

    def see(self, step: str, saw: str, *behind: RankProcess, lines: Sequence[str] = ()) -> None:
        """Give the step's verdict."""
        evidence = (Evidence("in_a_collective", "no", "yes"),) if behind else ()
        self.verdicts[step].put_nowait(Verdict(step, saw, bool(behind), behind, evidence, tuple(lines)))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_the_job_is_asked_only_on_request_and_the_answer_leads_to_the_gpu(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    made = Scene(4, 8, simulated=False).connect().advance(60).recording()
    ladder, app = Ladder(made), app_on(made)
    async with app.run_test(size=size) as pilot:
        await pilot.press("A")
        await shows(app, pilot, "Nothing has been asked yet.")
        matches_picture(app, f"ask-{size[0]}x{size[1]}")
        assert not ladder.forced
        await pilot.press("enter")
        await shows(app, pilot, "the process table         asking")
        ladder.see("processes", "32 ranks found, and each process runs")
        ladder.see("ras", "all 32 ranks have launched 1,205 AllReduces")
        ladder.see("flight_recorder", "no rank records its collectives; gswarm-tui record arms it")
        await shows(app, pilot, "stacks                    asking")
        assert "all 32 ranks have launched" in line_with(app, "1,205")
        await pilot.press("escape", "A")
        await shows(app, pilot, "stacks                    asking")
        behind = RankProcess("gpu01", 105, 5, 5)
        ladder.see("stacks", "it is in load_batch, the other 31 in all_reduce", behind, lines=GROUPS)
        await shows(app, pilot, "rank 5 (gpu01:5) is behind")
        matches_picture(app, f"ask-answered-{size[0]}x{size[1]}")
        await pilot.press("enter")
        await shows(app, pilot, "rank 5 (gpu01:5) is behind, by stacks: it is in load_batch")
        await pilot.press("enter")
        await shows(app, pilot, " gpu01:5 · rank 5  ● live")


async def test_one_step_is_asked_alone_and_older_nccl_once_that_is_confirmed() -> None:
    made = scene(1, 8, 5).recording()
    ladder, app = Ladder(made), app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("A")
        await shows(app, pilot, "Nothing has been asked yet.")
        await pilot.press("2")
        ladder.see("ras", "NCCL 2.27.3; before 2.29.2, RAS could corrupt a job that it is asked about")
        await shows(app, pilot, "cannot tell which rank is behind")
        assert line_with(app, " 4  stacks").endswith("not asked")
        await pilot.press("F")
        await shows(app, pilot, "could corrupt a running job")
        await pilot.press("y")
        ladder.see("ras", "all 8 ranks have launched 7 AllReduces")
        await shows(app, pilot, "launched 7 AllReduces")
    assert ladder.forced == [False, True]


async def test_without_a_job_to_ask_the_key_says_so_in_one_sentence() -> None:
    made = scene(1, 1, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("A")
        await shows(app, pilot, "the job isn't asked: nothing is recorded")
        made.recording()
        await pilot.press("A")
        await shows(app, pilot, "simulated nodes have no processes to ask")
        app.read_only = True
        await pilot.press("A")
        await shows(app, pilot, "this screen is read-only")
