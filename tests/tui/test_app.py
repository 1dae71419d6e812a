"""Live app: sessions, sampling rate, themes, help and quitting."""

from __future__ import annotations

import pytest
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Size
from textual.widgets import Input

from gswarm_tui.common.colours import THEME_NAMES
from gswarm_tui.tui.palette import ActionPalette
from tests.terminal import Screen
from tests.tui.conftest import app_on, screen_text
from tests.tui.scene import scene


async def test_session_starts_with_a_suggested_name_and_stops() -> None:
    made = scene(2, 2, 60)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("s", "enter")
        made.advance(5)
        await pilot.pause()
        assert "● session-1 5 s" in screen_text(app)
        await pilot.press("x")
        await pilot.pause()
        assert not made.fleet.sessions.running
        assert "no session" in screen_text(app)


async def test_painted_is_set_after_the_first_screen() -> None:
    app = app_on(scene(2, 2, 60))
    assert not app.painted.is_set()
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert app.painted.is_set()


@pytest.mark.parametrize("size", [(80, 3), (80, 1), (1, 24)])
async def test_palette_works_in_a_tiny_terminal(size: tuple[int, int]) -> None:
    app = app_on(scene(2, 2, 60))
    async with app.run_test(size=size) as pilot:
        await pilot.press("colon", "down", "pagedown", "pageup")
        assert isinstance(app.screen, ActionPalette)
        await pilot.press("escape")
        assert not isinstance(app.screen, ActionPalette)


async def test_fleet_updates_behind_a_dialog() -> None:
    made = scene(2, 2, 60)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("s", "enter", "s")
        made.advance(35)
        await pilot.pause()
        shown = screen_text(app)
        assert "start session" in shown
        assert "● session-1 35 s" in shown


async def test_outdated_resize_is_ignored() -> None:
    app = app_on(scene(2, 2, 60))
    async with app.run_test(size=(100, 30)) as pilot:
        drawn_for: set[int] = set()
        app.screen.screen_layout_refresh_signal.subscribe(
            app.screen, lambda screen: drawn_for.add(screen.outer_size.height)
        )
        app.screen.post_message(events.Resize(Size(100, 31), Size(100, 31)))
        await pilot.pause()
        await pilot.resize_terminal(100, 40)
        assert drawn_for == {30, 40}


