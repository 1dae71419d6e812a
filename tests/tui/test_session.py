"""Session and comparison screens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.fleet.events import SessionStarted
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.screens.computed import ComputedScreen
from tests.recorded import begin, recorded
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import Scene
from tests.tui.test_sql import job


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    path, made = tmp_path_factory.mktemp("session") / "run.duckdb", Scene(4, 8)
    recorded(path, made, job)
    return path, made


async def computed(app: GswarmApp, pilot: Pilot[str]) -> None:
    """Wait until the screen in front has computed its result."""
    await pilot.pause()
    here = app.front
    assert isinstance(here, ComputedScreen)
    await app.workers.wait_for_complete(w for w in app.workers if w.node is here)
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_session_and_comparison_match_their_pictures(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    name = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        await pilot.press("S", "enter")
        await computed(app, pilot)
        matches_picture(app, f"session-{name}")
        await pilot.press("tab", "tab")
        await pilot.pause()
        matches_picture(app, f"session-gpus-{name}")
        for _ in range(3):
            await pilot.press("shift+tab")
        await pilot.pause()
        matches_picture(app, f"session-events-{name}")
        await pilot.press("c", "enter")
        await computed(app, pilot)
        matches_picture(app, f"comparison-{name}")


async def test_running_session_is_updated_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswarm_tui.tui.screens.computed.SHARE", 0.0)  # however long a result takes here
    made = Scene(2, 2)
    recorder = begin(tmp_path / "run.duckdb", made)
    app = GswarmApp(made.client, timezone=UTC, open_queries=lambda: RecordingQueries(recorder.queries()))

    async def on_disk() -> None:
        """Commit all frames so far."""
        assert (await asyncio.wrap_future(recorder.commit())).error == ""

    try:
        async with app.run_test(size=(120, 40)) as pilot:
            made.connect().advance(5)
            made.hub.start_session("train")
            made.advance(10)
            await on_disk()
            await pilot.press("S", "enter")
            await computed(app, pilot)
            assert "● running" in screen_text(app)
            assert "still running" in screen_text(app)
            assert "as of 14:00:15" in screen_text(app)
            assert "40 samples" in line_with(app, "coverage   ")
            made.advance(4)
            await on_disk()
            await computed(app, pilot)
            assert "40 samples" in line_with(app, "coverage   "), "not each second"
            made.advance(1)
            await computed(app, pilot)
            assert "40 samples" not in line_with(app, "coverage   ")
            assert "as of" in screen_text(app)
            made.hub.stop_session("1")
            async with asyncio.timeout(30):  # until its end has reached the disk
                while "still running" in screen_text(app):
                    made.advance(1)
                    await on_disk()
                    await computed(app, pilot)
            assert "○ ended" in screen_text(app)
            assert "as of" not in screen_text(app)
            made.hub.undo_stop("1")
            async with asyncio.timeout(30):  # until its withdrawn end has reached the disk
                while "still running" not in screen_text(app):
                    made.advance(1)
                    await on_disk()
                    await computed(app, pilot)
            assert "● running" in screen_text(app)
    finally:
        await asyncio.to_thread(recorder.close, made.time)


async def test_missing_samples_and_sessions_are_reported(tmp_path: Path) -> None:
    made = Scene(1, 1)
    path = tmp_path / "run.duckdb"

    def nothing(made: Scene) -> None:
        made.hub.publish(SessionStarted("1", made.time, "[b]empty[/b]\x1b", made.time))
        made.hub.next_session = 2
        made.advance(5)

    recorded(path, made, nothing)
    made.hub.start_session("late")
    with closing(FileSource(path)) as source:
        app = GswarmApp(
            made.client, timezone=UTC, open_queries=lambda: RecordingQueries(source.second_source())
        )
        async with app.run_test(size=(100, 30)) as pilot:
            await pilot.press("S", "enter")
            await computed(app, pilot)
            assert "late isn't on disk yet" in screen_text(app)
            await pilot.press("escape", "down", "enter")
            await computed(app, pilot)
            assert "[b]empty[/b]� has no GPU samples" in screen_text(app)
            await pilot.press("c", "enter")
            await computed(app, pilot)
            assert "isn't on disk yet" in screen_text(app) or "nothing to compare" in screen_text(app)


async def test_session_without_recording_has_no_summary() -> None:
    made = Scene(1, 1).connect()
    made.hub.start_session("train")
    app = app_on(made.advance(5))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("S", "enter")
        await pilot.pause()
        assert "nothing is recorded, so there is no summary" in screen_text(app)


async def test_session_of_the_list_is_compared_with_another(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("S", "down", "c", "enter")
        await computed(app, pilot)
        assert "warm_up vs full_training" in screen_text(app)
        assert "1.00 ×" in line_with(app, "speed-up")


async def test_session_has_views_of_nodes_and_processes(app: GswarmApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("S", "enter")
        await computed(app, pilot)
        assert "busy " not in screen_text(app).splitlines()[-4]
        await pilot.press("tab")
        await pilot.pause()
        assert [line.split()[0] for line in screen_text(app).splitlines()[3:7]] == [
            "▸gpu01",
            "gpu02",
            "gpu03",
            "gpu04",
        ]
        await pilot.press("tab", "tab", "G")
        await pilot.pause()
        assert " train.py" in screen_text(app)
