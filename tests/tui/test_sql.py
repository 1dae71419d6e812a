"""The SQL place: a recording is asked on the screen, and what it answers is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_tui.analysis.desk import Desk
from gswarm_tui.store.source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.recorded import recorded
from tests.tui.conftest import screen_text
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
        desk=lambda: Desk(source.aside(), clock=lambda: 0.0),
    )


async def settle(app: GswarmApp, pilot: Pilot[str]) -> None:
    """Wait until nothing is being asked."""
    async with asyncio.timeout(30):
        await pilot.pause()
        while "asking …" in screen_text(app):
            await pilot.pause(0.01)
    await pilot.pause()


async def ask(app: GswarmApp, pilot: Pilot[str], sql: str) -> None:
    app.screen.query_one("Editor").text = sql  # type: ignore[attr-defined]  # an Editor, by its type name
    await pilot.press("ctrl+r")
    await settle(app, pilot)


WORST = """\
SELECT session, node, gpu_index, util_mean_pct, power_mean_w, mem_used_max_mib, mem_temp_max_c
FROM session_summary  -- a line for each GPU
WHERE scope = 'gpu'
ORDER BY util_mean_pct LIMIT 40;"""


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_an_answer_looks_as_kept(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("Q")
        await ask(app, pilot, WORST)
        matches_picture(app, f"sql-{size[0]}x{size[1]}")