@pytest.mark.parametrize(
    "by", ["key", "key in a question", "key in the help", "a size as before", "its return from being stopped"]
)
async def test_redraw_repairs_an_overwritten_screen(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen = app_on(scene(2, 2, 60)), Screen(100, 30)

    def display(_: object, drawn: LayoutUpdate | ChopsUpdate | None) -> None:
        if drawn is not None:
            seen.write(app._written_cells.frame(drawn, app.console))

    monkeypatch.setattr(app, "_display", display)
    async with app.run_test(size=(100, 30)) as pilot:
        if by.startswith("key in"):
            await pilot.press("s" if by == "key in a question" else "question_mark")
        await pilot.pause()
        before = seen.text()
        seen.write("\x1b[2J\x1b[3;1HBroadcast message: the login node goes down at 17:00")
        if by.startswith("key"):
            await pilot.press("ctrl+l")
        elif by == "a size as before":
            app.post_message(events.Resize(app.size, app.size))
        else:
            app.app_resume_signal.publish(app)
        await pilot.pause()
        assert "gpu01" in before
        assert seen.text() == before


async def test_dialog_closes_once_for_two_keys() -> None:
    made = scene(2, 2, 60)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("s")
        field = app.screen.query_one(Input)
        for _ in range(2):  # as by a key that is pressed again before the first was dealt with
            field.post_message(Input.Submitted(field, field.value))
        await pilot.pause()
        assert len(made.fleet.sessions.running) == 1
        assert "no session" not in screen_text(app)


@pytest.mark.parametrize(
    ("keys", "name", "ago"),
    [
        (("s", *"warm up", "tab", *"-20s", "enter"), "warm up", 20),
        (("s", *"train", "tab", *"30s ago", "enter"), "train", 30),
        (("s", *"a, since ever", "enter"), "a, since ever", 0),
        (("s", *"whole", "tab", *"start", "enter"), "whole", 60),
        (("s", *"late", "tab", *"14:00:30", "enter"), "late", 30),
    ],
)
async def test_session_can_be_backdated(keys: tuple[str, ...], name: str, ago: float) -> None:
    made = scene(2, 2, 60)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for key in keys:
            await pilot.press({" ": "space", ",": "comma", ":": "colon", "-": "minus"}.get(key, key))
        await pilot.pause()
        (session,) = made.fleet.sessions.running
        assert session.name == name
        assert session.started_at == made.time - ago


async def test_invalid_start_time_is_reported_in_the_dialog() -> None:
    made = scene(2, 2, 60)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("s", "tab", *"soon", "enter")
        await pilot.pause()
        assert 'can\'t read "soon" as a time' in screen_text(app)
        await pilot.press(*["backspace"] * 4, *"2h ago", "enter")
        await pilot.pause()
        assert '"2h ago" isn\'t in the recording, which goes from 14:00:00 to 14:01:00' in screen_text(app)
        await pilot.press("escape")
        assert not made.fleet.sessions.sessions


async def test_form_error_wraps_in_a_small_terminal() -> None:
    app = app_on(scene(2, 2, 60))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("s", "tab", *"when it got interesting at last", "enter")
        await pilot.pause()
        text = " ".join(line.strip(" │") for line in screen_text(app).splitlines())
        wrong = 'can\'t read "when it got interesting at last" as a time; write '
        assert wrong in text
        assert "…" not in text.partition(wrong)[2].partition("╰")[0]


@pytest.mark.parametrize(("since", "text"), [("now", "started one"), ("-30s", "started one, backdated 30 s")])
async def test_starting_a_session_shows_a_notice(since: str, text: str) -> None:
    app = app_on(scene(2, 2, 60))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("e", "s", *"one", "tab", *since, "enter")
        await pilot.pause()
        assert [n.message for n in app._notifications] == [text]


async def test_session_to_stop_is_picked_from_several() -> None:
    made = scene(2, 2, 60)
    for name in ("one", "two", "three"):
        made.hub.start_session(name)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("x", "down", "enter")
        await pilot.pause()
        assert [s.name for s in made.fleet.sessions.running] == ["one", "three"]


async def test_quit_confirms_and_stops_running_sessions() -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("q")
        await pilot.pause()
        assert "1 session running: train" in screen_text(app)
        assert "Quitting ends it and closes the recording." in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert app.is_running
        assert len(made.fleet.sessions.running) == 1
        await pilot.press("q", "y")
    assert app.return_value == "quit"
    assert not made.fleet.sessions.running


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
async def test_second_quit_key_confirms(key: str) -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(key)
        assert "1 session running: train" in screen_text(app)
        await pilot.press(key)
    assert app.return_value == "quit"
    assert not made.fleet.sessions.running


async def test_quit_without_sessions_needs_no_confirmation() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("q")
    assert app.return_value == "quit"


async def test_requested_quit_stops_sessions_without_confirmation() -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)):
        app.request_quit("SIGTERM")
    assert app.return_value == "SIGTERM"
    assert not made.fleet.sessions.running
    assert made.hub.flushed == []


async def test_keys_change_the_interval() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("plus")
        await pilot.pause()
        assert made.fleet.interval_s == 0.5
        assert "every 0.5 s" in screen_text(app)
        await pilot.press(*["plus"] * 5)
        assert made.fleet.interval_s == 0.1
        await pilot.press(*["minus"] * 12)
        assert made.fleet.interval_s == 60


async def test_theme_key_cycles_through_themes() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(100, 30)) as pilot:
        for theme in (*THEME_NAMES[1:], THEME_NAMES[0]):
            await pilot.press("t")
            await pilot.pause()
            assert app.theme == theme


async def test_help_shows_the_keys_of_its_screen() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(100, 60)) as pilot:
        await pilot.press("question_mark")
        await pilot.pause()
        assert "util<5 & power>300" in screen_text(app)
        await pilot.press("escape", "e", "question_mark")
        await pilot.pause()
        assert "util<5 & power>300" not in screen_text(app)
        assert "Go back" in screen_text(app)


@pytest.mark.parametrize("keys", [("enter",), ("enter", "enter"), ("S",), ("e",)])
async def test_ticks_while_a_screen_opens_are_harmless(keys: tuple[str, ...]) -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for key in keys:
            made.advance(1)
            app.post_message(events.Key(key, key if len(key) == 1 else None))
            made.advance(1)
            app.call_next(made.hub.flush)
            await pilot.pause()
        assert app.front.SCREEN != "fleet"


async def test_open_screen_is_not_opened_again() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("S", "e", "S", "e", "e")
        await pilot.pause()
        assert app.front.SCREEN == "events"
        assert len(app.screen_stack) <= 3
        await pilot.press("f")
        await pilot.pause()
        assert app.front.SCREEN == "fleet"
