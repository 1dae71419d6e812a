"""SQL screen, in the app and alone as ``gswarm-tui sql`` opens it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import duckdb
import pytest
from textual.events import Key
from textual.pilot import Pilot

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.tui.actions import ACTIONS, LIVE, MODES
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.viewer import SqlApp, Viewer
from gswarm_tui.tui.widgets.editor import COLUMNS_QUERY, Editor, SqlCompleter
from gswarm_tui.tui.widgets.table import TableView
from tests.recorded import begin, recorded
from tests.terminal import InTerminal
from tests.tui.conftest import app_on, line_with, screen_text, shows
from tests.tui.scene import Scene, scene


def job(made: Scene) -> None:
    made.connect().advance(10)
    made.hub.start_session("warm_up")
    made.advance(20)
    made.hub.stop_session("1")
    made.hub.start_session("full_training", note="lr 3e-4")
    made.advance(30)
    made.hub.stop_session("2")


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
        scene(4, 8, 10).client,
        title="job 4711",
        timezone=UTC,
        open_queries=lambda: RecordingQueries(source.second_source(), clock=lambda: 0.0),
    )


async def settle(app: Viewer, pilot: Pilot[str]) -> None:
    """Wait until no query runs."""
    async with asyncio.timeout(30):
        await pilot.pause()
        while "running …" in screen_text(app):
            await pilot.pause(0.01)
    await pilot.pause()


def press_at_once(app: Viewer, *keys: str) -> None:
    """Press keys, and don't wait until the process is idle: it isn't while a long query runs."""
    for key in keys:
        app.post_message(Key(key, None))


async def run_query(app: Viewer, pilot: Pilot[str], sql: str) -> None:
    app.screen.query_one(Editor).text = sql
    await pilot.press("ctrl+r")
    await settle(app, pilot)


WORST = """\
SELECT session, node, gpu_index, util_mean_pct, power_mean_w, mem_used_max_mib, mem_temp_max_c
FROM session_summary  -- a line for each GPU
WHERE scope = 'gpu'
ORDER BY util_mean_pct, session_id, node, gpu_index LIMIT 40;"""


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_result_matches_picture(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("Q")
        await run_query(app, pilot, WORST)
        matches_picture(app, f"sql-{size[0]}x{size[1]}")


@pytest.mark.parametrize("focus", ["editor", "result"])
async def test_only_help_back_and_quit_act_on_the_sql_screen(
    app: GswarmApp, focus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a key saves the screen
    common = [action for action in ACTIONS if not action.screens and LIVE in (action.modes or MODES)]
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        here = app.screen
        for key in sorted({key for action in common for key in action.keys} - {"question_mark", "f1"}):
            if focus == "result":
                here.query_one(TableView).focus()
            await pilot.press(key)
            assert app.screen is here, key
            assert (app.mode, app.theme) == (LIVE, "dark"), key
        await pilot.press("f1")
        assert app.screen is not here
        await pilot.press("escape", "ctrl+q")
    assert app.return_value == "quit"


async def test_enter_runs_the_query_after_a_semicolon(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q", *"SELECT 6 * 7", "enter", *"AS answer;", "enter")
        await settle(app, pilot)
        assert app.screen.query_one(Editor).text == "SELECT 6 * 7\nAS answer;"
        assert "42" in line_with(app, "▸" if "▸" in screen_text(app) else "42")
        assert "1 row in" in screen_text(app)


async def test_error_of_a_query_keeps_the_last_result(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await run_query(app, pilot, "SELECT 'kept' AS word")
        await run_query(app, pilot, "SELECT utl_pct FROM samples")
        assert "utl_pct" in line_with(app, "╳")
        assert "kept" in screen_text(app)
        await run_query(app, pilot, "DROP TABLE samples")
        assert "can be used here, not DROP" in " ".join(screen_text(app).split())
        await run_query(app, pilot, "SELECT 'better' AS word")
        assert "╳" not in screen_text(app)


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_escape_cancels_the_query_then_goes_back(app: GswarmApp, key: str) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        app.screen.query_one(
            Editor
        ).text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
        press_at_once(app, "ctrl+r")
        await shows(app, pilot, "running … esc cancels")
        press_at_once(app, key)
        await shows(app, pilot, "the query was cancelled")
        await pilot.press(key)
        await pilot.pause()
        assert "nodes 4/4" in screen_text(app)


async def test_leaving_the_screen_cancels_its_query(app: GswarmApp) -> None:
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
        press_at_once(app, "ctrl+r", "tab")
        await shows(app, pilot, "running … esc cancels")
        app.action_fleet()
        await shows(app, pilot, "nodes 4/4")
        async with asyncio.timeout(30):
            while not _closed(opened[0]):
                await pilot.pause(0.01)


def _closed(queries: RecordingQueries) -> bool:
    try:
        queries.query("SELECT 1")
    except (UserError, duckdb.ConnectionException):
        return True
    return False


async def test_arrows_recall_queries_also_after_leaving(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        for number in (1, 2, 3):
            await run_query(app, pilot, f"SELECT {number}")
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


async def test_arrows_recall_queries_of_earlier_runs(source: FileSource, tmp_path: Path) -> None:
    def run() -> GswarmApp:
        return GswarmApp(
            scene(1, 1, 5).client,
            open_queries=lambda: RecordingQueries(source.second_source()),
            history=QueryHistory(kept),
        )

    kept = tmp_path / "state" / "sql-history"
    QueryHistory(kept).add("SELECT 'ä',\n2;")
    async with (first := run()).run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await run_query(first, pilot, "SELECT 1")
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


async def test_text_of_the_recording_cannot_steer_the_terminal(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        hostile = (
            "SELECT NULL AS nothing, '[red]x[/red]' || chr(27) || '[2J' || chr(8238) AS \"[b]name\", 3 AS n"
        )
        await run_query(app, pilot, hostile)
        assert "[red]x[/red]\\x1b[2J\\u202e" in screen_text(app)
        assert "[b]name" in screen_text(app)
        assert line_with(app, "[red]x[/red]\\").split()[0] == "–"
        await pilot.press("tab", "enter")
        await pilot.pause()
        assert "row 1" in screen_text(app)
        assert "[red]x[/red]\\x1b[2J\\u202e" in line_with(app, "│ [b]name")


async def test_large_result_shows_its_first_rows(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        await run_query(app, pilot, "FROM range(7000)")
        assert "the first 5,000 of 7,000 rows" in screen_text(app)
        await run_query(app, pilot, "FROM range(1000000)")
        assert "the first 5,000 of more than 100,000 rows" in screen_text(app)
        await pilot.press("tab", "end")
        await pilot.pause()
        assert "4999" in line_with(app, "▸")
        await run_query(app, pilot, "SELECT 1 WHERE false")
        assert "0 rows" in screen_text(app)
        assert "no rows" in screen_text(app)


async def test_enter_on_a_recipe_runs_it(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("Q")
        await pilot.pause()
        assert all(recipe.title[:60] in screen_text(app) for recipe in RECIPES)
        await run_query(app, pilot, "SELECT 1")
        await pilot.press("ctrl+o", "down", "enter")
        await settle(app, pilot)
        assert app.screen.query_one(Editor).text == RECIPES[1].sql
        assert "2 rows in" in screen_text(app)


async def test_without_a_recording_the_screen_explains_why() -> None:
    app = app_on(scene(1, 1, 5))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q", *"SELECT 1;", "enter", "ctrl+r")
        await pilot.pause()
        assert "Nothing is recorded. Start gswarm-tui without --no-record" in screen_text(app)


async def test_running_recording_can_be_queried(tmp_path: Path) -> None:
    made = Scene(2, 2)
    recorder = begin(tmp_path / "run.duckdb", made)
    app = GswarmApp(made.client, timezone=UTC, open_queries=lambda: RecordingQueries(recorder.queries()))
    try:
        async with app.run_test(size=(120, 30)) as pilot:
            made.connect().advance(5)
            await asyncio.wrap_future(recorder.commit())
            await pilot.press("Q")
            await run_query(app, pilot, "SELECT count(*) AS samples FROM samples")
            assert "1 row in" in screen_text(app)
            await pilot.press("tab")
            await pilot.pause()
            assert line_with(app, "▸").split()[-1] == "20"
    finally:
        await asyncio.to_thread(recorder.close, made.time)


@pytest.fixture(scope="module")
def completer(path: Path) -> SqlCompleter:
    with closing(FileSource(path)) as opened:
        return SqlCompleter((str(table), str(column)) for table, column in opened.query(COLUMNS_QUERY).rows())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM sess", ["session_bubbles", "session_coverage", "session_samples", "sessions"]),
        ("SELECT u FROM gpus WHERE uu", ["uuid"]),
        ("SELECT e.started FROM sessions e WHERE e.sta", ["started_at", "status"]),
        ("sel", ["select"]),
        ("SEL", ["SELECT"]),
        ("SELECT quantile_c", ["quantile_cont"]),
        ("SELECT 'x' zzz", []),
        ("SELECT ", []),
        ("SELECT 1;", []),
        ("FROM ", ["gpus", "samples", "sessions"]),
    ],
)
def test_completion_offers_only_valid_continuations(
    completer: SqlCompleter, text: str, expected: list[str]
) -> None:
    matches = completer.matches(text, text)
    assert [match for match in matches if match in expected] == expected
    assert bool(matches) == bool(expected)
    assert len(matches) == len(set(matches))


async def test_tab_completes_and_switches_the_focus_elsewhere(app: GswarmApp) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("Q")
        editor = app.screen.query_one(Editor)
        async with asyncio.timeout(30):
            while not editor.completer.matches("FROM ", "FROM "):
                await pilot.pause(0.01)
        await pilot.press(*"FROM session_co")
        await pilot.pause()
        assert "tab session_coverage" in screen_text(app)
        await pilot.press("tab")
        await pilot.pause()
        assert editor.text == "FROM session_coverage"
        await pilot.press("space", *"where s", "tab")
        first = editor.text
        await pilot.press("tab")
        assert first != editor.text
        assert all(text.startswith("FROM session_coverage where s") for text in (first, editor.text))
        editor.write("SELECT 1;")
        await pilot.press("tab")
        await pilot.pause()
        assert app.screen.query_one(TableView).has_focus


async def test_sql_app_queries_a_recording_and_quits(source: FileSource) -> None:
    app = SqlApp(
        running=False,
        open_queries=lambda: RecordingQueries(source.second_source()),
        theme="dark",
        history=QueryHistory(None),
    )
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await pilot.pause()
        assert "finished" in line_with(app, " SQL")
        await pilot.press(*"SELECT count(*) AS sessions FROM sessions;", "enter")
        await settle(app, pilot)
        assert "1 row in" in screen_text(app)
        await pilot.press("escape")
        async with asyncio.timeout(30):
            while "Press ^q to quit" not in screen_text(app):
                await pilot.pause(0.01)
        await pilot.press("tab", "question_mark")
        await pilot.pause()
        assert "Show example queries" in screen_text(app)
        assert "Show sessions" not in screen_text(app)
        await pilot.press("q", "q")
        assert app.screen.query_one(Editor).text.endswith(";q")
        await pilot.press("ctrl+q")
    assert app.return_value == "quit"


def test_sql_command_opens_the_screen_in_a_terminal(path: Path) -> None:
    command = [sys.executable, "-m", "gswarm_tui", "sql", "--db", str(path)]
    with InTerminal(command, size=(100, 30)) as running:
        running.press("SELECT name FROM sessions WHERE note = 'lr 3e-4';\r")
        running.wait_for("1 row in")
        running.wait_for("full_training")
        running.press("\x11")
        assert running.exit_status() == 0, running.screen()
