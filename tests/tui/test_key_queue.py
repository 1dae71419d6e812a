"""Keys that are typed faster than screens open."""

from __future__ import annotations

import asyncio

import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from gswarm_tui.tui.screens.gpu import GpuScreen
from tests.tui.conftest import app_on
from tests.tui.scene import scene

NAMES = {"/": "slash", "<": "less_than_sign", "\r": "enter", "\n": "ctrl+j", "&": "ampersand"}


def typed(text: str) -> list[Key]:
    """Return the key events of text that arrives at once."""
    return [Key(NAMES.get(char, char), char if char not in "\r\n" else None) for char in text]


async def test_keys_typed_ahead_reach_the_filter() -> None:
    app = app_on(scene(4, 8, 60).recording())
    async with app.run_test(size=(120, 40)) as pilot:
        theme = app.theme
        for key in typed("/util<5&t"):
            app.post_message(key)
        async with asyncio.timeout(30):
            while app.screen.query_one("#filter", Input).value != "util<5&t":
                await pilot.pause(0.01)
        assert app.theme == theme


async def test_pasted_text_keeps_its_position_among_keys() -> None:
    app = app_on(scene(4, 8, 60).recording())
    async with app.run_test(size=(120, 40)) as pilot:
        for event in (*typed("/ut"), Paste("il"), *typed("<"), Paste("5")):
            app.post_message(event)
        async with asyncio.timeout(30):
            while len(app.screen.query_one("#filter", Input).value) < 6:
                await pilot.pause(0.01)
        assert app.screen.query_one("#filter", Input).value == "util<5"


@pytest.mark.parametrize("enter", ["\r", "\n"])
async def test_keys_typed_ahead_reach_the_dialog(enter: str) -> None:
    """Also keys typed before the terminal is in raw mode, which turns ⏎ into a line feed."""
    made = scene(4, 8, 60).recording()
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        for key in typed(f"stq{enter}j"):
            app.post_message(key)
        async with asyncio.timeout(30):
            while not made.fleet.sessions.running or app.fleet_screen.heatmap.at != ("gpu02", 0):
                await pilot.pause(0.01)
        assert [session.name for session in made.fleet.sessions.running] == ["tq"]


@pytest.mark.parametrize("enter", ["\r", "\n"])
async def test_keys_go_to_the_screen_that_the_previous_key_opened(enter: str) -> None:
    app = app_on(scene(4, 8, 60).recording())
    async with app.run_test(size=(120, 40)) as pilot:
        for key in typed(f"{enter}{enter}l"):
            app.post_message(key)
        async with asyncio.timeout(30):
            while not isinstance(app.screen, GpuScreen) or app.screen.gpu != 1:
                await pilot.pause(0.01)
