"""The hub: the only consumer of links. Events go to the fleet in order, and to the sinks once a tick."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gswarm_agent.frame import INFO
from gswarm_tui.fleet.events import (
    Event,
    EventLogged,
    FrameArrived,
    FramesLost,
    IntervalChanged,
    LinkChanged,
    LinkMeasured,
    NodeIntroduced,
    Phase,
    RecorderStatus,
    SessionChanged,
    SessionStarted,
    SessionStopped,
)
from gswarm_tui.fleet.state import Fleet

FLUSH_LONGEST_S = 1.0
FLUSH_ENDING_S = 0.1
FLUSH_FIRST_S, FIRST_S = 0.25, 3.0
"""What comes at first is waited for, and shown sooner; of many nodes at once that would hold up others."""
FEW_NODES = 128
FLUSH_PHASE = 0.4
"""Agents read at whole multiples of the interval; so much of one later their frames are here, also many."""
TURNS = 3
"""A node that goes on sending hears at every third commit what is on disk, because to tell it costs half as
much as its frame does. At a commit a second that is well before an agent writes to its own disk."""
SLOW_S = 1.2
"""Where commits are further apart, nodes hear of each, else they would write to their disks meanwhile."""

_LOG = logging.getLogger(__name__)


class Sink(Protocol):
    """Somewhere that events go, in order; must not block."""

    def submit(self, events: Sequence[Event]) -> None:
        """Take these over."""


class NodeLink(Protocol):
    """What the hub needs of a link."""

    node: str

    async def run(self) -> None:
        """Keep the node connected until stopped."""

    async def stop(self) -> None:
        """Let the agent end, and disconnect."""

    def acknowledge(self, life: str, seq: int) -> None:
        """Tell the agent that its frames up to this one are on disk."""

    def resume(
        self, life: str, seq: int, offset_s: float, round_trip_s: float, last: tuple[int, float] | None = None
    ) -> None:
        """A recording goes on, which has a life's frames up to this one.

        ``offset_s`` is what that life's clock is ahead of the head's, as measured in ``round_trip_s``;
        ``last`` is when that frame was read by the node's clock [ns], and by the head's [Unix seconds].
        """

    def may_hold_frames(self) -> bool:
        """Whether an agent was heard that wasn't seen to end with all of its frames on disk."""

    def is_paused(self) -> bool:
        """Whether no more is read of the node until more of it is acknowledged."""

    def reconnect(self) -> None:
        """Connect anew, so that what isn't on disk comes again."""

    def set_interval(self, interval_ms: int) -> None:
        """Sample at another interval from now on."""

    def set_job_end(self, at: float) -> None:
        """The node's job ends then."""


def next_flush(now: float, interval_s: float, first_until: float = -math.inf) -> float:
    """When to flush after a flush at ``now``, Unix seconds: once an interval, at least once a second.

    By deadlines: were the time that a tick takes added, some second would have none. One that is less than a
    tenth of an interval ahead has just been. Up to ``first_until`` it is four times a second.
    """
    every = min(FLUSH_LONGEST_S, interval_s)
    due = every * (math.floor(now / every - FLUSH_PHASE + 1.1) + FLUSH_PHASE)
    return min(due, now + FLUSH_FIRST_S) if now < first_until else due


