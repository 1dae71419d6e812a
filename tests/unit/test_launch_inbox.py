"""Inbox of a channel: its reader gets all bytes once and in order, from bounded memory."""

from __future__ import annotations

import asyncio

import pytest

from gswarm_tui.launch.inbox import MOST_HELD_BYTES
from gswarm_tui.launch.process import ProcessChannel
from tests.unit.test_link import settle


class Tap:
    """A source of bytes that records its pauses."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def inbox() -> tuple[ProcessChannel, Tap]:
    made, tap = ProcessChannel(), Tap()
    made.fed_by(tap)
    return made, tap


async def test_held_and_later_bytes_are_read_in_order() -> None:
    made, _ = inbox()
    made.received(b"a")
    made.received(b"b")
    assert await made.read() == b"ab"
    reading = asyncio.create_task(made.read())
    await settle()
    made.received(b"c")
    assert await reading == b"c"
    made.ended()
    made.received(b"too late")
    assert await made.read() == b""


async def test_a_source_is_paused_until_its_bytes_are_read() -> None:
    made, tap = inbox()
    count = 0
    while not tap.calls:
        made.received(bytes(MOST_HELD_BYTES // 4))
        count += MOST_HELD_BYTES // 4
    assert MOST_HELD_BYTES <= count <= 2 * MOST_HELD_BYTES
    made.received(b"last")  # what was on its way
    assert len(await made.read() + await made.read()) == count + len(b"last")
    assert tap.calls == ["pause", "resume"]
    reading = asyncio.create_task(made.read())
    await settle()
    made.received(b"more")
    assert await reading == b"more"


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
    assert [await made.read(), await made.read()] == [b"a", b"b"]
