"""Events from links, agents and people, on their way to the fleet and the recorder.

Live nodes, simulated nodes and replayed recordings all produce the same stream of events.
``at`` is always the head's Unix time in seconds.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gswarm_agent.frame import INFO, NOTE_KINDS, STEP, WARNING, Frame, Hello
from gswarm_agent.metrics import MAX_INTERVAL_MS, MIN_INTERVAL_MS, known_groups
from gswarm_tui.fleet.energy import EnergyUsed
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.trial_kinds import TRIAL_KINDS

WAITING = "waiting"
"""Kind of the event that names the nodes that may still hold frames when a recording is left open."""
ABANDONED = "abandoned"
"""Kind of the event that names the nodes that still held frames when a recording was closed."""
LINK_LOST, UNREACHABLE = "link_lost", "unreachable"
"""Kinds of the events of a link that broke, and of one to a node that was never connected."""
KINDS_DURING_RUN = ("gap", "mark", STEP)
"""Kinds of events whose time lies within the run, even if they are logged after it."""
INTERVAL_CHANGED = "interval_changed"
"""Kind of the event of a new sampling interval; its detail has ``old_ms`` and ``new_ms``."""
METRICS_CHANGED = "metrics_changed"
"""Kind of the event of switched metric groups; its detail lists those that are on, ``old`` and ``new``."""
DASK_TASKS = "dask tasks"
"""Name of the marks about a Dask scheduler's tasks."""
EVENT_KINDS = NOTE_KINDS | {
    *(ABANDONED, INTERVAL_CHANGED, LINK_LOST, METRICS_CHANGED, UNREACHABLE, WAITING, *TRIAL_KINDS),
    *("allocation", "asked", "finding", "finding_end", "fresh", "gap", "interrupted", "link_live", "profile"),
    *("reboot", "recorder_restarted"),
    *("recording_ended", "session_renamed", "session_started", "session_stopped", "stale", "standstill"),
    *("stop_undone", "trace", "unhealthy"),
}
"""All kinds of events of a run; a recording of another version may have others."""
AGENT_DATA_LOST = "the agent's unsent frames are gone"
"""Beginning of the message of a gap of unknown size."""


GpuKey = tuple[str, int, str]
"""A GPU's node, its index there and its UUID."""


class Phase(enum.Enum):
    """State of a node's link."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"
    ENDED = "ended"


@dataclass(frozen=True)
class LinkChanged:
    """A link changed its phase.

    ``reason`` says in one sentence why it was lost, ``remedy`` what the user can do; ``retry_at`` is the time
    of the next attempt, None without one.
    """

    node: str
    at: float
    phase: Phase
    reason: str = ""
    remedy: str = ""
    retry_at: float | None = None


@dataclass(frozen=True)
class NodeIntroduced:
    """An agent introduced itself; ``former`` if it delivers the frames of an earlier agent run.

    Frames belong to the run of the last hello before them.
    """

    node: str
    at: float
    hello: Hello
    former: bool = False


@dataclass(frozen=True)
class LinkMeasured:
    """A link measured its clock: node's minus recorder's time, and the round trip, in seconds."""

    node: str
    at: float
    offset_s: float
    round_trip_s: float


@dataclass(frozen=True)
class FrameArrived:
    """A frame arrived; ``ts`` is its time by the recorder's clock, ``life`` the agent run that numbered it.

    ``offset_s`` is how far the node's clock was ahead, for other times in the frame. ``energy`` is what its
    GPUs used since the sample before: of a recorded frame as recorded, else None until the fleet decides it.
    """

    node: str
    at: float
    ts: float
    life: str
    frame: Frame
    offset_s: float = 0.0
    energy: EnergyUsed | None = field(default=None, compare=False)


@dataclass(frozen=True)
class FramesLost:
    """Missing frames of an agent run up to ``seq`` are lost; ``ts`` is the approximate recorder time."""

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
class MetricsChanged:
    """All nodes measure these groups of metrics from now on."""

    at: float
    groups: tuple[str, ...]


@dataclass(frozen=True)
class SessionStarted:
    """A session was started; ``started_at`` may lie before ``at`` (backdated)."""

    session_id: str
    at: float
    name: str
    started_at: float
    note: str = ""


@dataclass(frozen=True)
class SessionChanged:
    """A session was renamed or its note changed; None keeps a field."""

    session_id: str
    at: float
    name: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class SessionStopped:
    """A session was stopped."""

    session_id: str
    at: float
    ended_at: float


@dataclass(frozen=True)
class StopUndone:
    """The stop of a session was undone: it continues as if it had never been stopped."""

    session_id: str
    at: float


@dataclass(frozen=True)
class EventLogged:
    """An event for the events screen and the table ``events`` was logged.

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


