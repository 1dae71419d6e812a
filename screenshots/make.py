"""Make the documentation's pictures from the running program: ``python -m screenshots.make [NAME ...]``.

A simulated fleet with a seed and a fixed clock, so the same program gives the same pictures. Screens need
``rsvg-convert`` and the font Fira Code; the pictures of the report and of a browser need Chromium. Pictures
whose program is missing stay as they are.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import cast

from PIL import Image

from gswarm_agent import __version__
from gswarm_tui.analysis import periods
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.options.server_options import ServerSettings
from gswarm_tui.plotting.figure import draw
from gswarm_tui.plotting.metric_choice import choose_metrics
from gswarm_tui.plotting.plot_data import load_plot_data
from gswarm_tui.reporting.report import build_report
from gswarm_tui.server.listening import url_of
from gswarm_tui.server.tokens import Tokens
from gswarm_tui.server.web import BrowserAccess, WebServer
from gswarm_tui.store.querying.arrays import ArraySource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.querying.results import QueryError
from gswarm_tui.store.recording.recorder import FileWriter
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.viewer import Viewer
from tests.chromium import chromium
from tests.integration.plot_recording import record_runs, record_training
from tests.tui.client import control_server
from tests.tui.deck import Deck
from tests.tui.scene import BEGINNING, Scene, scene

FOLDER = Path(__file__).parent
LETTER = 20.0
CELL = 0.61 * LETTER
"""Size of letters and width of cells in Rich's SVGs."""
SHARPNESS = 1.5
"""Pixels of a picture of a browser for each of its page."""
WINDOW, BAR, MARGIN = (1180, 720), 44, 24
"""Size of the page in the picture of a browser, height of the window's bar, and space around the window."""
BROWSER_WINDOW = """\
<head><style>
body {{ margin: {margin}px; background: white; font: 14px sans-serif }}
div {{ width: {width}px; border-radius: 10px; overflow: hidden; background: #2b3038;
  box-shadow: 0 2px 16px rgb(0 0 0 / 40%) }}
p {{ display: flex; align-items: center; gap: 8px; height: {bar}px; margin: 0; padding: 0 16px }}
i {{ width: 12px; height: 12px; border-radius: 6px; background: #59616d }}
span {{ flex: 1; margin-left: 12px; padding: 5px 16px; border-radius: 13px; background: #1a1f27;
  color: #d8dde6 }}
img {{ display: block; width: 100% }}
</style></head>
<body><div><p><i></i><i></i><i></i><span>127.0.0.1:8092</span></p>
<img src="data:image/png;base64,{picture}"></div></body>"""


@dataclass(frozen=True)
class Shot:
    """A picture: its file name, the fleet, the terminal's size and the keys that lead to the screen."""

    name: str
    scene: Callable[[], Scene]
    size: tuple[int, int] = (120, 34)
    keys: tuple[str, ...] = ()
    theme: str = "dark"
    title: str = "job 4711 · gpu[01-08]"


def training() -> Scene:
    """Return eight nodes in training: one lost, one GPU that heat slows down; two sessions."""
    made = Scene(8, 8, seed=3).connect().watch().advance(175)
    made.hub.start_session("warm_up", started_at=made.time - 170)
    made.hub.stop_session(made.fleet.sessions.running[0].session_id)
    made.hub.start_session("full_training", started_at=made.time - 160)
    made.advance(80)
    made.hub.start_session("data_loading")
    made.advance(25)
    made.lose("gpu06", "connection reset by peer", "check that the node is up", retry_in=9)
    made.advance(5)
    return made.recording(rows=18_432, file_bytes=1_310_000)


def many() -> Scene:
    """Return sixty-four nodes."""
    made = scene(64, 8, 100)
    made.hub.start_session("full_training", started_at=made.time - 90)
    return made.recording(rows=51_200, file_bytes=2_900_000)


def thousand() -> Scene:
    """Return 1,024 nodes."""
    made = scene(1024, 8, 40)
    made.lose("gpu0417", "no route to host", retry_in=20)
    return made.advance(3).recording(rows=344_064, file_bytes=18_600_000)


SHOTS = (
    Shot("fleet", training),
    Shot("fleet-light", training, theme="light"),
    Shot("fleet-power", training, keys=("3",)),
    Shot("fleet-512", many, title="job 4712 · gpu[01-64]"),
    Shot("fleet-8192", thousand, (200, 60), title="job 4713 · gpu[0001-1024]"),
    Shot("findings", training, keys=("exclamation_mark",)),
    Shot("finding", training, keys=("exclamation_mark", "enter")),
    Shot("fleet-causes", training, keys=("c",)),
    Shot("node", training, keys=("down", "enter")),
    Shot("gpu", training, keys=("down", "right", "enter", "enter")),
    Shot("sessions", training, keys=("S", "down")),
    Shot("events", training, keys=("e",)),
    Shot("help", training, keys=("question_mark",)),
)


