"""What comes on a channel reaches whoever wants it, once, in order, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from gswarm_tui.launch.inbox import MOST_HELD_BYTES, Inbox
from tests.unit.test_link import settle


class Tap:
    """A source that knows whether it is open."""

    def __init__(self) -> None:
        self.open = True

    def pause_reading(self) -> None:
        self.open = False

    def resume_reading(self) -> None:
        self.open = True


def inbox() -> tuple[Inbox, Tap]:
    made, tap = Inbox(), Tap()
    made.source = tap
    return made, tap


async def test_what_came_before_and_comes_after_is_handed_over_in_order() -> None:
    made, _ = inbox()
    came: list[bytes] = []
    made.received(b"a")
    made.received(b"b")

    def all_of_it(data: bytes) -> bool:
        came.append(data)
        return False

    taking = asyncio.create_task(made.for_each_chunk(all_of_it))
    await settle()
    made.received(b"c")
    made.received(b"d")
    made.ended()
    assert await taking is False
    assert came == [b"ab", b"c", b"d"]


async def test_who_has_had_enough_gets_the_rest_the_next_time() -> None:
    made, _ = inbox()
    came: list[bytes] = []

    def two(data: bytes) -> bool:
        came.append(data)
        return len(came) == 2

    taking = asyncio.create_task(made.for_each_chunk(two))
    await settle()
    for data in (b"a", b"b", b"c"):
        made.received(data)
    assert await taking is True
    assert came == [b"a", b"b"]
    made.ended()
    assert await made.read() == b"c"
    assert await made.read() == b""


async def test_a_source_that_nobody_takes_from_is_paused_until_somebody_does() -> None:
    made, tap = inbox()
    while tap.open:
        made.received(bytes(MOST_HELD_BYTES // 4))
    made.received(b"last")  # what was on its way
    assert await made.read() == bytes(MOST_HELD_BYTES) + b"last"
    reading = asyncio.create_task(made.read())
    await settle()
    made.received(b"more")
    assert (await reading, tap.open) == (b"more", True)


async def test_what_fails_in_taking_is_raised_to_who_asked_for_it() -> None:
    made, _ = inbox()

    def refuse(data: bytes) -> bool:
        raise ValueError(data)

    taking = asyncio.create_task(made.for_each_chunk(refuse))
    await settle()
    made.received(b"a")
    made.received(b"b")
    with pytest.raises(ValueError, match="a"):
        await taking
    assert await made.read() == b"b"


async def test_who_is_cancelled_loses_nothing_that_comes_later() -> None:
    made, _ = inbox()
    reading = asyncio.create_task(made.read())
    await settle()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    made.received(b"a")
    assert await made.read() == b"a"


async def test_a_channel_that_broke_off_gives_what_came_and_then_says_so() -> None:
    made, _ = inbox()
    made.received(b"a")
    made.ended(ConnectionResetError("reset"))
    assert await made.read() == b"a"
    with pytest.raises(ConnectionError, match="reset"):
        await made.read()
