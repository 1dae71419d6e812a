"""Events screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gswarm_agent.frame import ERROR, INFO, WARNING
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.tui.app import GswarmApp
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import Scene, scene


def scene_with_events(number: int, *, severity: str = INFO, message: str = "") -> Scene:
    """Return a scene with this many events and no others."""
    made = Scene(nodes=1, gpus=1)
    return log_events(made, number, severity=severity, message=message)


def log_events(made: Scene, number: int, *, severity: str = INFO, message: str = "") -> Scene:
    for at in range(number):
        words = message or f"thing {made.fleet.logged_count + 1}"
        made.hub.publish(EventLogged(made.time + at, "mark", severity, words, "gpu01", 0))
    made.time += number
    made.hub.flush()
    return made


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_events_match_picture(
    size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    made = scene(nodes=3, gpus=4, seconds=40)
    made.hub.start_session("full_training")
    made.lose("gpu03", "connection reset by peer", "is the job over? squeue tells").advance(8)
    made.silence("gpu02").advance(5)
    app = app_on(made.recording())
    async with app.run_test(size=size) as pilot:
        await pilot.press("e")
        await pilot.pause()
        matches_picture(app, f"events-{size[0]}x{size[1]}")


async def test_table_follows_the_newest_event() -> None:
    made = scene_with_events(100)
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert line_with(app, "▸").endswith("thing 100")
        log_events(made, 1)
        await pilot.pause()
        assert line_with(app, "▸").endswith("thing 101")
        await pilot.press("pageup")
        here = line_with(app, "▸")
        log_events(made, 5)
        await pilot.pause()
        assert line_with(app, "▸") == here
        assert "thing 106" not in screen_text(app)
        assert "G follows" in screen_text(app)
        await pilot.press("G")
        log_events(made, 1)
        await pilot.pause()
        assert line_with(app, "▸").endswith("thing 107")


async def test_oldest_events_are_dropped_above_the_limit() -> None:
    made = scene_with_events(5_501)
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert "5,000 events" in screen_text(app)
        await pilot.press("home")
        assert line_with(app, "▸").endswith("thing 502")
        log_events(made, 501)
        await pilot.pause()
        assert "5,000 events" in screen_text(app)
        assert line_with(app, "▸").endswith("thing 1003")


async def test_events_are_filtered_by_severity() -> None:
    made = scene_with_events(2)
    log_events(made, 1, severity=WARNING, message="warm")
    log_events(made, 1, severity=ERROR, message="gone")
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e")
        assert "▲" in line_with(app, "warm")
        assert "╳" in line_with(app, "gone")
        await pilot.press("v")
        assert "thing" not in screen_text(app)
        assert "warm" in screen_text(app)
        assert "2 hidden" in screen_text(app)
        await pilot.press("v")
        assert "warm" not in screen_text(app)
        await pilot.press("v")
        assert "thing 1" in screen_text(app)


async def test_text_filter_applies_until_escape() -> None:
    made = scene_with_events(3)
    log_events(made, 1, message="fan is LOUD [red]\x1b[2J")
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "slash", *"loud", "enter")
        await pilot.pause()
        assert "thing" not in screen_text(app)
        assert "fan is LOUD [red]�[2J" in screen_text(app)
        assert "with “loud”" in screen_text(app)
        await pilot.press("escape")
        assert "thing 3" in screen_text(app)
        await pilot.press("escape")
        assert "thing 3 " not in screen_text(app)
        assert app.front.SCREEN == "fleet"


async def test_events_of_one_kind_and_minute_share_a_row_until_z_lists_them() -> None:
    made = Scene(nodes=21, gpus=8)
    for gpu in range(38):
        message, name = "throttled: power cap", f"gpu{gpu % 21 + 1:02}"
        made.hub.publish(EventLogged(made.time + gpu, "throttle", INFO, message, name, gpu % 8))
    made.hub.flush()
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("e")
        await pilot.pause()
        assert "power cap: 38 GPUs on 21 nodes" in line_with(app, "▸")
        assert "38 events" in screen_text(app)
        assert "in 1 line" in screen_text(app)
        await pilot.press("slash", *"gpu03", "enter")
        await pilot.pause()
        assert "power cap: GPUs 2, 7" in line_with(app, "▸")
        await pilot.press("z")
        await pilot.pause()
        assert "throttled: power cap" in line_with(app, "▸")
        assert "gpu03" in line_with(app, "▸")


async def test_cursor_stays_on_its_event_when_an_earlier_one_arrives() -> None:
    made = scene_with_events(3)
    app = app_on(made)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("e", "up")
        await pilot.pause()
        assert line_with(app, "▸").endswith("thing 2")
        made.hub.publish(EventLogged(made.time - 9, "throttle_end", INFO, "no longer throttled", "gpu01", 0))
        made.hub.flush()
        await pilot.pause()
        assert line_with(app, "▸").endswith("thing 2")
        await pilot.press("home")
        assert line_with(app, "▸").endswith("no longer throttled")
