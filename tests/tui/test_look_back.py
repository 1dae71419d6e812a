"""Looking back while the fleet and its recording continue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.events import Key
from textual.pilot import Pilot

from gswarm_tui.analysis.periods import load_sessions
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import DASH
from gswarm_tui.playback.player import Player, Playhead
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.tui.app import GswarmApp
from tests.recorded import begin
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.deck import Clock, settle
from tests.tui.scene import BEGINNING, Scene
from tests.tui.test_session import computed


class Live:
    """The app over a scene that is being recorded; ``advance`` puts its samples on disk."""

    def __init__(self, path: Path) -> None:
        self.made = Scene(2, 2)
        self.recorder: FileWriter = begin(path, self.made)
        self.clock = Clock()
        self.app: GswarmApp = app_on(self.made)
        self.app._past = self.past

    def past(self) -> Player:
        replay = RecordedSource(self.recorder.queries(), 1, self.until, lambda: self.made.fleet)
        return Player(replay, Playhead(BEGINNING, self.until(), self.until(), self.clock), self.clock)

    def until(self) -> float:
        return self.made.time - 1

    async def advance(self, seconds: float, pilot: Pilot[str]) -> None:
        """Advance the time until its samples are on disk and shown."""
        self.made.advance(seconds)
        self.made.hub.recorded(await asyncio.wrap_future(self.recorder.commit()))
        self.app.update_view()
        await pilot.pause()

    async def press(self, pilot: Pilot[str], *keys: str) -> None:
        for key in keys:
            await pilot.press(key)
            while self.app._reading:
                await pilot.pause(0.01)
            if self.app.player is not None:
                await settle(self.app, self.app.player, pilot)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    made = Live(tmp_path / "run.duckdb")
    yield made
    await asyncio.to_thread(made.recorder.close, made.made.time)


async def test_looking_back_does_not_stop_recording(
    live: Live, matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(30, pilot)
        await live.press(pilot, "space")
        assert " PAST  1 s ago" in line_with(live.app, "PAST")
        assert "recording continues" in line_with(live.app, "PAST")
        rows = live.recorder.status().rows
        await pilot.resize_terminal(80, 30)
        await pilot.pause()
        assert line_with(live.app, "PAST").rstrip()[-1].isdigit()
        await pilot.resize_terminal(120, 30)
        await pilot.pause()
        shown = line_with(live.app, "gpu01")
        live.made.lose("gpu02", "connection reset by peer")
        await live.advance(20, pilot)
        assert live.recorder.status().rows > rows
        assert " PAST  21 s ago" in line_with(live.app, "PAST")
        assert line_with(live.app, "gpu01") == shown
        assert "lost" not in line_with(live.app, "gpu02 ")
        live.made.recording(rows=299, file_bytes=133_000)
        live.app.update_view()
        await pilot.pause()
        matches_picture(live.app, "past-120x30")
        await live.press(pilot, "greater_than_sign", "greater_than_sign")
        assert "lost" in line_with(live.app, "gpu02 ")
        await live.press(pilot, "N")
        await pilot.pause()
        assert "PAST" not in screen_text(live.app)
        assert "rec 50 s" in line_with(live.app, "rec")
        assert live.app.player is None
        assert live.app.fleet is live.made.fleet


async def test_session_summary_covers_everything_while_looking_back(live: Live) -> None:
    live.made.connect()
    live.app.open_queries = lambda: RecordingQueries(live.recorder.queries())
    async with live.app.run_test(size=(80, 24)) as pilot:
        await live.advance(10, pilot)
        live.made.hub.start_session("train")
        await live.advance(20, pilot)
        await live.press(pilot, "space", "less_than_sign")
        assert " PAST  11 s ago" in line_with(live.app, "PAST")
        await pilot.press("S", "enter")
        await computed(live.app, pilot)
        assert "14:00:10 to 14:00:30" in line_with(live.app, "still running")
        assert "as of 14:00:29" in line_with(live.app, "summary")
        assert "coverage" in screen_text(live.app)


async def test_playing_to_the_end_returns_to_now(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(30, pilot)
        await live.press(pilot, "space", "less_than_sign", "plus", "plus", "plus", "space")
        async with asyncio.timeout(30):
            while live.app.player is not None:
                live.clock.seconds += 0.05
                live.made.hub.flush()
                await pilot.pause(0.01)
        await pilot.pause()
        assert "PAST" not in screen_text(live.app)


async def test_session_begun_while_looking_back_starts_at_the_time_shown(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30), notifications=True) as pilot:
        await live.advance(60, pilot)
        await live.press(pilot, "space", "T", *"14:00:10", "enter", "s", *"train", "enter")
        await shows(live.app, pilot, "├ train ──")
        await live.press(pilot, "x")
        await shows(live.app, pilot, "x doesn't work while looking back; N returns to now")
        await live.press(pilot, "N", "x")
        await shows(live.app, pilot, "stopped train after 50 s")
    await asyncio.to_thread(live.recorder.close, live.made.time)
    with closing(FileSource(live.recorder.path)) as source:
        (period,) = load_sessions(source)
        assert period.started_at.replace(tzinfo=UTC).timestamp() == BEGINNING + 10
        assert period.until.replace(tzinfo=UTC).timestamp() == BEGINNING + 60


async def test_mark_set_while_looking_back_is_shown_at_once(
    live: Live,
) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(30, pilot)
        await live.press(pilot, "space", "less_than_sign", "M", *"epoch", "tab", "tab", *"14:00:10", "enter")
        await shows(live.app, pilot, "◆")
        await live.press(pilot, "e")
        assert "14:00:10" in line_with(live.app, "epoch")
        await live.press(pilot, "b", "b")  # a hot GPU is throttled at 14:00:12
        assert "14:00:10" in line_with(live.app, "‖"), "it is gone to as other events are"


async def test_live_actions_are_disabled_while_looking_back(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30), notifications=True) as pilot:
        await live.advance(10, pilot)
        live.made.hub.start_session("train")
        await live.advance(10, pilot)
        await live.press(pilot, "space", "i")
        await pilot.pause()
        why = "i doesn't work while looking back; N returns to now"
        assert [n.message for n in live.app._notifications] == [why]
        assert live.made.fleet.sessions.running
        assert len(live.app.screen_stack) == 1
        await live.press(pilot, "S", "r")
        assert len(live.app.screen_stack) == 2


async def test_go_to_works_on_every_screen(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(60, pilot)
        await live.press(pilot, "enter", "T", "minus", *"40s", "enter")
        assert "40 s ago" in line_with(live.app, "PAST")
        assert live.app.front.SCREEN == "node"


async def test_enter_on_an_event_goes_to_its_time(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(20, pilot)
        live.made.lose("gpu02", "connection reset by peer")
        await live.advance(20, pilot)
        await live.press(pilot, "e")
        while "link lost" not in line_with(live.app, "▸"):
            await live.press(pilot, "up")
        await live.press(pilot, "enter")
        assert "20 s ago" in line_with(live.app, "PAST")


async def test_screen_stays_live_while_the_past_is_read(live: Live) -> None:
    opening, read, open_past = threading.Event(), threading.Event(), live.past

    def past() -> Player:
        opening.set()
        read.wait(60)
        return open_past()

    live.app._past = past
    live.made.connect()
    async with live.app.run_test(size=(120, 30)) as pilot:
        await live.advance(30, pilot)
        live.app.post_message(Key("space", " "))
        live.app.post_message(Key("less_than_sign", "<"))
        try:
            assert await asyncio.to_thread(opening.wait, 30)
            live.made.lose("gpu02", "connection reset by peer").advance(1)
            async with asyncio.timeout(30):
                while "lost" not in line_with(live.app, "gpu02 "):
                    await asyncio.sleep(0.01)
            assert " PAST  reading the recording …" in screen_text(live.app)
        finally:
            read.set()
        async with asyncio.timeout(30):
            while "11 s ago" not in screen_text(live.app):
                await asyncio.sleep(0.01)


async def test_looking_back_needs_a_recording(live: Live) -> None:
    live.app._past = None
    live.made.connect()
    async with live.app.run_test(size=(120, 30), notifications=True) as pilot:
        await live.advance(5, pilot)
        await live.press(pilot, "space")
        await shows(live.app, pilot, "no past")
        assert "nothing is recorded, so there is no past to show" in screen_text(live.app)
        assert live.app.player is None


async def test_unreadable_past_is_reported_and_the_screen_stays_live(live: Live) -> None:
    def past() -> Player:
        raise UserError("run.duckdb isn't open now; ask again in a moment")

    live.app._past = past
    live.made.connect()
    async with live.app.run_test(size=(120, 30), notifications=True) as pilot:
        await live.advance(5, pilot)
        await live.press(pilot, "space")
        await shows(live.app, pilot, "isn't open now")
        assert live.app.player is None


async def test_session_older_than_the_history_has_no_figures_in_the_list(live: Live) -> None:
    live.made.connect()
    async with live.app.run_test(size=(120, 40)) as pilot:
        await live.advance(10, pilot)
        live.made.hub.start_session("train")
        await live.advance(20, pilot)
        (session,) = live.made.fleet.sessions.running
        live.made.hub.stop_session(session.session_id)
        session.forget()  # as if it had ended before the history begins
        await pilot.press("S")
        await shows(live.app, pilot, "○ train")
        assert line_with(live.app, "○ train").split()[-3:] == [DASH] * 3
