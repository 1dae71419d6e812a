"""Inbox of a channel: its reader gets all bytes once and in order, from bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from gswarm_tui.launch.inbox import MOST_HELD_BYTES
from gswarm_tui.launch.simulated import SimulatedChannel
from tests.unit.test_link import settle


class Tap:
    """A source of bytes that records whether it is paused."""

    def __init__(self) -> None:
        self.open = True

    def pause_reading(self) -> None:
        self.open = False

    def resume_reading(self) -> None:
        self.open = True


def inbox() -> tuple[SimulatedChannel, Tap]:
    made, tap = SimulatedChannel(), Tap()
    made.source = tap
    return made, tap


async def test_held_and_later_bytes_are_passed_on_in_order() -> None:
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


async def test_a_reader_that_stops_gets_the_rest_next_time() -> None:
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


async def test_a_source_is_paused_until_its_bytes_are_read() -> None:
    made, tap = inbox()
    while tap.open:
        made.received(bytes(MOST_HELD_BYTES // 4))
    made.received(b"last")  # what was on its way
    assert await made.read() == bytes(MOST_HELD_BYTES) + b"last"
    reading = asyncio.create_task(made.read())
    await settle()
    made.received(b"more")
    assert (await reading, tap.open) == (b"more", True)


async def test_an_error_of_the_reader_is_raised_to_the_reader() -> None:
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


async def test_a_cancelled_reader_loses_no_later_bytes() -> None:
    made, _ = inbox()
    reading = asyncio.create_task(made.read())
    await settle()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    made.received(b"a")
    assert await made.read() == b"a"


async def test_a_broken_channel_passes_on_its_bytes_and_then_raises() -> None:
    made, _ = inbox()
    made.received(b"a")
    made.ended(ConnectionResetError("reset"))
    assert await made.read() == b"a"
    with pytest.raises(ConnectionError, match="reset"):
        await made.read()


async def test_bytes_put_back_are_read_first() -> None:
    made, _ = inbox()
    made.received(b"greeting")
    assert await made.read() == b"greeting"
    made.received(b"b")
    made.unread(b"a")
    assert await made.read() == b"ab"
