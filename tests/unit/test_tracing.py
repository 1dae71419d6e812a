"""The head's side of a trace: what nodes may report, and when they are given up."""

from __future__ import annotations

import asyncio
import gzip
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gswarm_agent.wire import (
    TRACE_ASKED,
    TRACE_FAILED,
    TRACE_READY,
    TRACE_REQUESTED,
    FetchTrace,
    TracePart,
    TraceReport,
)
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.state import MAX_MESSAGE
from gswarm_tui.link import tracing
from gswarm_tui.link.tracing import SILENT_S, TraceChoice, Tracing


class Node:
    """A link to a node that is connected; ``fetched`` has what was requested of its files."""

    def __init__(self) -> None:
        self.is_live = True
        self.take_trace: Callable[[str, Any], None] = lambda _node, _message: None
        self.fetched: list[FetchTrace] = []

    def request_trace(self, _request: Any, _starts_at: float) -> None:
        """Take the request."""

    def fetch_trace(self, fetch: FetchTrace) -> None:
        """Take the request for a part."""
        self.fetched.append(fetch)

    def end_trace(self, _end: Any) -> None:
        """Take the end."""


async def not_imported(_path: Path, _node: str) -> str:
    return ""


async def requested(node: Node, offset: int) -> None:
    """Wait until the part at this offset was requested."""
    async with asyncio.timeout(20):
        while not node.fetched or node.fetched[-1].offset != offset:
            await asyncio.sleep(0.01)


async def settled(run: Tracing) -> dict[int, tuple[str, str]]:
    """Return the state and the reason of each rank once the trace has ended."""
    async with asyncio.timeout(20):
        while run.is_running:
            await asyncio.sleep(0.01)
    return {trace.pid: (trace.state, trace.reason) for trace in run.ranks()}


async def test_an_empty_trace_and_too_many_bytes_end_the_trace(tmp_path: Path) -> None:
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, lambda _event: None, not_imported)
    token = run.start(TraceChoice())["token"]
    node.take_trace("gpu01", TraceReport(token, 5, 0, TRACE_READY, "", 0))
    node.take_trace("gpu01", TraceReport(token, 6, 1, TRACE_READY, "", 4))
    await requested(node, 0)
    node.take_trace("gpu01", TracePart(token, 6, 0, b"{..}" * 1000))
    node.take_trace("gpu01", TracePart(token, 6, 4, b"{..}" * 1000))
    node.take_trace("gpu01", TraceReport(token, 0, None, TRACE_ASKED, "", 0))
    assert await settled(run) == {5: ("failed", "its trace is empty"), 6: ("done", "")}
    assert [trace.fetched for trace in run.ranks()] == [0, 4]
    await run.close()


