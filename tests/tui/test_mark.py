"""Setting marks, and showing them in events and plots."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from gswarm_tui.tui.app import GswarmApp
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import scene


async def fill_in(app: GswarmApp, pilot: Pilot[str], *texts: str) -> None:
    """Fill in the fields of the dialog in front, and accept it."""
    for number, text in enumerate(texts):
        app.screen.query_one(f"#field-{number}").value = text  # type: ignore[attr-defined]  # an Input
    await pilot.press("enter")
    await pilot.pause()


async def test_mark_with_values_is_listed_as_an_event() -> None:
    made = scene(2, 2, 20).recording()
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("M")
        await fill_in(app, pilot, "epoch 3", "loss=1.25 acc=0.9 note='two words'")
        mark = made.fleet.event_log[-1]
        assert (mark.kind, mark.message, mark.at) == ("mark", "epoch 3", made.time)
        assert json.loads(mark.detail or "") == {"loss": 1.25, "acc": 0.9, "note": "two words"}
        await pilot.press("e")
        await pilot.pause()
        assert "epoch 3 · loss=1.25 acc=0.9 note=two words" in line_with(app, "mark")


async def test_invalid_mark_is_reported_in_the_dialog() -> None:
    made = scene(1, 1, 5).recording()
    app = app_on(made)
    before = made.fleet.logged_count
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("M")
        await fill_in(app, pilot, " ")
        assert "a mark needs a name" in screen_text(app)
        await fill_in(app, pilot, "epoch", "loss")
        assert "'loss' isn't of the form KEY=VALUE" in screen_text(app)
        await fill_in(app, pilot, "epoch", "note='two")
        assert "a quotation mark is missing" in screen_text(app)
        await fill_in(app, pilot, "epoch", "", "-2h")
        assert '"-2h" isn\'t in the recording, which goes from 14:00:00 to 14:00:05' in screen_text(app)
        await pilot.press("escape")
        assert made.fleet.logged_count == before


@pytest.mark.parametrize(("keys", "name"), [(("enter", "enter"), "gpu"), (("enter",), "node")])
async def test_marks_are_drawn_in_plots_at_their_time(
    keys: tuple[str, ...], name: str, matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    made = scene(2, 4, 30)
    made.hub.start_session("train", started_at=made.time - 25)
    made.hub.mark("epoch 1", {})
    made.advance(15)
    made.hub.mark("epoch 2", {})
    made.advance(10)
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*keys)
        await pilot.pause()
        matches_picture(app, f"marks-{name}-120x40")
