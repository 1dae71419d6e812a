"""Test driver of the replay app, with a manual clock."""

from __future__ import annotations

import asyncio
from datetime import UTC
from functools import partial

from textual.pilot import Pilot

from gswarm_tui.playback.player import Player, Playhead
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.store.querying.file_source import FileSource
from gswarm_tui.store.recording.past_session import add_session, change_session, dismiss_finding
from gswarm_tui.tui.replay import ReplayApp
from gswarm_tui.tui.viewer import Viewer
from tests.tui.scene import BEGINNING

MOST_BEHIND_S = 5.0
"""The clock stands while the shown position is so far behind the playhead."""


class Clock:
    """Clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Deck:
    """The app over a recording, on a clock moved by hand."""

    def __init__(
        self,
        source: FileSource,
        start: float = 0,
        end: float = 120,
        *,
        title: str = "job 4711 · gpu[01-04]",
    ) -> None:
        self.source = source
        self.clock = Clock()
        replay = RecordedSource(source, 1)
        self.head = Playhead(BEGINNING + start, BEGINNING + end, BEGINNING + start, self.clock)
        self.player = Player(replay, self.head, self.clock)
        self._unread = self.player.timeline
        writes = (
            partial(add_session, source, 1),
            partial(change_session, source),
            partial(dismiss_finding, source),
        )
        self.app = ReplayApp(self.player, "run.duckdb", *writes, title=title, timezone=UTC)

    async def settle(self, pilot: Pilot[str]) -> None:
        async with asyncio.timeout(30):
            while self.player.timeline is self._unread:
                await pilot.pause(0.01)
        await settle(self.app, self.player, pilot)

    async def play(self, pilot: Pilot[str], until: float) -> None:
        """Advance the clock until this position is shown, but not while the player still reads."""
        async with asyncio.timeout(60):
            while self.seconds < until and not self.head.paused:
                self.clock.seconds += 0.05
                await pilot.pause(0.005)
                while self.seconds < min(until, self.head.at - BEGINNING - MOST_BEHIND_S):
                    await pilot.pause(0.005)
        await self.settle(pilot)

    async def press_for_speed(self, pilot: Pilot[str], speed: float, *keys: str) -> None:
        """Press keys and wait until all have had their effect on the speed."""
        await pilot.press(*keys)
        async with asyncio.timeout(30):
            while self.head.speed != speed:
                await pilot.pause(0.01)

    async def press(self, pilot: Pilot[str], *keys: str) -> None:
        for key in keys:
            await pilot.press(key)
            await self.settle(pilot)

    @property
    def seconds(self) -> float:
        """The shown position, in seconds from the start."""
        return self.player.now() - BEGINNING


async def settle(app: Viewer, player: Player, pilot: Pilot[str]) -> None:
    """Wait until the player has reached its target and the screen shows it."""
    async with asyncio.timeout(30):
        while player.wanted != player.now() or (
            not player.playhead.paused and player.now() < player.playhead.at
        ):
            await pilot.pause(0.01)
    app.update_view()
    await pilot.pause()