@pytest.fixture
def short_disk() -> Iterator[None]:
    """Let no file grow beyond 64 KiB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_traces_over_the_limit_or_without_room_are_named_and_leave_no_file(
    tmp_path: Path, short_disk: None
) -> None:
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, lambda _event: None, not_imported)
    token = run.start(TraceChoice(max_mib=1))["token"]
    node.take_trace("gpu01", TraceReport(token, 5, 0, TRACE_READY, "", (1 << 20) + 1))
    noise = random.Random(1).randbytes(1 << 18)
    node.take_trace("gpu01", TraceReport(token, 6, 1, TRACE_READY, "", len(noise)))
    await requested(node, 0)
    node.take_trace("gpu01", TracePart(token, 6, 0, noise))
    node.take_trace("gpu01", TraceReport(token, 0, None, TRACE_ASKED, "", 0))
    states = await settled(run)
    await run.close()
    assert states[5] == (
        "failed",
        "its trace has 1 MiB, over the limit of 1; allow more with --max-mib, or trace a shorter time",
    )
    assert states[6][1].endswith("-rank1-gpu01.json.gz can't be written: File too large")
    assert list(tmp_path.iterdir()) == []


async def test_a_transfer_resumes_where_the_connection_broke(tmp_path: Path) -> None:
    (tmp_path / "killed-rank0-gpu01.json.gz.part").write_bytes(b"of a recorder that was killed")
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, lambda _event: None, not_imported)
    token = run.start(TraceChoice())["token"]
    ready = TraceReport(token, 6, 1, TRACE_READY, "", 12)
    node.take_trace("gpu01", ready)
    await requested(node, 0)
    node.take_trace("gpu01", TracePart(token, 6, 0, b"first "))
    await requested(node, 6)
    node.take_trace("gpu01", ready)
    assert node.fetched[-2] == node.fetched[-1]
    for offset, part in ((0, b"first "), (6, b"second")):
        await asyncio.sleep(0)
        node.take_trace("gpu01", TracePart(token, 6, offset, part))
    node.take_trace("gpu01", TraceReport(token, 0, None, TRACE_ASKED, "", 0))
    assert await settled(run) == {6: ("done", "")}
    await run.close()
    assert [fetch.offset for fetch in node.fetched] == [0, 6, 6]
    (file,) = tmp_path.iterdir()
    assert gzip.decompress(file.read_bytes()) == b"first second"


async def test_a_connected_node_that_reports_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(tracing, "CHECK_EVERY_S", 0.01)
    nodes = {"gpu01": Node(), "gpu02": Node()}
    run = Tracing(cast(Any, nodes), tmp_path, lambda _event: None, not_imported, lambda: now)
    token = run.start(TraceChoice())["token"]
    nodes["gpu01"].take_trace("gpu01", TraceReport(token, 0, None, TRACE_ASKED, "", 0))
    now += SILENT_S + 1
    await settled(run)
    assert [(trace.node, trace.reason) for trace in run.ranks()] == [("gpu02", "its agent stopped reporting")]
    await run.close()


async def test_a_short_cut_while_a_rank_writes_its_file_ends_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, checked = 1000.0, asyncio.Event()

    def clock() -> float:
        checked.set()
        return now

    monkeypatch.setattr(tracing, "CHECK_EVERY_S", 0.01)
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, lambda _event: None, not_imported, clock)
    token = run.start(TraceChoice())["token"]
    for pid, state in ((6, TRACE_REQUESTED), (0, TRACE_ASKED)):
        node.take_trace("gpu01", TraceReport(token, pid, 1, state, "", 0))
    node.is_live = False
    now += SILENT_S - 1
    checked.clear()
    await checked.wait()
    assert [trace.state for trace in run.ranks()] == [TRACE_REQUESTED]
    now += 2
    assert await settled(run) == {6: ("failed", "the connection was lost")}
    await run.close()


async def test_a_node_that_lies_about_its_processes_opens_one_file_and_keeps_no_trace_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "LONGEST_S", 0.2)
    events: list[EventLogged] = []
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, events.append, not_imported)
    token = run.start(TraceChoice(max_mib=1))["token"]
    node.take_trace("gpu01", TraceReport(token, 1, 0, TRACE_FAILED, "x" * 4096, 0))
    for pid in range(2, 1000):
        node.take_trace("gpu01", TraceReport(token, pid, pid, TRACE_READY, "", 1 << 20))
    await requested(node, 0)
    assert len(list(tmp_path.iterdir())) == 1
    states = await settled(run)
    assert len(states) == tracing.MAX_PROCESSES + 1
    assert states[0] == ("failed", "it reported more than 128 processes")
    assert states[17] == ("failed", "the trace took longer than 0 minutes")
    assert states[18][1].startswith("all traces together exceed 16 MiB; raise --max-mib")
    assert [len(event.message) <= MAX_MESSAGE for event in events] == [True, True]
    await run.close()


async def test_a_cancelled_trace_ends_at_once_and_another_can_start(tmp_path: Path) -> None:
    node = Node()
    run = Tracing(cast(Any, {"gpu01": node}), tmp_path, lambda _event: None, not_imported)
    run.start(TraceChoice())
    run.cancel()
    assert await settled(run) == {0: ("failed", "the trace was cancelled")}
    assert run.start(TraceChoice())["running"]
    await run.close()
