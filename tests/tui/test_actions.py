"""Keys, footer, help and palette come from the table of actions."""

from __future__ import annotations

from collections import Counter

import pytest
from textual.screen import Screen

from gswarm_tui.tui.actions import ACTIONS, FLEET, LIVE, MODES, QUERY, SCREENS, SESSIONS, SQL, actions_of
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.palette import palette_entries
from gswarm_tui.tui.screens.base import ViewerApp, ViewerScreen
from gswarm_tui.tui.screens.help import help_lines
from gswarm_tui.tui.widgets.footer import footer_line
from tests.tui.conftest import app_on
from tests.tui.scene import scene

WAYS = {
    "fleet": (),
    "node": ("enter",),
    "gpu": ("enter", "enter"),
    "sessions": ("S",),
    "events": ("e",),
    "sql": ("Q", "tab"),
    "session": ("S", "enter"),
    "comparison": ("S", "p", "p", "c"),
}
REACHABLE = [(screen, mode) for screen in SCREENS for mode in MODES if mode != QUERY or screen == SQL]


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
def test_no_key_is_bound_twice_on_a_screen(screen: str, mode: str) -> None:
    keys = Counter(key for action in actions_of(screen, mode) for key in action.keys)
    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
async def test_every_action_exists_and_is_bound_to_its_keys(screen: str, mode: str) -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("one")
    made.hub.start_session("two")
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*WAYS[screen])
        app.mode = mode
        await pilot.pause()
        here: Screen[object] = app.screen
        assert isinstance(here, ViewerScreen)
        assert screen == here.SCREEN
        for action in actions_of(screen, mode):
            owner = here if action.screens else app
            assert hasattr(owner, f"action_{action.name.split('(')[0]}"), action.name
            for key in action.keys:
                bound = here.active_bindings[key]
                assert (bound.node, bound.binding.action) == (owner, action.name)


FRAME = 5
"""Columns of help's border, padding and scroll bar."""


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
def test_help_and_footer_show_the_keys_of_the_table(screen: str, mode: str) -> None:
    helped = ["".join(span.text for span in line) for line in help_lines(screen, mode)]
    for action in actions_of(screen, mode):
        assert any(action.keys_shown in line and action.help in line for line in helped), action.name
    assert max(map(len, helped)) <= 80 - FRAME
    foot = "".join(span.text for span in footer_line(screen, 300, mode))
    for action in actions_of(screen, mode):
        assert (f" {action.label}" in foot) or not action.footer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_footer_fits_and_always_shows_help_and_quit(width: int, mode: str) -> None:
    for screen in SCREENS:
        foot = "".join(span.text for span in footer_line(screen, width, mode))
        assert len(foot) <= width
        assert "? help" in foot
        assert "q quit" in foot


@pytest.mark.parametrize(("screen", "label"), [(FLEET, "S sessions"), (SESSIONS, "c compare")])
def test_footer_of_a_small_terminal_keeps_important_keys(screen: str, label: str) -> None:
    assert label in "".join(span.text for span in footer_line(screen, 80))


async def test_palette_lists_every_action_metric_and_node() -> None:
    app: GswarmApp = app_on(scene(2, 2, 5))
    async with app.run_test(size=(120, 40)):
        viewer: ViewerApp = app  # the app has all that its screens use
        assert app.front.viewer is viewer
        offered = {entry.title for entry in palette_entries(app.front)}
    for action in ACTIONS:
        live = not action.modes or LIVE in action.modes
        if live and action.palette and (not action.screens or "fleet" in action.screens):
            assert action.help in offered
    assert {"Show NVLink tx", "Show node iowait", "Open gpu02", "Theme light"} <= offered
