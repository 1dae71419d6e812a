"""Traces of PyTorch processes: requested from the agents, and fetched into a folder beside the recording."""

from __future__ import annotations

import asyncio
import gzip
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gswarm_agent import wire
from gswarm_agent.frame import INFO, WARNING
from gswarm_tui.common.quantities import file_size, plural
from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.state import MAX_MESSAGE
from gswarm_tui.link.link import Link

MIB = 1024 * 1024
MAX_MIB = 512
"""Default limit of one rank's trace before it is compressed."""
STARTS_IN_S = 10.0
"""Time until a trace starts: each process asks within 5 s, and then warms up for 2 s."""
SILENT_S = 300.0
"""Time after which a node is given up that reports nothing; agents wait 180 s for a file."""
LONGEST_S = 3600.0
"""Time after which a trace ends, with its imports, whatever nodes report."""
MAX_PROCESSES = 128
"""Processes that a node may report; eight GPUs in seven parts each have 56."""
TOTAL_RANKS = 16
"""All files of a trace together may have so many times the limit of one rank's."""
MAX_REASON = 300
"""Characters of a node's reason why a process wasn't traced."""
CHECK_EVERY_S = 1.0
FETCHING, DONE = "fetching", "done"
_LEVEL = 3


class TraceError(Exception):
    """Raised if no trace can be requested; the message is one clause."""


@dataclass(frozen=True)
class TraceChoice:
    """Extent of a trace: its duration, and certain ranks, else all of them."""

    duration_ms: int = 500
    ranks: tuple[int, ...] = ()
    stacks: bool = False
    max_mib: int = MAX_MIB

    def describe(self) -> str:
        """Return the traced time as words."""
        return f"{self.duration_ms / 1000:g} s"


@dataclass
class RankTrace:
    """The trace of one process: its state, and its file here; sizes in bytes before compression."""

    node: str
    pid: int
    rank: int | None
    state: str
    reason: str = ""
    size: int = 0
    fetched: int = 0
    file: str = ""
    zipped: int = 0
    imported: bool = False
    part: wire.TracePart | None = field(default=None, repr=False)
    """The next part of the file, until it is written."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to come."""
        return self.state in (DONE, wire.TRACE_FAILED)

    @property
    def name(self) -> str:
        """The words for the process: its rank, else its pid."""
        what = f"rank {self.rank}" if self.rank is not None else f"process {self.pid}"
        return f"{what} on {self.node}" if self.pid else self.node

    def row(self) -> dict[str, Any]:
        """Return it as values of a message."""
        return {name: value for name, value in vars(self).items() if name != "part"}