class Hub:
    """Joins links, fleet and sinks on one event loop, and carries out what people ask for.

    ``flushed`` are called after each tick with nothing: screens look at ``fleet`` then.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:12],
    ) -> None:
        self.fleet = fleet
        self.recorder: RecorderStatus | None = None
        self.started_at = clock()
        self.links: dict[str, NodeLink] = {}
        self.sinks: list[Sink] = []
        self.flushed: list[Callable[[], None]] = []
        self._clock = clock
        self._new_id = new_id
        self._waiting: list[Event] = []
        self._frames: list[FrameArrived] = []
        self._frames_of: set[str] = set()
        self._acknowledged: dict[tuple[str, str], int] = {}
        self._owed: dict[str, dict[str, int]] = {}
        self._commits, self._committed_at = 0, self.started_at
        self._reconnecting: set[str] = set()

    def now(self) -> float:
        """The head's Unix time in seconds."""
        return self._clock()

    def publish(self, event: Event) -> None:
        """Take in one event from a link or a person.

        The fleet knows of frames from the next flush, or the next event of another kind about the same node
        or none: while a thousand links come up, frames aren't taken one by one.
        """
        if isinstance(event, FrameArrived):
            self._frames.append(event)
            self._frames_of.add(event.node)
            self._waiting.append(event)
            return
        if isinstance(event, LinkMeasured):  # which says nothing of frames, and comes often
            pass
        elif (
            not isinstance(event, LinkChanged | NodeIntroduced | FramesLost) or event.node in self._frames_of
        ):
            self._take_frames()
        if isinstance(event, NodeIntroduced):
            self._reconnecting.discard(event.node)
        elif isinstance(event, LinkChanged):  # when it connects anew, it asks for what comes after that
            self._acknowledge([event.node])
        told = self.fleet.apply(event)
        self._waiting.append(event)
        self._waiting.extend(t for t in told if t is not event)

    def _take_frames(self) -> None:
        if self._frames:
            frames, self._frames = self._frames, []
            self._frames_of.clear()
            self._waiting.extend(self.fleet.apply_frames(frames))

    def flush(self) -> None:
        """Hand everything since the last flush to the sinks, then tell the screens."""
        self._take_frames()
        self._waiting.extend(self.fleet.tick(self.now()))
        events, self._waiting = self._waiting, []
        if events:
            for sink in self.sinks:
                sink.submit(events)
        frames = [event for event in events if isinstance(event, FrameArrived)]
        if self.recorder is None:
            self._on_disk({(e.node, e.life): e.frame.seq for e in frames})
        self._acknowledge(self._owed.keys() - {e.node for e in frames})
        for callback in self.flushed:
            callback()

    def recorded(self, status: RecorderStatus) -> None:
        """The recorder committed: nodes hear it in turns, and one that fell silent from the next flush."""
        self.recorder = status
        self._on_disk(status.committed)
        for node in status.behind:
            if node in self.links and node not in self._reconnecting:
                self._reconnecting.add(node)
                self.links[node].reconnect()

    def _on_disk(self, frames: Mapping[tuple[str, str], int]) -> None:
        """Lives' frames up to these are on disk: nodes hear it in turns, at once where that is too late."""
        for (node, life), seq in frames.items():
            if self._acknowledged.get((node, life)) != seq and node in self.links:
                self._owed.setdefault(node, {})[life] = seq
        before, self._committed_at = self._committed_at, self.now()
        self._commits += 1
        slow = self._committed_at - before > SLOW_S
        turn = slice(None) if slow else slice(self._commits % TURNS, None, TURNS)
        held_up = [node for node in self._owed if self.links[node].is_paused()]
        self._acknowledge([*held_up, *list(self.links)[turn]])

    def _acknowledge(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            for life, seq in self._owed.pop(node, {}).items():
                self._acknowledged[node, life] = seq
                self.links[node].acknowledge(life, seq)

    async def run(self) -> None:
        """Run all links and flush once an interval (at least once a second) until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for link in self.links.values():
                tasks.create_task(self._keep(link), name=f"link {link.node}")
            first_until = self.now() + FIRST_S if len(self.links) <= FEW_NODES else -math.inf
            while True:
                now = self.now()
                await asyncio.sleep(next_flush(now, self.fleet.interval_s, first_until) - now)
                self.flush()

    async def _keep(self, link: NodeLink) -> None:
        """Run one link; a fault of ours in it costs that node and no other."""
        try:
            await link.run()
        except Exception as error:
            _LOG.exception("the link to %s failed", link.node)
            reason = f"gswarm-tui failed inside: {type(error).__name__}: {error}"
            self.publish(LinkChanged(link.node, self.now(), Phase.LOST, reason, "the log tells more"))

    async def stop_links(self) -> None:
        """Ask every agent for its last frames and end all links; frames go on to the sinks meanwhile."""
        stopping = asyncio.gather(*(link.stop() for link in self.links.values()))
        try:
            while not stopping.done():
                await asyncio.wait({stopping}, timeout=FLUSH_ENDING_S)
                self.flush()
        finally:
            stopping.cancel()

    def holding(self) -> list[str]:
        """The nodes that may hold frames which aren't on disk here."""
        return [name for name, link in self.links.items() if link.may_hold_frames()]

    def set_interval(self, interval_ms: int) -> None:
        """Sample every node at another interval from now on."""
        self.publish(IntervalChanged(self.now(), interval_ms))
        for link in self.links.values():
            link.set_interval(interval_ms)

    def set_job_end(self, at: float) -> None:
        """The nodes' job ends at this Unix time, infinite for never."""
        for link in self.links.values():
            link.set_job_end(at)

    def start_session(self, name: str, *, started_at: float | None = None, note: str = "") -> str:
        """Begin a session now, or at a time in the past; answers its id."""
        at = self.now()
        session_id = self._new_id()
        begins = at if started_at is None else min(started_at, at)
        self.publish(SessionStarted(session_id, at, name, begins, note))
        return session_id

    def stop_session(self, session_id: str) -> None:
        """End a session now."""
        at = self.now()
        self.publish(SessionStopped(session_id, at, at))

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or rewrite its note."""
        self.publish(SessionChanged(session_id, self.now(), name, note))

    def mark(self, name: str, detail: str, *, at: float | None = None) -> EventLogged:
        """Mark this moment, or one in the past; ``detail`` has values as a JSON object. Answers the mark."""
        now = self.now()
        made = EventLogged(now if at is None else min(at, now), "mark", INFO, name, detail=detail)
        self.publish(made)
        return made

    def stop_all_sessions(self) -> None:
        """End every running session, as before the recording closes."""
        for session in self.fleet.sessions.running:
            self.stop_session(session.session_id)