QUERYING: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "sql": (record_training, ("Q", "ctrl+o", "enter", "tab")),
    "session": (record_training, ("S", "down", "enter")),
    "comparison": (record_runs, ("S", "down", "c", "enter")),
}
"""Screens that query a recording: how it is made, and the keys that lead to the screen."""


async def live_screen(shot: Shot) -> str:
    """Return the picture of a live screen."""
    app = GswarmApp(shot.scene().client, title=shot.title, theme=shot.theme, timezone=UTC)
    app.animation_level = "none"
    async with app.run_test(size=shot.size) as pilot:
        await pilot.pause()
        for key in shot.keys:
            await pilot.press(key)
            await pilot.pause()
        await pilot.pause()
        return screen_svg(app)


async def moving_screens() -> list[str]:
    """Return the frames of the moving picture: a finding and its GPU are opened."""
    made = training()
    app = GswarmApp(made.client, title="job 4711 · gpu[01-08]", timezone=UTC)
    app.animation_level = "none"
    frames = []
    async with app.run_test(size=(120, 34)) as pilot:
        for key in ("", "", "n", "3", "1", "exclamation_mark", "enter", "", "enter", "f", "c", "S"):
            made.advance(2)
            await (pilot.press(key) if key else pilot.pause())
            app.update_view()
            await pilot.pause()
            frames.append(screen_svg(app))
    return frames


def moving(converter: str) -> None:
    """Write the moving picture as a GIF, which every viewer of Markdown plays; Matplotlib brings Pillow."""
    frames = []
    for svg in asyncio.run(moving_screens()):
        words = [converter, "--width", "960"]
        made = subprocess.run(words, input=svg.encode(), stdout=subprocess.PIPE, check=True)
        frames.append(
            Image.open(BytesIO(made.stdout))
            .convert("RGB")
            .quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        )
    first, *others = frames
    first.save(FOLDER / "moving.gif", save_all=True, append_images=others, duration=1800, loop=0)


async def querying_screen(record: Callable[[Path], Path], keys: Sequence[str]) -> str:
    """Return the picture of a screen that queries a recording, shortly before its end."""
    with tempfile.TemporaryDirectory() as folder:
        path = record(Path(folder) / "run.duckdb")
        with closing(FileSource(path)) as source:
            deck = Deck(source, end=1200, title="job 4711 · gpu[01-08]")
            deck.app.animation_level = "none"
            deck.app.open_queries = lambda: RecordingQueries(source.second_source(), clock=lambda: 0.0)
            async with deck.app.run_test(size=(120, 34)) as pilot:
                await deck.settle(pilot)
                deck.player.seek(BEGINNING + 1195)
                await deck.settle(pilot)
                for key in keys:
                    await deck.press(pilot, key)
                    asking = [w for w in deck.app.workers if w.group in {"asking", "computing"}]
                    if asking:  # of none it would wait for all, and the player never ends
                        await deck.app.workers.wait_for_complete(asking)
                    await pilot.pause()
                return screen_svg(deck.app)


async def replay_screen() -> str:
    """Return the picture of a replay while a node is lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = record_training(Path(folder) / "run.duckdb")
        with closing(FileSource(path)) as source:
            deck = Deck(source, end=1200, title="job 4711 · gpu[01-08]")
            deck.app.animation_level = "none"
            async with deck.app.run_test(size=(120, 34)) as pilot:
                await deck.settle(pilot)
                deck.player.seek(BEGINNING + 500)
                await deck.settle(pilot)
                await pilot.press("plus", "plus", "space")
                deck.app.update_view()
                await pilot.pause()
                return screen_svg(deck.app)


@dataclass
class SceneRecording:
    """What a control server needs to know of a scene's recording, which isn't on disk."""

    path: Path
    uid: str = "4711c0de-0000-4000-8000-000000000001"
    recording_id: int = 1

    def queries(self) -> ArraySource:
        """Raise QueryError: the picture's screen queries nothing."""
        raise QueryError("a scene has no recording on disk")


