"""The player, with a source in memory and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.events import Event, EventLogged
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import AHEAD_S, Player, Playhead
from gswarm_tui.playback.recorded_source import RecordedSource
from gswarm_tui.playback.timeline import ReplayTimeline


class MemorySource(RecordedSource):
    """A source with an event each second from 0 to ``last``, which logs the reads."""

    def __init__(self, last: float = 100, *, running: bool = False) -> None:
        self.interval_s = 1.0
        self.last = last
        self.running = running
        self.reads: list[tuple[float, ...]] = []
        self.broken = False

    def end(self) -> float:
        return self.last

    def events(self, since: float, until: float) -> list[Event]:
        self._read(since, until)
        return [mark_at(at) for at in range(int(since) + 1, int(until) + 1)]

    def fleet(self, at: float) -> Fleet:
        self._read(at)
        fleet = Fleet(["n1"], derive_events=False)
        for second in range(int(at) + 1):
            fleet.apply(mark_at(second))
        return fleet

    def timeline(self) -> ReplayTimeline:
        return ReplayTimeline()

    def _read(self, *times: float) -> None:
        if self.broken:
            raise UserError("its disk is gone")
        self.reads.append(times)


def mark_at(at: int) -> EventLogged:
    return EventLogged(float(at), "mark", "info", f"second {at}")


async def at_once(call: Callable[..., Any], *values: object) -> Any:
    return call(*values)


class PlayerBench:
    """A player and its clock."""

    def __init__(self, source: MemorySource, at: float = 0) -> None:
        self.source = source
        self.seconds = 0.0
        self.head = Playhead(0, source.last, at, self.clock)
        self.player = Player(source, self.head, self.clock, at_once)

    def clock(self) -> float:
        return self.seconds

    async def pass_time(self, seconds: float, step: float = 0.1) -> None:
        for _ in range(round(seconds / step)):
            self.seconds += step
            await self.player.advance()
            for _ in range(3):  # lets pending reads finish
                await asyncio.sleep(0)

    def caught_up(self) -> bool:
        return self.player.caught_up

    @property
    def shown(self) -> list[int]:
        """Return the seconds whose marks are in the fleet."""
        return [int(one.at) for one in self.player.fleet.event_log]


async def player_bench(source: MemorySource | None = None, at: float = 0) -> PlayerBench:
    made = PlayerBench(source or MemorySource(), at)
    await made.player.advance()
    return made


async def test_paused_player_reads_nothing() -> None:
    made = await player_bench()
    await made.pass_time(5)
    assert made.source.reads == [(0,)]
    assert made.shown == [0]


@pytest.mark.parametrize("speed", [0, 3, 6])
async def test_player_shows_every_event_once_at_any_speed(speed: int) -> None:
    made = await player_bench()
    made.player.toggle()
    made.head.change_speed(speed)
    await made.pass_time(500 / made.head.speed)
    assert made.shown == list(range(101))
    assert made.player.now() == 100


async def test_player_reads_a_bounded_time_ahead() -> None:
    made = await player_bench()
    made.player.toggle()
    await made.pass_time(10)
    furthest = max(until for _, until in (pair for pair in made.source.reads if len(pair) == 2))
    assert made.player.now() < furthest <= made.player.now() + 2 * AHEAD_S + 0.2


async def test_short_jump_applies_events_and_long_jump_rebuilds_the_fleet() -> None:
    made = await player_bench(at=10)
    first = made.player.fleet
    made.player.skip(10)
    await made.player.advance()
    assert made.player.fleet is first
    assert made.shown == list(range(21))
    made.player.skip(-10)
    await made.player.advance()
    assert made.player.fleet is not first
    assert made.shown == list(range(11))
    second = made.player.fleet
    made.player.seek(90)
    await made.player.advance()
    assert made.player.fleet is not second
    assert made.shown == list(range(91))


async def test_only_the_latest_jump_is_executed() -> None:
    made = await player_bench(at=50)
    for _ in range(3):
        made.player.skip(-10)
    await made.player.advance()
    assert made.source.reads == [(50,), (20,)]
    assert made.player.now() == 20


async def test_playing_after_a_jump_ignores_the_time_of_the_jump() -> None:
    made = await player_bench()
    made.player.toggle()
    await made.pass_time(2)
    made.player.seek(60)
    made.seconds += 5  # while the fleet is built
    await made.player.advance()
    assert made.player.now() == pytest.approx(60, abs=0.2)
    await made.pass_time(3)
    assert made.player.now() == pytest.approx(63, abs=0.5)
    assert made.shown[-1] in {62, 63}


async def test_stepping_pauses_the_playhead() -> None:
    made = await player_bench()
    made.player.toggle()
    await made.pass_time(5)
    here = made.player.now()
    made.player.step(1)
    await made.pass_time(5)
    assert made.player.now() == here + 1


async def test_player_pauses_at_the_end_and_restarts() -> None:
    made = await player_bench(at=99)
    made.player.toggle()
    await made.pass_time(3)
    assert made.head.paused
    assert made.player.now() == 100
    made.player.toggle()
    await made.player.advance()
    assert made.player.now() < 1


async def test_player_catches_up_with_a_growing_recording() -> None:
    made = await player_bench(MemorySource(20, running=True), at=20)
    made.source.last = 22
    assert made.player.end == 22
    made.player.toggle()
    await made.pass_time(1)
    assert not made.caught_up()
    await made.pass_time(2)
    assert made.caught_up()
    assert made.shown == list(range(23))


async def test_read_failure_is_shown_until_the_next_action() -> None:
    made = await player_bench()
    made.player.toggle()
    made.source.broken = True
    await made.pass_time(3)
    assert made.player.problem == "its disk is gone"
    assert made.head.paused
    made.source.broken = False
    made.player.seek(30)
    await made.player.advance()
    assert made.player.problem == ""
    assert made.player.now() == 30
