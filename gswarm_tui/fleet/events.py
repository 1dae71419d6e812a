"""Everything that can happen, as values: what links, agents and people do, on its way to fleet and recorder.

Live nodes, simulated nodes and replayed recordings are the same to everything after the link: a stream of
these. ``at`` is always the head's Unix time in seconds.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from itertools import chain

from gswarm_agent.frame import WARNING, Frame, Hello
from gswarm_agent.metrics import MAX_INTERVAL_MS, MIN_INTERVAL_MS

WAITING = "waiting"
"""The kind of event that says which nodes may hold frames when a recording is left open."""
ABANDONED = "abandoned"
"""The kind of event that says which nodes may hold frames that a closed recording was not to wait for."""
KINDS_DURING_RUN = ("gap", "mark")
"""The kinds of events whose time is one at which the recording ran, also where they are told afterwards."""
INTERVAL_CHANGED = "interval_changed"
"""The kind of event with another sampling interval; its detail has ``old_ms`` and ``new_ms``."""
AGENT_DATA_LOST = "nothing is left of the agent that it had"
"""How the message of a gap begins whose size nobody knows."""


GpuKey = tuple[str, int, str]
"""A GPU by its node, its index there and its UUID."""


class Phase(enum.Enum):
    """Where a node's link stands."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True)
class LinkChanged:
    """A link went to another phase.

    ``reason`` says in one sentence why it is lost, ``remedy`` what the person can do; ``retry_at`` is when
    the next attempt begins, None where none will be made.
    """

    node: str
    at: float
    phase: Phase
    reason: str = ""
    remedy: str = ""
    retry_at: float | None = None


@dataclass(frozen=True)
class NodeIntroduced:
    """A node's agent said hello; ``former`` if it only passes on what is left of an agent run before it.

    Frames belong to the life of the last hello before them.
    """

    node: str
    at: float
    hello: Hello
    former: bool = False


@dataclass(frozen=True)
class LinkMeasured:
    """The node's clock minus the head's, and the round trip, both in seconds."""

    node: str
    at: float
    offset_s: float
    round_trip_s: float


@dataclass(frozen=True)
class FrameArrived:
    """A frame; ``ts`` is its time on the head's clock, ``life`` the agent run its sequence belongs to.

    ``offset_s`` is by how much the node's clock was ahead then, for what else has a time in the frame.
    """

    node: str
    at: float
    ts: float
    life: str
    frame: Frame
    offset_s: float = 0.0

    @property
    def weight(self) -> int:
        """About how many bytes it holds in memory; asked for twice, and counted once."""
        # A cached_property takes a lock, which is as long as to count.
        known: int | None = self.__dict__.get("_weight")
        if known is None:
            known = self.__dict__["_weight"] = self._weigh()
        return known

    def _weigh(self) -> int:
        frame, processes = self.frame, self.frame.processes
        held = 1000 + len(frame.gpus.data) + len(frame.host.data)
        if frame.notes:
            held += sum(200 + len(note.message) + len(note.detail or "") for note in frame.notes)
        if processes is not None:
            held += 300 * len(processes) + len(processes.numbers.data)
            held += sum(map(len, filter(None, chain(processes.users, processes.commands))))
        return held


@dataclass(frozen=True)
class FramesLost:
    """What isn't here of a life up to ``seq`` never comes; ``ts`` is about when, on the head's clock."""

    node: str
    at: float
    ts: float
    life: str
    seq: int
    reason: str


@dataclass(frozen=True)
class IntervalChanged:
    """All nodes sample every ``interval_ms`` from now on."""

    at: float
    interval_ms: int


@dataclass(frozen=True)
class SessionStarted:
    """A named interval began; ``started_at`` may lie before ``at``."""

    session_id: str
    at: float
    name: str
    started_at: float
    note: str = ""


@dataclass(frozen=True)
class SessionChanged:
    """A session was renamed or its note rewritten; None leaves a field as it is."""

    session_id: str
    at: float
    name: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class SessionStopped:
    """A session ended."""

    session_id: str
    at: float
    ended_at: float


@dataclass(frozen=True)
class EventLogged:
    """Something worth a line in the events pane and a row in ``events``.

    ``kind`` is one lower-case word for queries, ``severity`` is info, warning or error
    (``gswarm_agent.frame``), ``gpu`` an NVML index or None.
    """

    at: float
    kind: str
    severity: str
    message: str
    node: str | None = None
    gpu: int | None = None
    detail: str | None = None


def new_interval_ms(detail: str | None) -> int | None:
    """Return the interval in the detail of an ``interval_changed`` event, None where it has no valid one."""
    try:
        interval_ms = json.loads(detail or "")["new_ms"]
    except (ValueError, KeyError, TypeError):
        return None
    valid = type(interval_ms) is int and MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS
    return interval_ms if valid else None


def agent_data_lost(node: str, last_at: float | None, now: float) -> EventLogged:
    """Of an agent that wasn't seen to end nothing is left, as after a reboot without ``/var/tmp``.

    ``last_at`` is the time of its newest frame that came, None where none did.
    """
    since = "" if last_at is None else " after this"
    words = f"{AGENT_DATA_LOST}: what it measured{since}, if anything, is lost"
    return EventLogged(now if last_at is None else last_at, "gap", WARNING, words, node)


Event = (
    LinkChanged
    | NodeIntroduced
    | LinkMeasured
    | FrameArrived
    | FramesLost
    | IntervalChanged
    | SessionStarted
    | SessionChanged
    | SessionStopped
    | EventLogged
)


@dataclass(frozen=True)
class RecorderStatus:
    """What the recorder has done so far; ``error`` is one sentence while it can't write, else empty.

    ``rows`` counts rows committed in this recording, ``file_bytes`` the file with its write-ahead log,
    ``waiting`` the events not yet committed, ``committed`` the last committed sequence of each (node, life).
    ``behind`` are nodes whose frames were refused for want of memory and can be taken again now.
    """

    path: str
    rows: int
    file_bytes: int
    waiting: int
    committed: dict[tuple[str, str], int]
    error: str = ""
    closed: bool = False
    behind: tuple[str, ...] = ()


def weight(event: Event) -> int:
    """About how many bytes an event holds in memory."""
    return event.weight if isinstance(event, FrameArrived) else 500
