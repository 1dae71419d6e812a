"""Five simulated users, each with the steps from the first key to what they look for.

Each step asserts the few words that the user needs to see, neither cut nor covered.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from datetime import UTC
from functools import cache
from pathlib import Path

from gswarm_agent.frame import ERROR, INFO
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.playback.player import Player, Playhead
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.tui.app import GswarmApp
from tests.locales import compile_latin1
from tests.recorded import begin, recorded
from tests.tui.conftest import app_on
from tests.tui.deck import Clock, Deck
from tests.tui.scene import BEGINNING, Scene, scene
from tests.walks.walker import Walker

NARROWEST = (80, 24)
"""Commands run only here, where a line is cut first: each takes a second."""
SIZES = (NARROWEST, (120, 40), (200, 60))
EVERYWHERE = ("? help", "q quit")
JOB = "job 4711 · gpu[01-04]"


async def newcomer(walker: Walker) -> None:
    """A researcher who tries ``--demo`` on a laptop for the first time."""
    made = scene(4, 8, 70).recording(rows=2_240, file_bytes=180_000)
    app = GswarmApp(made.hub, title="demo", timezone=UTC, hints=True)
    async with walker.at(app):
        hints = ("⏎ opens a node", "s starts a session", "space looks back")
        await walker.step("starts, and reads three hints", sees=("gpu01", "SIMULATED", *hints, *EVERYWHERE))
        await walker.step("asks what the screen shows", "?", sees=("help: fleet", "GPUs now", "esc"))
        await walker.step("goes back", "esc", sees=EVERYWHERE, gone="help: fleet")
        await walker.step("looks for temperatures in the list of metrics", "m temp", sees="temperature")
        await walker.step("takes the first", "⏎", sees=("temperature °C", "gpu04"), gone="type to filter")
        await walker.step("opens the node under the cursor", "⏎", sees=("gpu01 ● live", "esc back", "W"))
        await walker.step("opens its second GPU", "↓ ⏎", sees=("gpu01:1 ● live", "power", "esc back"))
        await walker.step("goes back to the node", "q", sees="gpu01 ● live", gone="gpu01:1 ● live")
        await walker.step("goes back to the fleet", "esc", sees=("temperature °C", "gpu04", *EVERYWHERE))
        asks = ("quit?", "closes the recording", "stay")
        await walker.step("presses q by habit", "q", sees=asks)
        await walker.step("stays", "⏎", sees=EVERYWHERE, gone=asks)


async def job_owner(walker: Walker) -> None:
    """Somebody in a running job, who names a part of it and takes plot and report home."""
    made, path = Scene(4, 8), walker.folder / "run.duckdb"
    recorder = begin(path, made)
    clock, written = Clock(), list[str]()

    def until() -> float:
        return made.time - 1

    def past() -> Player:
        source = RecordedSource(recorder.queries(), 1, until, lambda: made.fleet)
        return Player(source, Playhead(BEGINNING, until(), until(), clock), clock)

    def write_files(_session: str, name: str) -> Sequence[str]:
        written.append(name)
        return f"{name}.pdf", f"{name}.html"

    app = GswarmApp(
        made.hub,
        past=past,
        title=JOB,
        timezone=UTC,
        open_queries=lambda: RecordingQueries(recorder.queries()),
        write_files=write_files,
    )

    async def passes(seconds: float) -> None:
        made.advance(seconds)
        async with asyncio.timeout(30):
            while (status := recorder.status()).waiting or not status.committed:
                await asyncio.sleep(0.01)
        made.hub.recorded(status)
        app.update_view()

    try:
        made.connect()
        async with walker.at(app):
            await passes(20)
            await walker.step("sees that the job is recorded", sees=("● rec", "s start", "x stop"))
            await walker.step("starts a session", "s", sees=("start session", "name", "started", "⏎ accept"))
            await walker.step("names it", "train ⏎", sees="● train")
            await passes(20)
            await walker.step("marks a moment", "M", sees=("mark a moment", "values"))
            await walker.step("with a value", "epoch1 tab loss=1.2 ⏎", sees="epoch1", gone="⏎ accept")
            await passes(10)
            await walker.step("stops the session", "x", sees=("30 s", "undo", "no session"))
            await walker.step("notices the slip and undoes it", "u", sees="● train", gone="no session")
            await passes(10)
            await walker.step("stops it when it is done", "x", sees=("train", "40 s"), gone="● train")
            await walker.step("lists the sessions", "S", sees=("○ train", "40 s", "⏎ open"))
            await passes(1)
            await walker.step("writes plot and report", "P", sees=("train.pdf", "train.html"))
            await walker.step("goes back", "esc", sees=EVERYWHERE)
            await walker.step("looks 10 s back", "space <", sees=("PAST", "ago", "N now"))
            await walker.step("returns to now", "N", sees="● rec", gone="PAST")
            await passes(5)
            await walker.step("quits", "q", sees=("quit?", "closes the recording"))
            await walker.leave("agrees", "y")
    finally:
        assert (await asyncio.to_thread(recorder.close, made.time)).error == ""
    assert written == ["train"]


async def straggler_hunter(walker: Walker) -> None:
    """Somebody who looks for the GPU that holds up 512 others."""
    made = _large_job()
    app = app_on(made, title="job 4712 · gpu[01-64]")
    async with walker.at(app):
        await walker.step("sees the errors among many events", sees=("512", "gpu64 lost", *EVERYWHERE))
        await walker.step("ranks the GPUs", "W", sees=("lowest GPU util first", "512 GPUs", "gpu05:3"))
        await walker.step("opens the worst", "⏎", sees=("gpu05:3 ● live", "esc back"))
        await walker.step("goes back to the fleet", "esc esc", sees=EVERYWHERE)
        await walker.step("filters idle GPUs", "/ util<10", sees=("util<10", "of 64 nodes"))
        await walker.step("keeps the filter", "⏎", sees=("util<10", "2 of 64 nodes", "gpu05:3"))
        await walker.step("goes to the next match", "n", sees=("2 of 64 nodes", "gpu18:2"))
        await walker.step("clears the filter", "esc", sees=EVERYWHERE, gone="of 64 nodes")
        grouped = "power cap: 38 GPUs on 21 nodes"
        await walker.step("reads the events", "e", sees=(grouped, "connection reset"))
        await walker.step("hides what is harmless", "v", sees="connection reset", gone="power cap")


@cache
def _large_job() -> Scene:
    """Return 64 nodes with 8 GPUs each after a few minutes: a node is lost, and power caps come and go."""
    made = Scene(64, 8, interval_s=10).connect().advance(100)
    for minute in range(3):
        for gpu in range(38):
            at = BEGINNING + 60 * minute
            words = "throttled: power cap"
            made.hub.publish(EventLogged(at, "throttle", INFO, words, f"gpu{gpu % 21 + 1:02}", gpu % 8))
    made.hub.publish(EventLogged(made.time, "link_lost", ERROR, "connection reset", "gpu64"))
    made.hub.flush()
    return made


async def reviewer(walker: Walker) -> None:
    """Somebody who looks at the recording of last night."""
    path = Path(shutil.copy(_night(walker.folder.parent), walker.folder / "run.duckdb"))
    with closing(FileSource(path)) as source:
        deck = Deck(source, end=600)
        async with walker.at(deck.app):
            await walker.step("opens the replay", sees=("REPLAY", "14:00:00", "gpu04", "space play"))
            await walker.step(
                "lists all sessions, also those ahead", "S", sees=("2 ahead", "› warm_up", "› full_training")
            )
            await walker.step("jumps to the second", "↓ ⏎", sees=("● full_training", "14:02:00"))
            await walker.step("goes back to the fleet", "esc", sees=("REPLAY", "14:02:00", "gpu04"))
            await walker.step("asks for a time", "T", sees=("go to time", "-2m", "50%", "⏎ accept"))
            await walker.step("two minutes before the end", "-2m ⏎", sees="14:08:00", gone="⏎ accept")
            await walker.step("half-way", "T 50% ⏎", sees="14:05:00", gone="⏎ accept")
            await walker.step("a time of day", "T 14:06 ⏎", sees="14:06:00", gone="⏎ accept")
            await walker.step("begins a session there", "s", sees=("a session starts at 14:06:00", "press x"))
            await walker.step("skips 20 s", "> >", sees="14:06:20")
            await walker.step("ends it", "x", sees=("⏎ accept", "14:06:00", "14:06:20"))
            await walker.step("names it", "odd ⏎", sees="saved odd", gone="⏎ accept")
            await walker.step("goes to the end", "T end ⏎", sees="14:10:00", gone="⏎ accept")
            await walker.step("finds the session in the list", "S", sees=("○ odd", "○ full_training", "20 s"))
    if walker.size == NARROWEST:
        walker.command(
            "pastes a summary into a ticket",
            *("summary", "full_training", "--format", "markdown"),
            sees=("**full_training**", "| utilisation | mean", "| gpu01 |"),
        )
        walker.command("compares both", "compare", "warm_up", "full_training", sees=("warm_up", "full_"))
        walker.command(
            "asks for the hottest GPU",
            *("sql", "SELECT node, gpu_index, max(temp_c) AS hottest FROM samples GROUP BY ALL LIMIT 1"),
            sees=("node", "hottest", "gpu0"),
        )


@cache
def _night(folder: Path) -> Path:
    """Record ten minutes with two sessions."""

    def happens(made: Scene) -> None:
        made.connect().advance(30)
        made.hub.start_session("warm_up")
        made.advance(60)
        made.hub.stop_session(made.fleet.sessions.running[0].session_id)
        made.advance(30)
        made.hub.start_session("full_training")
        made.advance(420)
        made.hub.stop_session(made.fleet.sessions.running[0].session_id)
        made.advance(60)

    path = folder / "night.duckdb"
    recorded(path, Scene(4, 8, interval_s=5), happens)
    return path


async def administrator(walker: Walker) -> None:
    """An administrator with a screen reader, on a terminal with 16 colours and without UTF-8."""
    if walker.size == NARROWEST:
        poor = {"TERM": "xterm-16color", "COLORTERM": "", **compile_latin1(walker.folder)}
        printed = walker.command(
            "hears the fleet in plain lines",
            *("once", "--demo", "2x2"),
            sees=("2 of 2 simulated nodes send data", "sim02:1"),
            env=poor,
        )
        assert printed.isascii()
        walker.command("mistypes a command", "summry", "--help", sees="summary", status=2, env=poor)
    app = app_on(scene(2, 4, 30), title=JOB, theme="ansi")
    async with walker.at(app):
        await walker.step("watches without a recording", sees=("not recording", *EVERYWHERE))
        await walker.step("tries to start a session", "s", sees=("--no-record"))
        await walker.step("tries to set a mark", "M", sees=("mark", "--no-record"))
        await walker.step("asks for another rate", "i", sees=("sampling interval", "0.1 s and 60 s"))
        await walker.step("mistypes it", "2m ⏎", sees='"2m" isn\'t a time')
        await walker.step("corrects it", "esc i 5s ⏎", sees="every 5 s", gone="0.1 s and 60 s")
        await walker.step("finds the change among the events", "e", sees="interval changed")
    path = walker.folder / "run.duckdb"
    recorded(path, Scene(2, 4, interval_s=5), lambda made: made.connect().advance(60))
    with closing(FileSource(path)) as source:
        app = app_on(scene(2, 4, 30), title=JOB, theme="ansi")
        app.open_queries = lambda: RecordingQueries(source.second_source())
        async with walker.at(app):
            await walker.step("opens SQL", "Q", sees=("SQL", "^r run", "^q quit", "esc back"))
            await walker.step("types letters that are keys elsewhere", "SEQeqx:?", sees="SEQeqx:?")
            await walker.step("goes back to the fleet", "esc", sees=("gpu02", *EVERYWHERE))


WALKS: tuple[Callable[[Walker], Awaitable[None]], ...] = (
    newcomer,
    job_owner,
    straggler_hunter,
    reviewer,
    administrator,
)
