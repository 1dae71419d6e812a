"""A session and a comparison, computed from the recording, as a person sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_tui.analysis.desk import Desk
from gswarm_tui.store.source import FileSource
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.screens.computed import Computed
from tests.recorded import recorded
from tests.tui.scene import Scene
from tests.tui.test_sql import job


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    path, made = tmp_path_factory.mktemp("session") / "run.duckdb", Scene(4, 8)
    recorded(path, made, job)
    return path, made


@pytest.fixture
def source(done: tuple[Path, Scene]) -> Iterator[FileSource]:
    with closing(FileSource(done[0])) as opened:
        yield opened


@pytest.fixture
def app(done: tuple[Path, Scene], source: FileSource) -> GswarmApp:
    return GswarmApp(done[1].hub, title="job 4711", timezone=UTC, desk=lambda: Desk(source.aside()))


async def computed(app: GswarmApp, pilot: Pilot[str]) -> None:
    """Wait until the place in front has what it shows."""
    await pilot.pause()
    here = app.place
    assert isinstance(here, Computed)
    await app.workers.wait_for_complete(w for w in app.workers if w.node is here)
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_a_session_and_a_comparison_look_as_kept(
    app: GswarmApp, size: tuple[int, int], matches_picture: Callable[[GswarmApp, str], None]
) -> None:
    name = f"{size[0]}x{size[1]}"
    async with app.run_test(size=size) as pilot:
        await pilot.press("S", "enter")
        await computed(app, pilot)
        matches_picture(app, f"session-{name}")
        await pilot.press("tab", "tab")
        await pilot.pause()
        matches_picture(app, f"session-gpus-{name}")
        await pilot.press("shift+tab", "shift+tab", "shift+tab")
        await pilot.pause()
        matches_picture(app, f"session-events-{name}")
        await pilot.press("c", "enter")
        await computed(app, pilot)
        matches_picture(app, f"comparison-{name}")
