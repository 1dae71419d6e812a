"""The hub, the only consumer of links: applies events to the fleet and hands them to the sinks."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gswarm_agent.frame import INFO, WARNING
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FrameArrived,
    FramesLost,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    MetricsChanged,
    NodeIntroduced,
    Phase,
    RecorderStatus,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.state import Fleet

if TYPE_CHECKING:
    from gswarm_tui.link.link import Link
    from gswarm_tui.link.tracing import Tracing

MAX_FLUSH_INTERVAL_S = 1.0
STOP_FLUSH_INTERVAL_S = 0.1
FLUSH_PHASE = 0.4
"""Agents sample at whole multiples of the interval; after this part of one, all frames have arrived."""
LATE_FLUSH_S = 0.5
"""A flush that is this late means that the head itself was paused, so its nodes don't count as silent."""
STANDSTILL_S = 5.0
"""A longer pause is logged as an event."""
CATCH_UP_S = 15.0
"""Time after such a pause in which nodes send the frames that wait, and don't count as silent."""

_LOG = logging.getLogger(__name__)


class Sink(Protocol):
    """Consumer of events in order; must not block."""

    def submit(self, events: Sequence[Event]) -> None:
        """Add events; the list belongs to the sink afterwards."""


class Run(Protocol):
    """A run as its status needs it: a hub, or a client of its recorder."""

    @property
    def fleet(self) -> Fleet:
        """The state of all nodes."""

    @property
    def recorder(self) -> RecorderStatus | None:
        """The state of the recording, None without one."""

    @property
    def started_at(self) -> float:
        """When the run started, in Unix time."""

    def now(self) -> float:
        """Return the run's Unix time in seconds."""


def next_flush(now: float, interval_s: float) -> float:
    """Return when to flush after a flush at ``now``, Unix seconds: once an interval, at least once a second.

    Deadlines don't drift with the time that a flush takes. One less than a tenth of an interval ahead counts
    as reached.
    """
    every = min(MAX_FLUSH_INTERVAL_S, interval_s)
    return every * (math.floor(now / every - FLUSH_PHASE + 1.1) + FLUSH_PHASE)