@dataclass(frozen=True)
class FindingChanged:
    """A finding was opened, changed, dismissed or closed; ``finding`` has all that is known of it now."""

    at: float
    finding: Finding


@dataclass(frozen=True)
class FleetExamined:
    """The rules looked at the fleet.

    ``ledger`` has the job's GPU-seconds so far by cause. ``causes`` are each node's GPUs now, a byte each:
    the position in ``insight.ledger.CAUSES``, 255 for none. ``not_measured`` maps signals to the nodes
    without them. ``step_s`` is the step time in seconds that the traffic shows, None without any, and
    ``step_before_s`` that of ten minutes before.
    """

    at: float
    ledger: dict[str, float]
    causes: dict[str, bytes]
    not_measured: dict[str, list[str]]
    step_s: float | None = None
    step_before_s: float | None = None


def json_object(text: object) -> dict[str, Any]:
    """Parse a JSON object that a recording holds; empty if it is anything else."""
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def new_interval_ms(detail: str | None) -> int | None:
    """Return the interval in the detail of an ``interval_changed`` event, None where it has no valid one."""
    interval_ms = json_object(detail).get("new_ms")
    valid = type(interval_ms) is int and MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS
    return interval_ms if valid else None


def new_groups(detail: str | None) -> tuple[str, ...] | None:
    """Return the groups in the detail of a ``metrics_changed`` event, None where it has no valid ones."""
    names = json_object(detail).get("new")
    return known_groups(map(str, names)) if isinstance(names, list) else None


def metrics_changed(at: float, old: tuple[str, ...], new: tuple[str, ...]) -> EventLogged:
    """Return the event to log when metric groups were switched."""
    changes = (("off", [name for name in old if name not in new]), ("on", [n for n in new if n not in old]))
    words = "; ".join(f"{', '.join(names)} switched {state}" for state, names in changes if names)
    detail = json.dumps({"old": old, "new": new})
    return EventLogged(at, METRICS_CHANGED, INFO, f"metrics: {words}", detail=detail)


def agent_data_lost(node: str, last_at: float | None, now: float) -> EventLogged:
    """Return the event for an agent whose unsent frames are gone, as after a reboot that clears ``/var/tmp``.

    ``last_at`` is the time of the newest frame received, None without one.
    """
    since = "" if last_at is None else " after this"
    message = f"{AGENT_DATA_LOST}: samples that it took{since}, if any, are lost"
    return EventLogged(now if last_at is None else last_at, "gap", WARNING, message, node)


Event = (
    LinkChanged | NodeIntroduced | LinkMeasured | FrameArrived | FramesLost
    | IntervalChanged | MetricsChanged
    | SessionStarted | SessionChanged | SessionStopped | StopUndone
    | EventLogged | FindingChanged | FleetExamined
)  # fmt: skip


@dataclass(frozen=True)
class RecorderStatus:
    """State of the recorder; ``error`` is one sentence while it can't write, else empty.

    ``rows`` counts rows committed in this recording, ``file_bytes`` the file with its write-ahead log,
    ``waiting`` the events not yet committed, ``committed`` the last committed sequence of each (node, life).
    ``refused`` are the nodes whose frames were refused while memory was short and are welcome again.
    """

    path: str
    rows: int
    file_bytes: int
    waiting: int
    committed: dict[tuple[str, str], int]
    error: str = ""
    closed: bool = False
    refused: tuple[str, ...] = ()


def weight(event: Event) -> int:
    """Return the approximate size of an event in memory in bytes."""
    if not isinstance(event, FrameArrived):
        return 500
    frame, processes = event.frame, event.frame.processes
    held = 1000 + len(frame.gpus.data) + len(frame.host.data)
    if frame.notes:
        held += sum(200 + len(note.message) + len(note.detail or "") for note in frame.notes)
    held += sum(100 * len(rows.names) + len(rows.numbers.data) for rows in frame.listings.values())
    if processes is not None:
        held += 300 * len(processes) + len(processes.numbers.data)
        held += sum(len(one) for one in chain(*processes.columns) if isinstance(one, str))
    return held
