"""Keys, footer, help and palette all come from one table."""

from __future__ import annotations

from collections import Counter

import pytest
from textual.screen import Screen

from gswarm_tui.tui.actions import ACTIONS, FLEET, LIVE, MODES, PLACES, SESSIONS, actions_of
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.palette import palette_entries
from gswarm_tui.tui.screens.base import ViewerScreen
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
def test_no_key_is_bound_twice_in_a_place(place: str, mode: str) -> None:
    keys = Counter(key for action in actions_of(place, mode) for key in action.keys)
    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
async def test_every_action_of_a_place_can_be_run_and_is_bound_to_its_keys(place: str, mode: str) -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("one")
    made.hub.start_session("two")
    app = app_on(made)
    app.mode = mode
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press(*WAYS[place])
        await pilot.pause()
        here: Screen[object] = app.screen
        assert isinstance(here, ViewerScreen)
        assert place == here.PLACE
        for action in actions_of(place, mode):
            owner = here if action.places else app
            assert hasattr(owner, f"action_{action.name.split('(')[0]}"), action.name
            for key in action.keys:
                bound = here.active_bindings[key]
                assert (bound.node, bound.binding.action) == (owner, action.name)


FRAME = 5
"""Columns of help's border, padding and scroll bar."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", PLACES)
def test_help_and_footer_tell_the_keys_of_the_table(place: str, mode: str) -> None:
    helped = ["".join(span.text for span in line) for line in help_lines(place, mode)]
    for action in actions_of(place, mode):
        assert any(action.keys_shown in line and action.help in line for line in helped), action.name
    assert max(map(len, helped)) <= 80 - FRAME
    foot = "".join(span.text for span in footer_line(place, 300, mode))
    for action in actions_of(place, mode):
        assert (f" {action.label}" in foot) or not action.footer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_footer_fits_and_always_tells_how_to_get_help_and_out(width: int, mode: str) -> None:
    for place in PLACES:
        foot = "".join(span.text for span in footer_line(place, width, mode))
        assert len(foot) <= width
        assert "? help" in foot
        assert "q quit" in foot


@pytest.mark.parametrize(("place", "label"), [(FLEET, "S sessions"), (SESSIONS, "c compare")])
def test_what_is_not_easily_guessed_is_in_the_footer_of_a_small_terminal(place: str, label: str) -> None:
    assert label in "".join(span.text for span in footer_line(place, 80))


async def test_the_palette_offers_every_action_metric_and_node() -> None:
    app: GswarmApp = app_on(scene(2, 2, 5))
    async with app.run_test(size=(120, 40)):
        offered = {command.name for command in palette_entries(app)}
    for action in ACTIONS:
        live = not action.modes or LIVE in action.modes
        if live and action.palette and (not action.places or "fleet" in action.places):
            assert action.help in offered
    assert {"Show NVLink tx", "Show node iowait", "Open gpu02", "Theme light"} <= offered
