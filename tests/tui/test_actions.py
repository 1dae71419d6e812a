"""Keys, footer, help and palette come from the table of actions."""

from __future__ import annotations

import itertools
import pkgutil
from collections import Counter
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest
from rich.cells import cell_len
from textual.screen import Screen

from gswarm_tui.analysis.profiles import Profile
from gswarm_tui.asking.asking import Asking
from gswarm_tui.tui import screens
from gswarm_tui.tui.actions import (
    ASK,
    FINDING,
    FLEET,
    LIVE,
    MODES,
    PAST,
    PROFILE,
    QUERY,
    REPLAY,
    SCREENS,
    SQL,
    TRACE,
    actions_of,
)
from gswarm_tui.tui.palette import palette_entries
from gswarm_tui.tui.screens.ask import AskScreen
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.computed import ComputedScreen
from gswarm_tui.tui.screens.dialogs import match_score
from gswarm_tui.tui.screens.findings import FindingKeys, FindingScreen
from gswarm_tui.tui.screens.help import help_lines
from gswarm_tui.tui.screens.profile import ProfileScreen, TablesScreen, TraceScreen
from gswarm_tui.tui.widgets.lines import footer_line
from tests.tui.conftest import app_on, line_with, shows
from tests.tui.scene import scene

WAYS = {
    "fleet": (),
    "node": ("enter",),
    "gpu": ("enter", "enter"),
    "findings": ("exclamation_mark",),
    "runs": ("R",),
    "sessions": ("S",),
    "events": ("e",),
    "sql": ("Q", "tab"),
    "session": ("S", "enter"),
    "comparison": ("S", "c", "enter"),
}
SOME_PROFILE = Profile(1, 1, "r.nsys-rep", "nsys", "gpu01", 0, datetime.min, datetime.max)  # noqa: DTZ901
REACHABLE = [(screen, mode) for screen in SCREENS for mode in MODES if mode != QUERY or screen == SQL]


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
def test_no_key_is_bound_twice_on_a_screen(screen: str, mode: str) -> None:
    keys = Counter(key for action in actions_of(screen, mode) for key in action.keys)
    assert [key for key, times in keys.items() if times > 1] == []


@pytest.mark.parametrize("screen", SCREENS)
async def test_every_action_exists_and_is_bound_to_its_keys(screen: str) -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("one")
    made.hub.start_session("two")
    app = app_on(made)
    async with app.run_test(size=(120, 40)) as pilot:
        if screen == PROFILE:
            app.show(ProfileScreen(SOME_PROFILE))
        if screen == ASK:
            made.client.asking = Asking(made.hub, tuple, itertools.count(1), {})
            app.show(AskScreen(made.client.fetch, made.client.asking.state()))
        if screen == FINDING:
            app.show(FindingScreen(""))
        if screen == TRACE:
            app.show(TraceScreen(SOME_PROFILE))
        await pilot.press(*WAYS.get(screen, ()))
        for mode in (mode for reachable, mode in REACHABLE if reachable == screen):
            app.mode = mode
            await pilot.pause()
            here: Screen[object] = app.screen
            assert isinstance(here, ViewerScreen)
            assert screen == here.SCREEN
            for action in actions_of(screen, mode):
                owner = here if action.screens else app
                assert hasattr(owner, f"action_{action.name.split('(')[0]}"), (mode, action.name)
                for key in action.keys:
                    bound = here.active_bindings[key]
                    assert (bound.node, bound.binding.action) == (owner, action.name), mode


for _module in pkgutil.iter_modules(screens.__path__, f"{screens.__name__}."):
    import_module(_module.name)
CLASSES: dict[str, type[ViewerScreen]] = {
    made.SCREEN: made
    for base in (ViewerScreen, ComputedScreen, TablesScreen, FindingKeys)
    for made in base.__subclasses__()
    if hasattr(made, "SCREEN")
}

FRAME = 5
"""Columns of help's border, padding and scroll bar."""


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
def test_help_and_footer_show_the_keys_of_the_table(screen: str, mode: str) -> None:
    helped = ["".join(span.text for span in line) for line in help_lines(CLASSES[screen], mode, 120)]
    for action in actions_of(screen, mode):
        assert any(action.keys_shown in line and action.help in line for line in helped), action.name
    assert max(map(cell_len, helped)) <= 80 - FRAME
    foot = "".join(span.text for span in footer_line(screen, 300, mode))
    for action in actions_of(screen, mode):
        assert (f" {action.label}" in foot) or not action.footer


