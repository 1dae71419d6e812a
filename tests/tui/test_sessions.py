"""Sessions screen."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from gswarm_tui.fleet.events import SessionStarted
from gswarm_tui.tui.app import GswarmApp
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.scene import Scene, scene


def busy_scene() -> Scene:
    made = scene(nodes=2, gpus=4, seconds=60)
    made.hub.start_session("data_loading", started_at=made.time - 40)
    made.advance(30)
    made.hub.stop_session("1")
    made.hub.start_session("full_training", note="lr 3e-4, batch 1024")
    made.advance(20)
    made.hub.start_session("eval")
    return made.advance(10)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_sessions_match_picture(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    app = app_on(busy_scene().recording())
    async with app.run_test(size=size) as pilot:
        await pilot.press("S")
        await pilot.pause()
        matches_picture(app, f"sessions-{size[0]}x{size[1]}")


async def test_running_sessions_come_first() -> None:
    made = busy_scene()
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("S")
        lines = [line for line in screen_text(app).splitlines()[1:] if "●" in line or "○" in line]
        assert [line.split()[1] for line in lines] == ["eval", "full_training", "data_loading"]
        assert "30 s" in lines[1]
        assert "lr 3e-4, batch 1024" in lines[1]
        mean = made.fleet.sessions.sessions["2"].mean_util
        assert mean is not None
        assert f"{mean:.0f} %" in lines[1]
        made.advance(5)
        await pilot.pause()
        assert "35 s" in line_with(app, "full_training")


async def test_sessions_screen_says_that_nothing_is_recorded() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.press("S")
        await pilot.pause()
        shown = " ".join(screen_text(app).split())
        assert "no sessions: nothing is recorded; start gswarm-tui without --no-record" in shown


async def test_name_of_a_running_session_is_refused_in_the_dialog() -> None:
    made = busy_scene().recording()
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("s", *["backspace"] * 20, *"eval", "enter")
        await pilot.pause()
        assert "a session of this name is running: eval" in screen_text(app)
        await pilot.press("2", "enter")
        await pilot.pause()
        await pilot.press("S", "r", *["backspace"] * 20, *"eval", "enter")
        await pilot.pause()
        assert "a session of this name is running: eval" in screen_text(app)
    assert sorted(session.name for session in made.fleet.sessions.running) == [
        "eval",
        "eval2",
        "full_training",
    ]


async def test_stop_ends_only_the_selected_session() -> None:
    made = busy_scene().recording()
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("S", "down", "x")
        await shows(app, pilot, "1 running")
        assert [s.name for s in made.fleet.sessions.running] == ["eval"]
        assert "○ full_training" in screen_text(app)


async def test_sessions_of_an_earlier_day_show_date_and_time() -> None:
    made = busy_scene()
    for number, seconds in enumerate((86_400, 86_390)):
        made.hub.publish(SessionStarted(f"day-{number}", made.time, "train", made.time - seconds))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("S")
        await pilot.pause()
        rows = [line for line in screen_text(app).splitlines() if "● train" in line]
        starts = [f"{datetime.fromtimestamp(made.time - s, UTC):%d %b %H:%M:%S}" for s in (86_390, 86_400)]
        assert [start in row for start, row in zip(starts, rows, strict=True)] == [True, True]
