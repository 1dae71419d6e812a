"""Trial screen: progress, results and runs, live and in a finished recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.recorded import begin, recorded
from tests.recorded_trial import RUNS, end_run, run_trial
from tests.tui.conftest import line_with, screen_text, shows
from tests.tui.scene import Scene
from tests.tui.test_session import computed


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    path, made = tmp_path_factory.mktemp("trial") / "run.duckdb", Scene(4, 4)
    recorded(path, made, lambda scene: run_trial(scene.connect()))
    return path, made


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_trial_screen_matches_its_pictures(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    name = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        await pilot.press("R")
        await computed(app, pilot)
        matches_picture(app, f"trial-{name}")
        await pilot.press("tab")
        await pilot.pause()
        matches_picture(app, f"trial-gpus-{name}")
        await pilot.press("tab")
        await pilot.pause()
        matches_picture(app, f"trial-runs-{name}")


async def test_enter_opens_the_session_of_a_run(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.press("R")
        await computed(app, pilot)
        await pilot.press("enter")
        await shows(app, pilot, "choose a run that has begun")
        await pilot.press("shift+tab", "down", "enter")
        await computed(app, pilot)
        assert "trial-2x4-1" in screen_text(app)


async def test_running_trial_shows_what_is_left_its_cost_and_its_end(tmp_path: Path) -> None:
    made = Scene(4, 4)
    recorder = begin(tmp_path / "run.duckdb", made)
    app = GswarmApp(
        made.client, starts_it=False, timezone=UTC, open_queries=lambda: RecordingQueries(recorder.queries())
    )
    try:
        run_trial(made.connect(), done=4)
        await asyncio.wrap_future(recorder.commit())
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("R")
            await computed(app, pilot)
            assert f"4 of {len(RUNS)} runs done" in line_with(app, "runs   ")
            assert "1 node × 4 GPUs, repeat 2: 5 s of about 8 s" in line_with(app, "running   ")
            assert "GPU-h so far, about" in line_with(app, "cost   ")
            # 3 s of this run, then 5 + 5 + 5 + 8 + 5 s are expected.
            assert "about 14:01, in 31 s" in line_with(app, "end   ")
            made.time += 4
            app.update_view()
            await pilot.pause()
            assert "later than expected" in line_with(app, "end   ")
            assert "2 nodes × 4 GPUs: 1.6 × as fast, 80 %; 4 nodes × 4 GPUs: 1.6 ×, 40 %" in screen_text(app)
            end_run(made, 5)
            async with asyncio.timeout(30):
                while f"5 of {len(RUNS)} runs done" not in screen_text(app):
                    made.time += 1
                    app.update_view()
                    await pilot.pause(0.01)
            assert "none" in line_with(app, "running   ")
            made.client.ended = True
            app.update_view()
            await pilot.pause()
            assert "5 runs left" in line_with(app, "ended   ")
    finally:
        await asyncio.to_thread(recorder.close, made.time)


async def test_recording_without_a_trial_says_how_to_start_one(tmp_path: Path) -> None:
    made = Scene(1, 1)
    path = tmp_path / "run.duckdb"
    recorded(path, made, lambda scene: scene.connect().advance(5))
    with closing(FileSource(path)) as source:
        app = GswarmApp(
            made.client, timezone=UTC, open_queries=lambda: RecordingQueries(source.second_source())
        )
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("R")
            await shows(app, pilot, "no trial in this recording; gswarm-tui trial starts one")
