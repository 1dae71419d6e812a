"""The SQL place: a recording is asked on the screen, and what it answers is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import duckdb
import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from textual.pilot import Pilot

from gswarm_tui.analysis.queries import RecordingQueries, RecordingQueryError
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.printing.formats import OutputOptions
from gswarm_tui.shell.prompt import Prompt
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.widgets.editor import Editor
from tests.recorded import begin, recorded
from tests.tui.conftest import app_on, line_with, screen_text
from tests.tui.scene import Scene, scene


def job(made: Scene) -> None:
    made.connect().advance(10)
    made.hub.start_session("warm_up")
    made.advance(20)
    made.hub.stop_session("id-1")
    made.hub.start_session("full_training", note="lr 3e-4")
    made.advance(30)
    made.hub.stop_session("id-2")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "run.duckdb"
    recorded(path, Scene(4, 8), job)
    return path


@pytest.fixture
def source(path: Path) -> Iterator[FileSource]:
    with closing(FileSource(path)) as opened:
        yield opened


@pytest.fixture
def app(source: FileSource) -> GswarmApp:
    return GswarmApp(
        scene(4, 8, 10).hub,
        title="job 4711",
        timezone=UTC,
        open_queries=lambda: RecordingQueries(source.second_source(), clock=lambda: 0.0),
    )


async def settle(app: GswarmApp, pilot: Pilot[str]) -> None:
    """Wait until nothing is being asked."""
    async with asyncio.timeout(30):
        await pilot.pause()
        while "asking …" in screen_text(app):
            await pilot.pause(0.01)
    await pilot.pause()


async def ask(app: GswarmApp, pilot: Pilot[str], sql: str) -> None:
    app.screen.query_one(Editor).text = sql
    await pilot.press("ctrl+r")
    await settle(app, pilot)


WORST = """\
SELECT session, node, gpu_index, util_mean_pct, power_mean_w, mem_used_max_mib, mem_temp_max_c
FROM session_summary  -- a line for each GPU
WHERE scope = 'gpu'
ORDER BY util_mean_pct, session_id, node, gpu_index LIMIT 40;"""


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_an_answer_looks_as_kept(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("Q")
        await ask(app, pilot, WORST)
        matches_picture(app, f"sql-{size[0]}x{size[1]}")


async def test_letters_are_text_while_one_types_and_keys_in_the_answer(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q", *"SeQq? :/1", "space")
        await pilot.pause()
        assert app.screen.query_one(Editor).text == "SeQq? :/1 "
        assert "^r run" in screen_text(app)
        assert "^q quit" in screen_text(app)
        await pilot.press("tab", "e")
        await pilot.pause()
        assert "follows the newest" in screen_text(app)


async def test_enter_asks_after_a_semicolon_and_begins_a_line_before(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q", *"SELECT 6 * 7", "enter", *"AS answer;", "enter")
        await settle(app, pilot)
        assert app.screen.query_one(Editor).text == "SELECT 6 * 7\nAS answer;"
        assert "42" in line_with(app, "▸" if "▸" in screen_text(app) else "42")
        assert "1 row in" in screen_text(app)


async def test_a_wrong_query_is_told_in_one_line_and_the_last_answer_stays(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await ask(app, pilot, "SELECT 'kept' AS word")
        await ask(app, pilot, "SELECT utl_pct FROM samples")
        assert "utl_pct" in line_with(app, "╳")
        assert "kept" in screen_text(app)
        await ask(app, pilot, "DROP TABLE samples")
        assert "can be used here, not DROP" in " ".join(screen_text(app).split())
        await ask(app, pilot, "SELECT 'better' AS word")
        assert "╳" not in screen_text(app)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_escape_ends_a_query_first_and_then_leaves(app: GswarmApp, key: str) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        app.screen.query_one(
            Editor
        ).text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
        await pilot.press("ctrl+r")
        await pilot.pause()
        assert "asking … esc cancels" in screen_text(app)
        await pilot.press(key)
        await settle(app, pilot)
        assert "the query was cancelled" in screen_text(app)
        await pilot.press(key)
        await pilot.pause()
        assert "nodes 4/4" in screen_text(app)


async def test_leaving_ends_what_is_asked(app: GswarmApp) -> None:
    opened: list[RecordingQueries] = []
    made = app.open_queries
    assert made is not None

    def watched() -> RecordingQueries:
        opened.append(made())
        return opened[-1]

    app.open_queries = watched
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        app.screen.query_one(
            Editor
        ).text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
        await pilot.press("ctrl+r", "tab", "f")
        await pilot.pause()
        assert "nodes 4/4" in screen_text(app)
        async with asyncio.timeout(30):
            while not _closed(opened[0]):
                await pilot.pause(0.01)


def _closed(queries: RecordingQueries) -> bool:
    try:
        queries.query("SELECT 1")
    except (RecordingQueryError, duckdb.ConnectionException):
        return True
    return False


async def test_what_was_asked_comes_back_with_the_arrows_and_after_leaving(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        for number in (1, 2, 3):
            await ask(app, pilot, f"SELECT {number}")
        await pilot.press("escape", "Q")
        await pilot.pause()
        editor = app.screen.query_one(Editor)
        assert editor.text == "SELECT 3"
        assert "1 row in" in screen_text(app)
        seen = []
        for key in ("up", "up", "up", "up", "down", "down", "down"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(editor.text)
        assert seen == [f"SELECT {n}" if n else "" for n in (3, 2, 1, 1, 2, 3, 0)]


async def test_what_was_asked_comes_back_in_another_run_and_from_the_prompt(
    source: FileSource, tmp_path: Path
) -> None:
    def run() -> GswarmApp:
        return GswarmApp(
            scene(1, 1, 5).hub,
            open_queries=lambda: RecordingQueries(source.second_source()),
            history=QueryHistory(kept),
        )

    kept = tmp_path / "state" / "sql-history"
    with create_pipe_input() as keys:
        keys.send_text("SELECT 'ä',\r2;\r\x04")
        prompt = Prompt(
            source, lambda *_: None, OutputOptions(), QueryHistory(kept), read=keys, write=DummyOutput()
        )
        await asyncio.to_thread(prompt.run)
    async with (first := run()).run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await ask(first, pilot, "SELECT 1")
    assert kept.stat().st_mode & 0o777 == 0o600
    async with (second := run()).run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await pilot.pause()
        editor = second.screen.query_one(Editor)
        seen = []
        for key in ("up", "up", "up"):
            await pilot.press(key)
            await pilot.pause()
            seen.append(editor.text)
    assert seen == ["SELECT 1", "SELECT 'ä',\n2;", "SELECT 'ä',\n2;"]


async def test_text_of_the_file_is_shown_harmless_and_null_as_not_measured(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        hostile = (
            "SELECT NULL AS nothing, '[red]x[/red]' || chr(27) || '[2J' || chr(8238) AS \"[b]name\", 3 AS n"
        )
        await ask(app, pilot, hostile)
        assert "[red]x[/red]\\x1b[2J\\u202e" in screen_text(app)
        assert "[b]name" in screen_text(app)
        assert line_with(app, "[red]x[/red]\\").split()[0] == "–"
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert "row 1" in screen_text(app)
        assert "[red]x[/red]\\x1b[2J\\u202e" in line_with(app, "│ [b]name")


async def test_of_very_many_rows_the_first_are_shown_and_it_says_so(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await ask(app, pilot, "FROM range(7000)")
        assert "the first 5,000 of 7,000 rows" in screen_text(app)
        await ask(app, pilot, "FROM range(1000000)")
        assert "the first 5,000 of more than 100,000 rows" in screen_text(app)
        await pilot.press("tab", "G")
        await pilot.pause()
        assert "4999" in line_with(app, "▸")
        await ask(app, pilot, "SELECT 1 WHERE false")
        assert "0 rows" in screen_text(app)
        assert "no rows" in screen_text(app)


async def test_wide_answers_move_sideways(app: GswarmApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("Q")
        await ask(
            app,
            pilot,
            "SELECT repeat('x', 200) AS long , " + " , ".join(f"{n} AS column_{n}" for n in range(20)),
        )
        assert "column_19" not in line_with(app, " long ")
        await pilot.press("tab", *["right"] * 20)
        await pilot.pause()
        assert "column_19" in line_with(app, "‹")


async def test_a_recipe_is_chosen_and_asked(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("Q")
        await pilot.pause()
        assert all(recipe.title[:60] in screen_text(app) for recipe in RECIPES)
        await ask(app, pilot, "SELECT 1")
        await pilot.press("ctrl+o", "down", "enter")
        await settle(app, pilot)
        assert app.screen.query_one(Editor).text == RECIPES[1].sql
        assert "2 rows in" in screen_text(app)


async def test_where_nothing_is_recorded_it_says_so() -> None:
    app = app_on(scene(1, 1, 5))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q", *"SELECT 1;", "enter", "ctrl+r")
        await pilot.pause()
        assert "nothing is recorded, so there is nothing to ask" in screen_text(app)


async def test_a_recording_that_goes_on_is_asked_while_it_is_written(tmp_path: Path) -> None:
    made = Scene(2, 2)
    recorder = begin(tmp_path / "run.duckdb", made)
    app = GswarmApp(made.hub, timezone=UTC, open_queries=lambda: RecordingQueries(recorder.queries()))
    try:
        async with app.run_test(size=(120, 30)) as pilot:
            made.connect().advance(5)
            async with asyncio.timeout(30):
                while (status := recorder.status()).waiting or not status.committed:
                    await pilot.pause(0.01)
            await pilot.press("Q")
            await ask(app, pilot, "SELECT count(*) AS samples FROM samples")
            assert "1 row in" in screen_text(app)
            await pilot.press("tab")
            await pilot.pause()
            assert line_with(app, "▸").split()[-1] == "20"
    finally:
        await asyncio.to_thread(recorder.close, made.time)
