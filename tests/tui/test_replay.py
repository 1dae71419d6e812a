"""Replay app."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_agent.frame import WARNING, Note
from gswarm_tui.analysis.periods import load_sessions
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.store.errors import StoreError
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.replay import ReplayApp
from tests.recorded import recorded
from tests.tui.conftest import line_with, screen_text, shows
from tests.tui.deck import Deck
from tests.tui.scene import BEGINNING, Scene


def run_of_a_job(made: Scene) -> None:
    """Record two minutes with two sessions, a warning, and a node that is lost and returns."""
    made.connect().advance(10)
    made.hub.start_session("warm_up")
    made.advance(20)
    made.hub.stop_session(made.fleet.sessions.running[0].session_id)
    made.note("gpu02", Note("xid", WARNING, "XID 92: high single-bit ECC error rate", 1)).advance(10)
    made.hub.start_session("full_training")
    made.advance(30)
    made.lose("gpu03", "connection reset by peer", "is the job over? squeue tells").advance(20)
    made.bring_back("gpu03").advance(30)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "run.duckdb"
    recorded(path, Scene(4, 8), run_of_a_job)
    return path


@pytest.fixture(scope="module")
def source(path: Path) -> Iterator[FileSource]:
    with closing(FileSource(path)) as source:
        yield source


@pytest.fixture
def deck(source: FileSource) -> Deck:
    return Deck(source)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_replay_matches_picture(
    deck: Deck, size: tuple[int, int], matches_picture: Callable[[ReplayApp, str], None]
) -> None:
    async with deck.app.run_test(size=size) as pilot:
        await deck.settle(pilot)
        deck.player.seek(BEGINNING + 80)
        await deck.settle(pilot)
        matches_picture(deck.app, f"replay-{size[0]}x{size[1]}")


async def test_time_axes_end_with_the_time_shown(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 40)) as pilot:
        await deck.settle(pilot)
        deck.player.seek(BEGINNING + 80)
        await deck.settle(pilot)
        for second, keys in ((20, ()), (21, ("enter",)), (22, ("f", "enter", "enter"))):
            await deck.press(pilot, *keys)
            await pilot.pause()
            assert line_with(deck.app, "╵−30 s").rstrip().endswith(f" 14:01:{second}"), keys
            assert " now" not in screen_text(deck.app)
            await deck.press(pilot, "full_stop")
            await pilot.pause()
            assert line_with(deck.app, "╵−30 s").rstrip().endswith(f" 14:01:{second + 1}"), keys


async def test_space_plays_and_pauses(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        assert "REPLAY  14:00:00" in line_with(deck.app, "REPLAY")
        assert "paused" in line_with(deck.app, "REPLAY")
        await pilot.press("space")
        await deck.play(pilot, 12)
        assert "1×" in line_with(deck.app, "REPLAY")
        assert "nodes 4/4" in line_with(deck.app, "busy")
        await deck.press(pilot, "space")
        assert 12 <= deck.seconds < 15
        assert f"14:00:{int(deck.seconds)}" in line_with(deck.app, "REPLAY")
        assert f"● warm_up {int(deck.seconds) - 10} s" in screen_text(deck.app)
        here = deck.seconds
        deck.clock.seconds += 12
        await deck.settle(pilot)
        assert deck.seconds == here


async def test_sessions_that_start_later_are_listed_opened_and_compared(deck: Deck) -> None:
    deck.app.open_queries = lambda: RecordingQueries(deck.source.second_source())
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        await deck.press(pilot, "S")
        assert "2 sessions  none running" in screen_text(deck.app)
        assert "starts later" in line_with(deck.app, "○ full_training 14:00:40")
        await deck.press(pilot, "enter", "c", "enter")
        await shows(deck.app, pilot, "full_training vs warm_up")
        await deck.press(pilot, "escape", "enter")
        assert deck.seconds == 40
        await deck.press(pilot, "S")
        assert "starts later" not in screen_text(deck.app)


async def test_keys_change_the_speed(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        await deck.press_for_speed(pilot, 10, "space", "plus", "plus", "plus")
        await deck.play(pilot, 40)
        assert "10×" in line_with(deck.app, "REPLAY")
        assert deck.clock.seconds == pytest.approx(4, rel=0.5)
        await deck.press_for_speed(pilot, 0.25, *["minus"] * 5)
        here, then = deck.seconds, deck.clock.seconds
        await deck.play(pilot, here + 1)
        assert "0.25×" in line_with(deck.app, "REPLAY")
        # Shown positions are whole seconds: a first one between two makes it up to 1.5 s, at a quarter.
        assert 3.5 < deck.clock.seconds - then < 6.5


async def test_steps_and_skips_stay_within_the_recording(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        seen = []
        for key in (
            "greater_than_sign",
            "full_stop",
            "full_stop",
            "comma",
            "less_than_sign",
            "less_than_sign",
        ):
            await deck.press(pilot, key)
            seen.append(deck.seconds)
        assert seen == [10, 11, 12, 11, 1, 0]


async def test_keys_go_to_events_and_show_them(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 30), notifications=True) as pilot:
        await deck.settle(pilot)
        times = sorted({stop.at - BEGINNING for stop in deck.player.timeline.targets})
        seen = []
        for _ in times:
            await deck.press(pilot, "w")
            seen.append(deck.seconds)
            if deck.seconds == 31:
                assert "gpu02:1 XID 92" in screen_text(deck.app)
        assert seen == pytest.approx(times)
        await deck.press(pilot, "w")
        await shows(deck.app, pilot, "no later event")
        await deck.press(pilot, "b")
        assert deck.seconds == pytest.approx(times[-2])


async def test_replay_shows_a_node_as_lost_only_during_its_loss(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        for seconds, lost in ((60, False), (75, True), (100, False)):
            deck.player.seek(BEGINNING + seconds)
            await deck.settle(pilot)
            shown = line_with(deck.app, "gpu03")
            assert ("lost 5 s ago: connection reset by peer" in shown) is lost


async def test_curves_are_complete_after_a_jump(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 40)) as pilot:
        await deck.settle(pilot)
        await deck.press(pilot, "enter", "enter")
        for _ in range(5):  # through all that happened, as it would have been seen live
            await deck.press(pilot, "greater_than_sign")
        played = screen_text(deck.app)
        deck.player.seek(BEGINNING + 120)
        await deck.settle(pilot)
        deck.player.seek(BEGINNING + 50)
        await deck.settle(pilot)
        assert screen_text(deck.app) == played


@pytest.fixture
def own_deck(path: Path, tmp_path: Path) -> Iterator[Deck]:
    """Return a deck over a copy of the recording that may be changed."""
    own = Path(shutil.copy(path, tmp_path / "run.duckdb"))
    with closing(FileSource(own)) as source:
        yield Deck(source)


async def saved(deck: Deck, pilot: Pilot[str], name: str) -> None:
    """Wait until the timeline has a session."""
    async with asyncio.timeout(30):
        while name not in [one.name for one in deck.player.timeline.sessions]:
            await pilot.pause(0.01)
    await deck.settle(pilot)


async def test_interval_of_a_finished_recording_is_named_with_s(own_deck: Deck) -> None:
    deck = own_deck
    async with deck.app.run_test(size=(120, 30), notifications=True) as pilot:
        await deck.settle(pilot)
        await deck.press(pilot, "greater_than_sign", "s")
        assert "14:00:10" in screen_text(deck.app)
        await deck.press(pilot, *["backspace"] * 20, *"odd", "tab", "tab", *"14:00:30", "enter")
        await saved(deck, pilot, "odd")
        await deck.press(pilot, "greater_than_sign", "greater_than_sign", "S")
        row = line_with(deck.app, " odd ")
        assert "14:00:10" in row
        assert "○" in row
        assert " W" in row, "its figures are read from the recording"
    assert "odd" in [one.name for one in load_sessions(deck.source)]


async def test_interval_that_cannot_be_saved_says_why(own_deck: Deck) -> None:
    deck = own_deck

    def refuse(*_words: object) -> None:
        raise StoreError("run.duckdb belongs to ada")

    deck.app = ReplayApp(deck.player, "run.duckdb", refuse, refuse, refuse, timezone=UTC)
    async with deck.app.run_test(size=(120, 30), notifications=True) as pilot:
        await deck.settle(pilot)
        await deck.press(pilot, "s", "enter")
        await shows(deck.app, pilot, "nothing was changed: run.duckdb belongs to ada")
        await deck.press(pilot, "greater_than_sign", "greater_than_sign", "S", "r", *"new", "enter")
        await shows(deck.app, pilot, "nothing was changed: run.duckdb belongs to ada")


async def test_session_of_a_finished_recording_is_renamed_and_gets_a_note(own_deck: Deck) -> None:
    deck = own_deck
    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        deck.player.seek(BEGINNING + 45)
        await deck.settle(pilot)
        await deck.press(pilot, "S", "down", "r")
        await pilot.press(*["backspace"] * len("warm_up"), *"cold", "enter")
        await saved(deck, pilot, "cold")
        await deck.press(pilot, "n")
        await pilot.press(*"too slow", "enter")
        async with asyncio.timeout(30):
            while "too slow" not in line_with(deck.app, " cold "):
                await pilot.pause(0.05)
                await deck.settle(pilot)
        assert " W" in line_with(deck.app, " cold "), "its figures stay"
        await deck.press(pilot, "up", "n")
        await pilot.press(*"later", "enter")
        async with asyncio.timeout(30):
            while "later" not in line_with(deck.app, "● full_training"):
                await pilot.pause(0.05)
                await deck.settle(pilot)
    found = {one.name: one for one in load_sessions(deck.source)}
    assert {name: one.note for name, one in found.items()} == {"cold": "too slow", "full_training": "later"}
    assert [one.seconds for one in found.values()] == [20, 30 + 20 + 30]


async def test_replay_hides_live_actions(deck: Deck) -> None:
    async with deck.app.run_test(size=(120, 120)) as pilot:
        await deck.settle(pilot)
        await deck.press(pilot, "r", "M")
        assert len(deck.app.screen_stack) == 1
        assert "starts one" not in screen_text(deck.app)
        await pilot.press("question_mark")
        await pilot.pause()
        helped = screen_text(deck.app)
        assert "Play faster" in helped
        assert "Change sampling interval" not in helped
        assert "Stop a session" not in helped
        await pilot.press("escape", "q")
    assert deck.app.return_value == "quit"


async def test_unreadable_recording_is_reported(deck: Deck) -> None:
    def gone(_at: float) -> None:
        raise StoreError("run.duckdb can't be read: its disk is gone")

    async with deck.app.run_test(size=(120, 30)) as pilot:
        await deck.settle(pilot)
        deck.player.source.fleet = gone  # type: ignore[method-assign,assignment]
        deck.player.seek(BEGINNING + 100)
        async with asyncio.timeout(30):
            while not deck.player.problem:
                await pilot.pause(0.01)
        await pilot.pause()
        assert "its disk is gone" in screen_text(deck.app)
