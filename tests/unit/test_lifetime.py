"""Lifetime of a run: the order in which it ends, and recordings that stay open."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from gswarm_tui.fleet.events import Event, FrameArrived, RecorderStatus, SessionStopped
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.launch.base import Channel, Launcher, LaunchError
from gswarm_tui.link.hub import Hub
from gswarm_tui.link.link import Link
from gswarm_tui.run import lifetime
from gswarm_tui.run.lifetime import Lifetime, delay_garbage_collection
from gswarm_tui.store.recording.recorder import FileWriter
from tests.tui.client import LocalHub
from tests.unit.store_recording import arrived, introduced


@pytest.fixture(autouse=True)
def searched_as_before() -> Iterator[None]:
    """Restore the garbage collector's settings, which a head changes."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Node(Link):
    """A link whose agent sends one more frame when it stops, and ends when that is acknowledged."""

    def __init__(self, hub: Hub, answers: bool) -> None:
        self.node = "n1"
        self.hub = hub
        self.answers = answers
        self.acknowledged = asyncio.Event()
        self.began = asyncio.Event()

    async def run(self) -> None:
        self.began.set()
        await asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        if self.answers:
            self.hub.publish(arrived(2, [None, None]))
        await self.acknowledged.wait()

    def read_energy(self) -> None:
        pass

    def acknowledge(self, life: str, seq: int) -> None:
        if seq == 2:
            self.acknowledged.set()

    def resume(
        self, life: str, seq: int, offset_s: float, round_trip_s: float, last: tuple[int, float] | None = None
    ) -> None:
        return

    def may_hold_frames(self) -> bool:
        return not self.acknowledged.is_set()

    def reconnect(self) -> None:
        return

    def set_interval(self, interval_ms: int) -> None:
        return

    def set_job_end(self, ends_at: float | None) -> None:
        return


class FakeRecorder:
    """A recorder that commits all events at once."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.events: list[Event] = []
        self.ended_at: list[float | None] = []

    def submit(self, events: Sequence[Event]) -> None:
        self.events += events
        committed = {(e.node, e.life): e.frame.seq for e in events if isinstance(e, FrameArrived)}
        self.hub.recorded(RecorderStatus("run.duckdb", 1, 1, 0, committed))

    def commit(self) -> Future[None]:
        done = Future[None]()
        done.set_result(None)
        return done

    def close(self, ended_at: float | None) -> RecorderStatus:
        self.ended_at.append(ended_at)
        return RecorderStatus("run.duckdb", 1, 1, 0, {}, closed=True)


class StandInLauncher(Launcher):
    closed = False

    async def open(self, node: str, *arguments: str) -> Channel:
        raise LaunchError("no node is reached here")

    async def close(self) -> None:
        self.closed = True


async def ended(answers: bool, lasting: bool = True) -> tuple[lifetime.RunResult, FakeRecorder]:
    hub = LocalHub(Fleet(["n1"]), clock=lambda: 100.0)
    recording, launcher = FakeRecorder(hub), StandInLauncher()
    hub.sinks.append(recording)
    hub.links["n1"] = Node(hub, answers)
    hub.publish(introduced("n1"))
    hub.start_session("train")

    async def end() -> None:
        return

    recorder = cast(FileWriter, recording)
    life = Lifetime(hub, launcher, recorder, lasting=lasting)
    result = await life.run(end())
    assert launcher.closed
    return result, recording


async def test_last_frame_is_recorded_before_the_recording_closes() -> None:
    result, recording = await ended(answers=True)
    assert any(isinstance(event, SessionStopped) for event in recording.events)
    assert [event.frame.seq for event in recording.events if isinstance(event, FrameArrived)] == [2]
    assert (recording.ended_at, result.holding, result.problem) == ([100.0], (), "")


async def test_recording_stays_open_while_a_node_holds_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "LINKS_END_S", 0.3)
    result, recording = await ended(answers=False)
    assert (recording.ended_at, result.holding) == ([None], ("n1",))
    result, recording = await ended(answers=False, lasting=False)
    assert (recording.ended_at, result.holding) == ([100.0], ())


class Circle:
    """An object in a reference cycle, which only the garbage collector frees."""

    kept = 0

    def __init__(self) -> None:
        self.own = self
        Circle.kept += 1

    def __del__(self) -> None:
        Circle.kept -= 1


def test_garbage_cycles_are_collected_in_the_end() -> None:
    delay_garbage_collection()
    in_use: deque[Circle] = deque(maxlen=1_000)
    most = 0
    for _ in range(400_000):
        in_use.append(Circle())
        most = max(most, Circle.kept)
    assert most < 60_000


def test_a_catalogue_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = tmp_path / "gswarm-tui" / "runs.jsonl"
    catalogue.parent.mkdir()
    os.mkfifo(catalogue)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(lifetime, "CATALOGUE_S", 0.1)
    # At its end, asyncio.run waits for the threads of its own executor.
    result, recording = asyncio.run(ended(answers=True))
    assert (recording.ended_at, result.problem) == ([100.0], "")
    assert "could not be compared with former ones within 0.1 s" in caplog.text
    assert "TimeoutError" in caplog.text
    # The thread's read ends when another program closes the other end.
    os.close(os.open(catalogue, os.O_WRONLY))