class Tracing:
    """Requests one trace after the other, and writes its files.

    Args:
        links: the links by node.
        folder: where the files go.
        publish: takes the events on what was traced.
        import_file: imports a file of a node, and returns why that failed, empty if it didn't.
        now: the recorder's Unix time in seconds.
    """

    def __init__(
        self,
        links: Mapping[str, Link],
        folder: Path,
        publish: Callable[[EventLogged], None],
        import_file: Callable[[Path, str], Awaitable[str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._links = links
        self._publish = publish
        self._import_file = import_file
        self._now = now
        self._token = ""
        self._choice = TraceChoice()
        self._folder = folder
        self._starts_at = 0.0
        self._asked: set[str] = set()
        self._nodes: dict[str, float] = {}
        self._traces: dict[str, dict[int, RankTrace]] = {}
        self._accepted = 0
        self._running: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        for part in folder.glob("*.json.gz.part"):  # of a recorder that was killed; a recording has only one
            part.unlink(missing_ok=True)

    @property
    def is_running(self) -> bool:
        """Whether a trace is requested or under way."""
        return self._running is not None and not self._running.done()

    def start(self, choice: TraceChoice) -> dict[str, Any]:
        """Request a trace from all nodes that are connected; return its state. Raises TraceError."""
        if self.is_running:
            raise TraceError("another trace is under way; gswarm-tui trace --cancel ends it")
        if not any(link.is_live for link in self._links.values()):
            raise TraceError("no node is connected")
        self._token = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self._choice = choice
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(f"{self._folder} can't be created: {error.strerror}") from None
        self._starts_at = self._now() + STARTS_IN_S
        self._asked.clear()
        self._traces = {node: {} for node in self._links}
        self._accepted = 0
        self._nodes = dict.fromkeys(self._links, self._now())
        starts_at_ns = round(self._starts_at * 1e9)
        request = wire.RequestTrace(
            self._token, choice.ranks, starts_at_ns, choice.duration_ms, choice.stacks
        )
        for node, link in self._links.items():
            link.take_trace = self._receive
            if not link.is_live:
                self._give_up(node, "it isn't connected")
            else:
                link.request_trace(request, self._starts_at)
        self._running = asyncio.get_running_loop().create_task(self._follow())
        ranks = "all ranks" if not choice.ranks else f"ranks {', '.join(map(str, choice.ranks))}"
        self._log(INFO, f"trace of {ranks} over {choice.describe()} requested")
        return self.state()

    async def wait(self) -> None:
        """Wait until the trace under way, if any, has ended."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def cancel(self) -> None:
        """End the trace that is under way; files that are here stay. Raises TraceError."""
        if self._running is None or self._running.done():
            raise TraceError("no trace is under way")
        self._running.cancel()
        self._end("the trace was cancelled")
        self._log(INFO, "the trace was cancelled")

    def state(self) -> dict[str, Any]:
        """Return the newest trace as values of a message."""
        return {
            "token": self._token,
            "running": self.is_running,
            "folder": str(self._folder),
            "starts_at": self._starts_at,
            "asking": sorted(self._nodes.keys() - self._asked),
            "ranks": [trace.row() for trace in self.ranks()],
        }

    def ranks(self) -> list[RankTrace]:
        """Return the processes of the newest trace by rank."""
        return sorted(
            (trace for traces in self._traces.values() for trace in traces.values()),
            key=lambda trace: (trace.rank is None, trace.rank or 0, trace.node, trace.pid),
        )

    def _receive(self, node: str, message: wire.TraceReport | wire.TracePart) -> None:
        """Take an agent's report or a part of a file."""
        if message.token != self._token or not self.is_running:
            return
        self._nodes[node] = self._now()
        if message.pid == 0:
            self._asked.add(node)
        if isinstance(message, wire.TracePart):
            trace = self._traces[node].get(message.pid)
            # A part comes only on request, so one that nobody waits for is dropped. One that was requested
            # again after a reconnect may come twice.
            if trace is not None and trace.state == FETCHING and message.offset == trace.fetched:
                trace.part = trace.part or message
        elif message.state != wire.TRACE_ASKED:
            self._take_report(node, message)
        self._changed.set()

    def _take_report(self, node: str, report: wire.TraceReport) -> None:
        traces = self._traces[node]
        if report.pid not in traces and len(traces) >= MAX_PROCESSES:
            traces[0] = RankTrace(
                node, 0, None, wire.TRACE_FAILED, f"it reported more than {MAX_PROCESSES} processes"
            )
            return
        trace = traces.setdefault(report.pid, RankTrace(node, report.pid, report.rank, ""))
        if trace.is_settled or trace.state == wire.TRACE_READY:
            return
        if report.state == wire.TRACE_FAILED:
            self._fail(trace, report.reason[:MAX_REASON])
        elif report.state != wire.TRACE_READY:
            trace.state = report.state
        elif trace.state == FETCHING:  # repeated after a reconnect
            self._request_part(trace)
        elif report.size <= 0:
            self._fail(trace, "its trace is empty")
        elif report.size > self._choice.max_mib * MIB:
            size = f"{report.size / MIB:,.0f} MiB, over the limit of {self._choice.max_mib:,}"
            self._fail(trace, f"its trace has {size}; allow more with --max-mib, or trace a shorter time")
        elif self._accepted + report.size > TOTAL_RANKS * self._choice.max_mib * MIB:
            size = f"{TOTAL_RANKS * self._choice.max_mib:,} MiB"
            self._fail(trace, f"all traces together exceed {size}; raise --max-mib or trace fewer ranks")
        else:
            trace.state, trace.size = wire.TRACE_READY, report.size
            self._accepted += report.size
            what = f"rank{trace.rank}" if trace.rank is not None else f"pid{trace.pid}"
            # Two processes of a node may report the same rank.
            same = sum(other.rank == trace.rank for other in traces.values()) > 1
            extra = f"-{trace.pid}" if same and trace.rank is not None else ""
            trace.file = f"{self._token}-{what}-{trace.node}{extra}.json.gz".replace("/", "_")

    def _request_part(self, trace: RankTrace) -> None:
        self._links[trace.node].fetch_trace(wire.FetchTrace(self._token, trace.pid, trace.fetched))

    async def _fetch(self, trace: RankTrace) -> None:
        """Fetch and compress a rank's trace; the whole trace has one file open at a time."""
        trace.state, self._nodes[trace.node] = FETCHING, self._now()
        path = self._folder / trace.file
        unfinished = path.with_name(f"{path.name}.part")
        try:
            with gzip.open(unfinished, "wb", _LEVEL) as file:
                while trace.fetched < trace.size:
                    self._request_part(trace)
                    while trace.part is None:
                        await self._wait_for_change()
                        if trace.is_settled:
                            return
                    data = trace.part.data[: trace.size - trace.fetched]
                    if not data:
                        self._fail(trace, "its file became shorter while it was fetched")
                        return
                    await asyncio.to_thread(file.write, data)
                    trace.fetched += len(data)
                    trace.part = None
            unfinished.rename(path)
            trace.state, trace.zipped = DONE, path.stat().st_size
        except OSError as error:
            self._fail(trace, f"{path} can't be written: {error.strerror}")
        finally:
            unfinished.unlink(missing_ok=True)

    def _fail(self, trace: RankTrace, reason: str) -> None:
        trace.state, trace.reason, trace.file = wire.TRACE_FAILED, reason, ""

    async def _follow(self) -> None:
        """Wait until all files are here or given up, then remove them from the nodes."""
        ends_at = asyncio.get_running_loop().time() + LONGEST_S
        try:
            async with asyncio.timeout_at(ends_at):
                while not (self._nodes.keys() <= self._asked and all(t.is_settled for t in self.ranks())):
                    ready = next((one for one in self.ranks() if one.state == wire.TRACE_READY), None)
                    await (self._wait_for_change() if ready is None else self._fetch(ready))
        except TimeoutError:
            self._end(f"the trace took longer than {LONGEST_S / 60:.0f} minutes")
        finally:
            self._end("gswarm-tui ended before the trace arrived")
        done = [trace for trace in self.ranks() if trace.state == DONE]
        for trace in done:
            trace.reason = "its import was stopped; run gswarm-tui import"
        with suppress(TimeoutError):
            async with asyncio.timeout_at(ends_at):
                for trace in done:
                    trace.reason = await self._import_file(self._folder / trace.file, trace.node)
                    trace.imported = not trace.reason
        self._log_result()

    def _end(self, why: str) -> None:
        """Remove the trace from the nodes, and fail what isn't here."""
        for node in self._nodes:
            self._give_up(node, why)
        for link in self._links.values():
            link.end_trace(wire.EndTrace(self._token))

    async def _wait_for_change(self) -> None:
        """Wait until a node reports something, at most ``CHECK_EVERY_S``."""
        self._changed.clear()
        self._give_up_silent_nodes()
        # Not wait_for: in Python 3.11 it may ignore a cancellation (python/cpython#86296).
        with suppress(TimeoutError):
            async with asyncio.timeout(CHECK_EVERY_S):
                await self._changed.wait()

    def _give_up_silent_nodes(self) -> None:
        for node, heard_at in self._nodes.items():
            if node in self._asked and all(
                trace.is_settled or trace.state == wire.TRACE_READY for trace in self._traces[node].values()
            ):
                continue  # its files wait for their turn
            if self._now() - heard_at > SILENT_S:
                live = self._links[node].is_live
                self._give_up(node, "its agent stopped reporting" if live else "the connection was lost")

    def _give_up(self, node: str, why: str) -> None:
        """Fail what is still expected from a node."""
        traces = self._traces[node]
        pending = [trace for trace in traces.values() if not trace.is_settled]
        if node not in self._asked and not pending:
            pending = [traces.setdefault(0, RankTrace(node, 0, None, ""))]
        self._asked.add(node)
        for trace in pending:
            self._fail(trace, why)

    def _log_result(self) -> None:
        done = [trace for trace in self.ranks() if trace.state == DONE]
        failed = [trace for trace in self.ranks() if trace.state == wire.TRACE_FAILED]
        message = f"{plural(len(done), 'trace')} over {self._choice.describe()}"
        if done:
            message += f", {file_size(sum(trace.zipped for trace in done))} in {self._folder}"
        if failed:
            first, *others = failed
            more = f" and {len(others)} more" if others else ""
            message += f"; not traced: {first.name} ({first.reason}){more}"
        if why := next((trace.reason for trace in done if not trace.imported), ""):
            message += f"; not imported: {why}"
        self._log(WARNING if failed or why else INFO, message)

    def _log(self, severity: str, message: str) -> None:
        self._publish(EventLogged(self._now(), "trace", severity, message[:MAX_MESSAGE]))

    async def close(self) -> None:
        """End a trace that is under way, and remove it from the nodes."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
