"""Fixtures: the app over a scene, and its screen as plain text."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.viewer import Viewer
from tests.terminal import PATIENCE_S
from tests.tui.scene import Scene

PICTURES = Path(__file__).parent / "pictures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--new-pictures", action="store_true", help="rewrite tests/tui/pictures")


def app_on(scene: Scene, *, title: str = "job 4711 · gpu[01-04]", theme: str = "dark") -> GswarmApp:
    """Return the app over a scene's hub."""
    return GswarmApp(scene.client, title=title, theme=theme, timezone=UTC)


def screen_text(app: Viewer) -> str:
    """Return the screen's lines without colours and trailing spaces."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


async def shows(app: Viewer, pilot: Pilot[str], text: str) -> None:
    """Wait until the screen shows a text, such as a notification, which is drawn a little later."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while text not in screen_text(app):
        assert asyncio.get_running_loop().time() < deadline, (
            f"{text!r} isn't on the screen:\n{screen_text(app)}"
        )
        await pilot.pause(0.01)


def line_with(app: Viewer, words: str) -> str:
    """Return the first line of the screen that contains a text."""
    lines = screen_text(app).splitlines()
    found = [line for line in lines if words in line]
    assert found, f"nothing on the screen holds {words!r}:\n" + "\n".join(lines)
    return found[0]


@pytest.fixture
def app(done: tuple[Path, Scene]) -> Iterator[GswarmApp]:
    """Show the recording and the scene that a module's fixture ``done`` has."""
    with closing(FileSource(done[0])) as source:
        yield GswarmApp(
            done[1].recording().client,
            title="job 4711",
            timezone=UTC,
            open_queries=lambda: RecordingQueries(source.second_source()),
        )


@pytest.fixture
def matches_picture(request: pytest.FixtureRequest) -> Callable[[Viewer, str], None]:
    """Compare the screen with tests/tui/pictures/NAME.txt; ``--new-pictures`` rewrites it."""

    def compare(app: Viewer, name: str) -> None:
        path = PICTURES / f"{name}.txt"
        seen = screen_text(app)
        if request.config.getoption("--new-pictures"):
            PICTURES.mkdir(exist_ok=True)
            path.write_text(seen)
            return
        kept = path.read_text() if path.exists() else ""
        difference = "\n".join(
            difflib.unified_diff(kept.splitlines(), seen.splitlines(), "kept", "seen", lineterm="")
        )
        assert seen == kept, f"{path.name} differs (pytest --new-pictures rewrites it):\n{difference}"

    return compare