async def browser() -> bytes:
    """Return the picture of ``gswarm-tui web`` in Chromium, in a drawn browser window."""
    made = training()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder, "TZ": "UTC"}
        recording = SceneRecording(Path(folder) / "run.duckdb")
        control = control_server(made.hub, cast(FileWriter, recording), os.environ, label="job 4711")
        settings = ServerSettings("127.0.0.1", 0)
        listening = socket.create_server(("127.0.0.1", 0))
        address = url_of(settings, listening)
        access = BrowserAccess(Tokens("control", "", "watch"), address)
        server = WebServer(access, ("attach", recording.uid), "gswarm-tui · job 4711", settings)
        await control.start()
        serving = asyncio.create_task(server.run(listening))
        advancing = asyncio.create_task(advance(made))
        try:
            async with chromium(
                Path(folder) / "profile", f"--force-device-scale-factor={SHARPNESS}"
            ) as running:
                page = await running.page()
                await page.resize(*WINDOW)
                await page.open(f"{address}/#watch")
                await page.shows("full_training")
                await page.evaluate("new Promise(done => setTimeout(done, 3000))")  # the histories
                shown = base64.b64encode(await page.picture()).decode()
                window = await running.page()
                width, height = WINDOW
                await window.resize(width + 2 * MARGIN, height + BAR + 2 * MARGIN)
                html = BROWSER_WINDOW.format(width=width, bar=BAR, margin=MARGIN, picture=shown)
                await window.evaluate(f"document.documentElement.innerHTML = {json.dumps(html)}")
                await window.evaluate("document.images[0].decode()")
                return await window.picture()
        finally:
            advancing.cancel()
            server.end()
            await serving
            await control.close({})


async def advance(made: Scene) -> None:
    """Let a scene's time pass."""
    while True:
        await asyncio.sleep(1)
        made.advance(1)


def screen_svg(app: Viewer) -> str:
    """Return the screen as SVG."""
    return fitted_svg(app.export_screenshot(title="gswarm-tui", simplify=True))


def fitted_svg(made: str) -> str:
    """Return an SVG that Rich made so that its letters end in their cells.

    Fira Code's letters are 1200/1950 of their size wide, a little wider than Rich's cells; they are made
    smaller so that long headings end in their column.
    """
    made = made.replace("font-size: 20px;", f"font-size: {CELL / (1200 / 1950):.3f}px;", 1)
    made = re.sub(r"\s*@font-face \{.*?\}", "", made, flags=re.DOTALL)
    return made.replace("<svg ", '<svg xml:space="preserve" ', 1)


def plot(recording: Path) -> None:
    """Draw the plot of a session."""
    with closing(FileSource(recording)) as source:
        period = periods.find_period(source, "full_training")
        material = load_plot_data(source, period, choose_metrics(), ["loss"])
    (FOLDER / "plot.png").write_bytes(draw(material, UTC, "png"))


def report(recording: Path) -> None:
    """Photograph the first screen of a report."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("Chromium is missing: the report's picture stays as it is")
        return
    with closing(FileSource(recording)) as source:
        period = periods.find_period(source, "full_training")
        page = build_report(source, period, period.until, UTC, __version__)
    path = recording.with_name("report.html")
    path.write_text(page.html(), encoding="utf-8")
    words = ["--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--window-size=1080,1000"]
    words += ["--disable-background-networking", f"--user-data-dir={recording.with_name('profile')}"]
    words += ["--no-sandbox"] * (os.geteuid() == 0)
    picture = FOLDER / "report.png"
    subprocess.run(
        [browser, *words, f"--screenshot={picture}", path.as_uri()], check=True, stderr=subprocess.DEVNULL
    )


def main() -> None:
    """Make all pictures, or those that are named on the command line."""
    wanted = set(sys.argv[1:])
    if not wanted or wanted & {"plot", "report"}:
        with tempfile.TemporaryDirectory() as folder:
            recording = record_training(Path(folder) / "run.duckdb")
            for name, draw in (("plot", plot), ("report", report)):
                if not wanted or name in wanted:
                    draw(recording)
                    print(name)
    if not wanted or "browser" in wanted:
        (FOLDER / "browser.png").write_bytes(asyncio.run(browser()))
        print("browser")
    converter = shutil.which("rsvg-convert")
    if converter is None:
        print("rsvg-convert is missing: the pictures of screens stay as they are")
        return
    if not wanted or "moving" in wanted:
        moving(converter)
        print("moving")
    screens: dict[str, Callable[[], Coroutine[None, None, str]]] = {
        shot.name: partial(live_screen, shot) for shot in SHOTS
    }
    screens |= {name: partial(querying_screen, record, keys) for name, (record, keys) in QUERYING.items()}
    screens["replay"] = replay_screen
    for name, make_svg in screens.items():
        if not wanted or name in wanted:
            picture = asyncio.run(make_svg())
            subprocess.run(
                [converter, "--output", FOLDER / f"{name}.png"], input=picture, text=True, check=True
            )
            print(name)


if __name__ == "__main__":
    main()
