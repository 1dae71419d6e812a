"""Live app: sessions, sampling rate, themes, help and quitting."""

from __future__ import annotations

import re

import pytest
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate

from gswarm_tui.control.intents import Detach, StopRecording
from gswarm_tui.fleet.events import RecorderStatus
from gswarm_tui.tui.app import GswarmApp
from tests.terminal import Screen
from tests.tui.conftest import app_on, screen_text, shows
from tests.tui.scene import scene


async def test_session_starts_with_a_suggested_name_and_stops() -> None:
    made = scene(2, 2, 60).recording()
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


@pytest.mark.parametrize(
    "by", ["key", "key in a question", "key in the help", "a size as before", "its return from being stopped"]
)
async def test_redraw_repairs_an_overwritten_screen(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, seen = app_on(scene(2, 2, 60).recording()), Screen(100, 30)

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


async def test_session_can_be_backdated() -> None:
    made = scene(2, 2, 60).recording()
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for name, since, ago in (
            ("warm up", "-20s", 20),
            ("train", "30s ago", 30),
            ("a, since ever", "", 0),
            ("whole", "start", 60),
            ("late", "14:00:30", 30),
        ):
            await pilot.press("s", *name, "tab", *since, "enter")
            await pilot.pause()
            (started,) = (one.started_at for one in made.fleet.sessions.running if one.name == name)
            assert started == made.time - ago, name


async def test_invalid_start_time_is_reported_in_the_dialog() -> None:
    made = scene(2, 2, 60).recording()
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


async def test_session_to_stop_is_picked_from_several() -> None:
    made = scene(2, 2, 60).recording()
    for name in ("one", "two", "three"):
        made.hub.start_session(name)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("x", "down", "enter")
        await pilot.pause()
        assert [s.name for s in made.fleet.sessions.running] == ["one", "three"]


async def test_only_the_offered_key_quits() -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for key in ("escape", "enter", "n", "q", "ctrl+c", "ctrl+q"):
            await pilot.press("q")
            await pilot.pause()
            assert "quit?" in screen_text(app)
            await pilot.press(key, "escape")
            await pilot.pause()
            assert app.is_running, key
            assert "quit?" not in screen_text(app), key
            assert len(made.fleet.sessions.running) == 1


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
    assert made.client.intents == [StopRecording("the screen was quit")]


@pytest.mark.parametrize("way", ["q", "ctrl+c", "ctrl+q", "footer"])
async def test_quit_confirms_after_more_than_a_minute(way: str) -> None:
    app = app_on(scene(2, 2, 61).recording())
    async with app.run_test(size=(100, 30)) as pilot:
        if way == "footer":
            at = screen_text(app).splitlines()[-1].index("quit")
            await pilot.click(offset=(at, 29))
        else:
            await pilot.press(way)
        await pilot.pause()
        assert "Recording for 61 s." in screen_text(app)
        await pilot.press("y")
    assert app.return_value == "quit"


async def test_q_goes_back_from_a_detail_screen() -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for way in (("e",), ("S",), ("enter",), ("enter", "enter"), ("S", "enter")):
            await pilot.press(*way)
            assert app.front.SCREEN != "fleet"
            await pilot.press(*["q"] * len(way))
            await pilot.pause()
            assert app.front.SCREEN == "fleet", way
            assert app.is_running, way


@pytest.mark.parametrize("seconds", [5, 60])
async def test_quit_of_a_short_run_needs_no_confirmation(seconds: int) -> None:
    app = app_on(scene(2, 2, seconds).recording())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("q")
    assert app.return_value == "quit"


async def test_requested_quit_ends_the_recorder_without_confirmation() -> None:
    made = scene(2, 2, 5)
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        app.request_quit("SIGTERM")
        await pilot.pause()
    assert made.client.intents == [StopRecording("the screen was quit")]
    assert made.hub.flushed == []


async def test_dialog_changes_the_interval_as_an_event() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("i")
        await pilot.pause()
        assert "sampling interval of all nodes" in screen_text(app)
        assert "accept  esc cancel" in screen_text(app), "there is no next line"
        assert made.fleet.interval_s == 1
        await pilot.press(*"2x", "enter")
        await pilot.pause()
        assert "isn't a time such as 1, 0.5s or 500ms" in screen_text(app)
        await pilot.press(*["backspace"] * 2, *"90", "enter")
        await pilot.pause()
        assert "isn't between 0.1 s and 60 s" in screen_text(app)
        assert made.fleet.interval_s == 1
        await pilot.press(*["backspace"] * 2, *"500ms", "enter", "e")
        await pilot.pause()
        assert made.fleet.interval_s == 0.5
        assert "sampling interval changed from 1 s to 0.5 s" in screen_text(app)


async def test_dialog_switches_metric_groups_as_an_event() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 50)) as pilot:
        await pilot.press("I")
        await pilot.pause()
        assert "switch a metric group of all nodes" in screen_text(app)
        assert re.findall(r" off +(\w+)", screen_text(app)) == ["counters", "by"]
        await pilot.press(*"pcie", "enter")
        made.advance(3)
        await pilot.press("I", *"processes", "enter", "e")
        made.advance(3)
        await pilot.pause()
        assert made.fleet.metrics == ("core", "nvlink", "activity", "health", "host")
        assert "metrics: processes switched off" in screen_text(app)
        await pilot.press("q", "enter", "shift+tab")
        await pilot.pause()
        rows = [line for line in screen_text(app).splitlines() if "switched off" in line]
        listed = [line.split("  ")[0].strip("▸ ") for line in rows]
        assert listed == ["counters", "PCIe rx", "PCIe tx", "processes"]