class Hub:
    """Joins links, fleet and sinks on one event loop.

    The callbacks in ``flushed`` are called after each flush. ``next_session`` is the number that the next
    session gets, here and in the recording's file. ``counters_refusal`` is why hardware counters of the nodes
    can't be read, empty if they can.
    """

    counters_refusal = ""

    def __init__(self, fleet: Fleet, *, clock: Callable[[], float] = time.time) -> None:
        self.fleet = fleet
        self.recorder: RecorderStatus | None = None
        self.started_at = clock()
        self.next_session = 1
        self.links: dict[str, Link] = {}
        self.tracing: Tracing | None = None
        self.sinks: list[Sink] = []
        self.flushed: list[Callable[[], None]] = []
        self._clock = clock
        self._queued: list[Event] = []
        self._frames: list[FrameArrived] = []
        self._frames_of: set[str] = set()
        self._acknowledged: dict[tuple[str, str], int] = {}
        self._reconnecting: set[str] = set()
        # Requests since the last flush.
        self._energy_requests = 0

    def now(self) -> float:
        """The recorder's Unix time in seconds."""
        return self._clock()

    def publish(self, event: Event) -> None:
        """Apply one event from a link or a person, and queue it for the sinks.

        Frames are applied together, at the next flush or before the next event of another kind that is about
        the same node or about none: this keeps the start of a thousand links quick.
        """
        if isinstance(event, FrameArrived):
            self._frames.append(event)
            self._frames_of.add(event.node)
            return
        if isinstance(event, LinkMeasured):  # frequent, and independent of frames
            pass
        elif (
            not isinstance(event, LinkChanged | NodeIntroduced | FramesLost) or event.node in self._frames_of
        ):
            self._apply_frames()
        if isinstance(event, NodeIntroduced):
            self._reconnecting.discard(event.node)
        derived = self.fleet.apply(event)
        self._queued.append(event)
        self._queued.extend(other for other in derived if other is not event)
        if isinstance(event, SessionStarted | SessionStopped):
            self._energy_requests += 1
            if self._energy_requests == 1:
                self.read_energy()

    def _apply_frames(self) -> None:
        if self._frames:
            frames, self._frames = self._frames, []
            self._frames_of.clear()
            measured, logged = self.fleet.measure_frames(frames)
            self._queued += [*measured, *logged]

    def flush(self) -> None:
        """Hand all events since the last flush to the sinks, then call ``flushed``."""
        self._apply_frames()
        if self._energy_requests > 1:
            # One more message serves all sessions that started or stopped after the first of this tick.
            self.read_energy()
        self._energy_requests = 0
        self._queued.extend(self.fleet.tick(self.now()))
        events, self._queued = self._queued, []
        if events:
            for sink in self.sinks:
                sink.submit(events)
        if self.recorder is None:
            self._acknowledge({(e.node, e.life): e.frame.seq for e in events if isinstance(e, FrameArrived)})
        for callback in self.flushed:
            callback()

    def recorded(self, status: RecorderStatus) -> None:
        """Note a commit of the recorder, and acknowledge its frames to the nodes."""
        self.recorder = status
        self._acknowledge(status.committed)
        for node in status.refused:
            if node in self.links and node not in self._reconnecting:
                self._reconnecting.add(node)
                self.links[node].reconnect()

    def read_energy(self) -> None:
        """Read the energy counters of all nodes at their next tick."""
        for link in self.links.values():
            link.read_energy()

    def _acknowledge(self, frames: Mapping[tuple[str, str], int]) -> None:
        for (node, life), seq in frames.items():
            if self._acknowledged.get((node, life)) != seq and node in self.links:
                self._acknowledged[node, life] = seq
                self.links[node].acknowledge(life, seq)

    async def run(self) -> None:
        """Run all links and flush once an interval (at least once a second) until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in self.links.values():
                tasks.create_task(self._run_link(link), name=f"link {link.node}")
            while True:
                now = self.now()
                due = next_flush(now, self.fleet.interval_s)
                await asyncio.sleep(due - now)
                # A pause of the recorder itself doesn't count as its nodes' silence.
                if (late_s := self.now() - due) > LATE_FLUSH_S:
                    self.fleet.excuse_silence(late_s + (CATCH_UP_S if late_s > STANDSTILL_S else 0.0))
                if late_s > STANDSTILL_S:
                    how = f"paused for {late_s:.0f} s (stopped, suspended or without CPU)"
                    self.warn("standstill", f"gswarm-tui itself was {how}")
                self.flush()

    async def _run_link(self, link: Link) -> None:
        """Run one link; an internal error loses only its node."""
        try:
            await link.run()
        except Exception as error:
            _LOG.exception("the link to %s failed", link.node)
            reason = f"internal error of gswarm-tui: {type(error).__name__}: {error}"
            self.publish(LinkChanged(link.node, self.now(), Phase.LOST, reason, "see the log"))

    async def stop_links(self) -> None:
        """Stop all links after their agents' last frames, which still reach the sinks."""
        stopping = asyncio.gather(*(link.stop() for link in self.links.values()))
        try:
            while not stopping.done():
                await asyncio.wait({stopping}, timeout=STOP_FLUSH_INTERVAL_S)
                self.flush()
        finally:
            stopping.cancel()

    def nodes_with_frames(self) -> list[str]:
        """Return the nodes that may hold frames that aren't on disk here."""
        return [name for name, link in self.links.items() if link.may_hold_frames()]

    def set_interval(self, interval_ms: int) -> None:
        """Change the sampling interval of all nodes."""
        self.publish(IntervalChanged(self.now(), interval_ms))
        for link in self.links.values():
            link.set_interval(interval_ms)

    def set_metrics(self, groups: tuple[str, ...]) -> None:
        """Measure only these groups of metrics on all nodes."""
        self.publish(MetricsChanged(self.now(), groups))
        for link in self.links.values():
            link.set_metrics(groups)

    def set_job_end(self, at: float) -> None:
        """Set when the nodes' job ends: Unix time, infinite for never."""
        for link in self.links.values():
            link.set_job_end(at)

    def log(self, kind: str, message: str, detail: str | None = None) -> None:
        """Log an event that happens now."""
        self.publish(EventLogged(self.now(), kind, INFO, message, detail=detail))

    def warn(self, kind: str, message: str, node: str | None = None) -> None:
        """Log a warning about something that happens now."""
        self.publish(EventLogged(self.now(), kind, WARNING, message, node))
