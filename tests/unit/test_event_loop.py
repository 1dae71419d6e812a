"""Event loop selector that batches wake-ups."""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from gswarm_tui.run import event_loop
from gswarm_tui.run.event_loop import BURST, RATE, BatchingSelector


class Hours:
    """A clock that advances with each sleep and each piece of work."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def hours() -> Hours:
    return Hours()


@pytest.fixture
def ready(hours: Hours) -> Iterator[BatchingSelector]:
    """Return a selector with an event that is always ready."""
    ours, theirs = socket.socketpair()
    with ours, theirs, closing(BatchingSelector(hours, hours.sleep)) as selector:
        selector.register(ours, selectors.EVENT_WRITE)
        yield selector


def test_single_events_wake_the_loop_at_the_rate_limit(hours: Hours, ready: BatchingSelector) -> None:
    looks = 1000
    for _ in range(looks):
        hours.now += 0.0001
        assert ready.select(10.0)
    assert (looks - BURST) / RATE == pytest.approx(hours.now - 1000.0, rel=0.01)
    assert max(hours.slept) <= 1 / RATE


def test_short_bursts_are_not_delayed(hours: Hours, ready: BatchingSelector) -> None:
    for _ in range(3):
        for _ in range(int(BURST)):
            ready.select(None)
        hours.now += 1.0
    assert not hours.slept


def test_busy_loop_polls_without_delay(hours: Hours, ready: BatchingSelector) -> None:
    for _ in range(1000):
        ready.select(0)
    assert not hours.slept


def test_delay_never_exceeds_the_timeout(hours: Hours, ready: BatchingSelector) -> None:
    for _ in range(1000):
        ready.select(0.001)
    assert max(hours.slept) <= 0.001
    hours.slept.clear()
    ready.select(1.0)
    assert hours.slept == [pytest.approx(1 / RATE)]


def test_all_events_arrive_in_a_batching_loop() -> None:
    async def passed_on(count: int) -> bytes:
        reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        heard, all_heard = bytearray(), loop.create_future()

        def hear() -> None:
            heard.extend(os.read(reading, 1))
            if len(heard) == count:
                all_heard.set_result(None)
            else:
                os.write(writing, bytes([len(heard) % 256]))

        loop.add_reader(reading, hear)
        os.write(writing, b"\0")
        try:
            await asyncio.wait_for(all_heard, 60)
        finally:
            loop.remove_reader(reading)
            os.close(reading)
            os.close(writing)
        return bytes(heard)

    count = int(2 * BURST)
    assert event_loop.run(passed_on(count)) == bytes(range(count))