async def test_counters_are_refused_in_a_job_that_shares_its_nodes() -> None:
    made = scene(2, 2, 5)
    made.hub.counters_refusal = "job 4711 shares its nodes; request it with --exclusive"
    app = app_on(made)
    async with app.run_test(size=(120, 50), notifications=True) as pilot:
        await pilot.press("I", *"counters", "enter")
        await shows(app, pilot, "request it with --exclusive")
        assert "counters" not in made.fleet.metrics


async def test_detaching_leaves_the_recorder_and_its_sessions() -> None:
    made = scene(2, 2, 5)
    made.recording()
    made.hub.start_session("train")
    app = app_on(made)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("D")
        await pilot.pause()
    assert app.return_value == "detached"
    assert made.client.intents == [Detach()]
    assert [session.name for session in made.fleet.sessions.running] == ["train"]


async def test_detaching_is_refused_where_nothing_could_go_on() -> None:
    app = GswarmApp(scene(2, 2, 5).client, why_not_detached="nothing is recorded")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("D")
        await shows(app, pilot, "can't detach: nothing is recorded")


async def test_footer_without_a_recording_has_only_keys_that_work() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(250, 30)) as pilot:
        foot = screen_text(app).splitlines()[-1]
        assert not [
            key for key in ("s start", "x stop", "sessions", "SQL", "look back", "mark") if key in foot
        ]
        assert all(key in foot for key in ("/ filter", "e events", "! findings", "? help"))
        made.hub.recorded(RecorderStatus("run.duckdb", 1, 1, 0, {}, ""))
        app.update_view()
        await pilot.pause()
        assert "s start" in screen_text(app).splitlines()[-1]


@pytest.mark.parametrize(
    ("key", "reason"), [("s", "no session started: nothing is recorded"), ("M", "no mark set: nothing")]
)
async def test_sessions_and_marks_are_refused_without_a_recording(key: str, reason: str) -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        assert "s starts one" not in screen_text(app)
        await pilot.press(key)
        await pilot.pause()
        await shows(app, pilot, reason)
        assert [n.message.endswith("start gswarm-tui without --no-record") for n in app._notifications] == [
            True
        ]
        assert len(app.screen_stack) == 1
        assert not made.fleet.sessions.sessions
        assert "mark" not in {event.kind for event in made.fleet.event_log}


async def test_stop_of_a_session_can_be_undone_for_ten_seconds() -> None:
    made = scene(2, 2, 5).recording()
    for name in ("one", "two"):
        made.hub.start_session(name)
    app = app_on(made)
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.press("x", "enter")
        made.advance(9)
        await pilot.press("x")
        await pilot.pause()
        await shows(app, pilot, "stopped two after 9 s; u undoes it")
        made.advance(2)
        await pilot.press("u")
        await pilot.pause()
        assert [s.name for s in made.fleet.sessions.running] == ["two"]
        assert "● two 11 s" in screen_text(app)
        await pilot.press("u")
        await pilot.pause()
        assert [s.name for s in made.fleet.sessions.running] == ["two"]
        await shows(app, pilot, "no session was stopped in the last 10 s")


async def test_key_without_effect_says_why() -> None:
    app = app_on(scene(2, 2, 5))
    async with app.run_test(size=(120, 30)) as pilot:
        for keys, reason in (
            (("comma",), ", works only while looking back; space looks back"),
            (("N",), "N works only while looking back"),
            (("r",), "r works only on: sessions"),
            (("e", "m"), "m works only on: fleet, node"),
            (("n",), "n works only on: fleet, sessions"),
        ):
            app.clear_notifications()
            await pilot.press(*keys)
            await pilot.pause()
            assert [n.message.startswith(reason) for n in app._notifications] == [True], keys
            assert app.is_running


async def test_ticks_while_a_screen_opens_are_harmless() -> None:
    made = scene(2, 2, 5)
    app = app_on(made)
    async with app.run_test(size=(100, 30)) as pilot:
        for keys in (("enter",), ("enter", "enter"), ("S",), ("e",)):
            for key in keys:
                made.advance(1)
                app.post_message(events.Key(key, key if len(key) == 1 else None))
                made.advance(1)
                app.call_next(made.hub.flush)
                await pilot.pause()
            assert app.front.SCREEN != "fleet", keys
            await pilot.press("f")
            await pilot.pause()
            assert app.front.SCREEN == "fleet"


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