def help_text(screen: str, mode: str = LIVE) -> str:
    return "\n".join("".join(span.text for span in line) for line in help_lines(CLASSES[screen], mode, 120))


@pytest.mark.parametrize(("screen", "mode"), REACHABLE)
def test_help_begins_with_what_the_screen_shows(screen: str, mode: str) -> None:
    about, _, words = help_text(screen, mode).partition("\n\n")
    assert about.endswith(".")
    assert words.startswith("On this screen\n")


@pytest.mark.parametrize(
    ("screen", "word"),
    [
        ("fleet", "  busy 30/32      GPUs with a utilisation of 20 % or more"),
        ("fleet", "  lowest util     the GPU with the lowest utilisation now"),
        ("fleet", "  lag             delay of the newest sample on the node"),
        ("fleet", "  GB/s in/out     received and sent by the node"),
        ("session", "  bubbles         idle phases of a GPU between busy ones"),
    ],
)
def test_help_explains_the_words_of_its_screen(screen: str, word: str) -> None:
    assert word in help_text(screen)


PICTURES = Path(__file__).parent / "pictures"
PICTURES_OF = {"minutes": FLEET, "found": FLEET, "past": FLEET, "replay": FLEET}
"""Screens in pictures that have other names."""
TEXT_AND_LINES = set("·×°−─")
"""Characters of sentences and units, and the lines between parts of a screen."""


def sign_class(sign: str) -> str:
    """Return one sign for all dots of curves, and one for all heights and lengths of blocks."""
    return "⠤" if "\u2800" <= sign <= "\u28ff" else "█" if "\u2581" <= sign <= "\u258f" else sign


@pytest.mark.parametrize("picture", sorted(PICTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_help_explains_every_sign_on_its_screen(picture: Path) -> None:
    name = picture.stem.removeprefix("marks-").partition("-")[0]
    mode = {"replay": REPLAY, "past": PAST}.get(name, LIVE)
    helped = set(map(sign_class, help_text(PICTURES_OF.get(name, name), mode)))
    shown = {sign_class(sign) for sign in picture.read_text() if ord(sign) > 127 and not sign.isalpha()}
    assert shown - helped - TEXT_AND_LINES == set()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("width", [40, 80, 120])
def test_footer_fits_and_always_shows_help_and_quit(width: int, mode: str) -> None:
    for screen in SCREENS:
        foot = "".join(span.text for span in footer_line(screen, width, mode))
        assert len(foot) <= width
        assert "? help" in foot
        assert "q quit" in foot


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("zoom", "Change size of GPUs"),
        ("search", "Filter: util<5 & power>300"),
        ("pause", "Look back while recording continues"),
        ("export", "Show sessions"),
        ("plot", "Show sessions"),
        ("outliers", "Show findings"),
        ("refresh", "Redraw screen"),
        ("exit", "Quit; ends recording unless attached"),
        ("undo", "Undo stop within 10 s"),
        ("nvlink", "Show NVLink tx"),
        ("power", "Show power"),
        ("open 02", "Open gpu02"),
        ("ansi", "Switch to ansi"),
        ("THEME", "Switch theme"),
    ],
)
async def test_palette_finds_actions_by_the_words_of_users(typed: str, first: str) -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(120, 40)):
        scored = [(match_score(typed, one), one.label) for one in palette_entries(app.front)]
    found = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
    assert found[0][1] == first
    assert len(found) <= 12


async def test_palette_command_shows_a_metric_on_the_fleet_screen() -> None:
    app = app_on(scene(4, 8, 30))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("e", "colon", *"nvlink")
        await shows(app, pilot, "Show NVLink tx")
        assert "NVLink" in line_with(app, "Show NVLink tx ").split("tx", 1)[1], "its meaning on its line"
        await pilot.press("enter")
        await shows(app, pilot, " NVLink tx GB/s")
        assert app.front.SCREEN == "fleet"


async def test_paging_in_a_palette_without_a_line_is_harmless() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(80, 4)) as pilot:
        await pilot.press("colon")
        await pilot.pause(0.3)
        await pilot.press("pagedown", "pageup", "escape")
        assert app.front.SCREEN == "fleet"
