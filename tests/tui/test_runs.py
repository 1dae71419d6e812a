"""Runs screen: the list of all recordings, the run under the cursor, and opening one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.runs.finding_runs import Report
from gswarm_tui.runs.line import RUNNING, RunFinding, RunLine
from gswarm_tui.tui.app import GswarmApp
from tests.terminal import PATIENCE_S
from tests.tui.conftest import screen_text, shows
from tests.tui.scene import Scene

NEWEST = RunLine(
    path="/scratch/ada/runs/gswarm-job4902.duckdb", size=9, mtime_ns=1, recording_id=1, run="a",
    name="train-7b", name_s=4360.0, sessions=("train-7b",), user="ada", host="login1", cluster="tiny",
    job="4902", command="gswarm-tui", nodes=("gpu01", "gpu02", "gpu03"), gpus=24,
    gpu_models=("NVIDIA H100 80GB HBM3",), started_at=datetime(2026, 3, 2, 14, tzinfo=UTC).timestamp(),
    ended_at=None, seconds=4360.0, state=RUNNING, energy_j=1.5e8, util_mean_pct=91.0, coverage=0.99,
    findings=(
        RunFinding("xid", "fault", "gpu01", 2, "", 0.0), RunFinding("thermal", "waste", "gpu03", 5, "G", 2.5),
    ),
    marks={}, driver="", software=(), sm_clock_mhz=None, iowait_pct=None, disk_read_mb_s=None, step_s=None,
)  # fmt: skip
RUNS = [
    NEWEST,
    replace(NEWEST, run="b", job="4871", state="finished", findings=(), path="/scratch/b.duckdb"),
    replace(NEWEST, run="c", job="", name="data_loading", gpus=8, state="no end", util_mean_pct=None),
]  # fmt: skip


def app_with(load: Callable[[Report], tuple[list[RunLine], list[str]]]) -> GswarmApp:
    return GswarmApp(Scene(2, 4).recording().client, timezone=UTC, runs=load)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_runs_are_listed_with_the_one_under_the_cursor(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    app = app_with(lambda _: (RUNS, []))
    async with app.run_test(size=size) as pilot:
        await pilot.press("R")
        await shows(app, pilot, "3 runs")
        await pilot.pause()
        matches_picture(app, f"runs-{size[0]}x{size[1]}")


async def test_runs_are_listed_while_others_are_read_until_the_user_leaves() -> None:
    more, ended = threading.Event(), threading.Event()

    def load(report: Report) -> tuple[list[RunLine], list[str]]:
        report(RUNS[1:2], 0, 0)
        more.wait(PATIENCE_S)
        try:
            while True:
                report(RUNS, 1_200, 10_000)
        finally:
            ended.set()

    app = app_with(load)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("R")
        await shows(app, pilot, "1 run · searching folders")
        await pilot.press("down")
        more.set()
        await shows(app, pilot, "3 runs · reading 1,200 of 10,000 files")
        await shows(app, pilot, "gswarm-tui replay --db=/scratch/b.duckdb")
        await pilot.press("escape")
        assert await asyncio.to_thread(ended.wait, PATIENCE_S)


async def test_enter_shows_the_command_where_another_run_cannot_be_played() -> None:
    app = app_with(lambda _: (RUNS, ["/x.duckdb: is damaged"]))
    async with app.run_test(size=(120, 20), notifications=True) as pilot:
        await pilot.press("R")
        await shows(app, pilot, "skipped /x.duckdb: is damaged")
        await pilot.press("down", "enter")
        await shows(app, pilot, "in another terminal: gswarm-tui replay --db=/scratch/b.duckdb 'recording 1'")
        # The notice is below the table, whose first line has the titles of its columns.
        assert "started  name" in screen_text(app)


async def test_enter_on_the_run_on_the_screen_names_no_command() -> None:
    app = app_with(lambda _: ([replace(NEWEST, path=str(Path("run.duckdb").absolute()))], []))
    async with app.run_test(size=(120, 20), notifications=True) as pilot:
        await pilot.press("R")
        await shows(app, pilot, "1 run as of")
        await pilot.press("enter")
        await shows(app, pilot, "this is the recording on the screen")


async def test_a_list_that_cannot_be_read_and_an_empty_one_say_so() -> None:
    def fails(_report: Report) -> tuple[list[RunLine], list[str]]:
        raise UserError("the current folder was deleted; change to another one.")

    for load, words in ((fails, "the current folder was deleted"), (lambda _: ([], []), "no recording here")):
        app = app_with(load)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("R")
            await shows(app, pilot, words)
