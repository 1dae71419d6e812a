"""Groups of logged events, one line each: events of one kind and minute belong together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from gswarm_agent.frame import INFO
from gswarm_tui.common.quantities import elapsed, plural
from gswarm_tui.fleet.events import EventLogged, json_object
from gswarm_tui.fleet.names import natural_key

GROUPED_S = 60.0
NAMED_MOST = 3
"""Maximum GPUs or nodes that a group names; more are only counted."""
PINNED_S = 60.0
"""A single line keeps showing a warning or error for this many seconds, even if newer events follow."""
MARKS_PASSED = 500
"""Newest groups among which the lines look for events between marks."""
_SUBJECTS = {
    "late": "sampling was late",
    "gap": "frames are missing",
    "stale": "no data",
    "unhealthy": "no data",
}
"""Messages of groups by kind, for kinds whose own messages have figures that differ from node to node."""


@dataclass(eq=False)
class EventGroup:
    """Events of one kind, severity and minute, in the order of the log; ``at`` is the latest time."""

    events: list[EventLogged]
    at: float

    @property
    def first(self) -> EventLogged:
        """The event that was logged first."""
        return self.events[0]

    @property
    def message(self) -> str:
        """A single event's message, with a mark's values; else all in one: "power cap: 9 GPUs within 9 s"."""
        if len(self.events) == 1:
            values = json_object(self.first.detail) if self.first.kind == "mark" else {}
            shown = " ".join(f"{name}={value}" for name, value in values.items())
            return f"{self.first.message} · {shown}" if shown else self.first.message
        lasted = self.at - min(event.at for event in self.events)
        within = f" within {elapsed(lasted)}" if lasted >= 1 else ""
        return f"{_subject(self.first)}: {self._places()}{within}"

    @property
    def node(self) -> str | None:
        """The node, None if there are several or none."""
        nodes = {event.node for event in self.events}
        return self.first.node if len(nodes) == 1 else None

    @property
    def gpu(self) -> int | None:
        """The index of the GPU, None if there are several or none."""
        gpus = {(event.node, event.gpu) for event in self.events}
        return self.first.gpu if len(gpus) == 1 else None

    def _places(self) -> str:
        """Return the GPUs or nodes by name in their order, or their number."""
        gpus = {(event.node or "", event.gpu) for event in self.events}
        nodes = {node for node, _ in gpus}
        if len(gpus) == 1:
            return f"{len(self.events):,} times"
        if any(gpu is None for _, gpu in gpus):
            few = ", ".join(sorted(nodes, key=natural_key)) if len(nodes) <= NAMED_MOST else ""
            return few or plural(len(nodes), "node")
        if len(gpus) > NAMED_MOST:
            on_nodes = f" on {plural(len(nodes), 'node')}" if len(nodes) > 1 else ""
            return plural(len(gpus), "GPU") + on_nodes
        named = sorted(gpus, key=lambda each: (natural_key(each[0]), each[1] or 0))
        if len(nodes) == 1:  # shown beside the message
            return f"GPUs {', '.join(f'{gpu}' for _, gpu in named)}"
        return ", ".join(f"{node}:{gpu}" for node, gpu in named)


def _subject(event: EventLogged) -> str:
    return _SUBJECTS.get(event.kind) or event.message.removeprefix("throttled: ")


def grouped(events: Iterable[EventLogged], *, together: bool = True) -> list[EventGroup]:
    """Return events as groups, by time; without ``together`` each event is a group of its own."""
    groups: dict[object, EventGroup] = {}
    for event in events:
        key: object = event.at // GROUPED_S, event.kind, event.severity, _subject(event)
        if not together or event.node is None or event.kind == "mark":
            key = id(event)
        group = groups.setdefault(key, EventGroup([], event.at))
        group.events.append(event)
        group.at = max(group.at, event.at)
    return sorted(groups.values(), key=_time)


def _time(group: EventGroup) -> float:
    return group.at


def latest(groups: Sequence[EventGroup], most: int, now: float) -> list[EventGroup]:
    """Return the newest groups, oldest first; up to half of them are the newest warnings and errors.

    If only one fits, a warning or error of the last minute is preferred. Marks, which a job may set each
    second, get half of the lines that are left while other events need the rest.
    """
    severe = islice((g for g in reversed(groups) if g.first.severity != INFO), max(1, most // 2))
    chosen = [g for g in severe if most > 1 or now - g.at < PINNED_S]
    left = most - len(chosen)
    rest = [g for g in islice(reversed(groups), MARKS_PASSED) if g not in chosen]
    marks = [g for g in rest if g.first.kind == "mark"]
    others = [g for g in rest if g.first.kind != "mark"][: max(left // 2, left - len(marks))]
    return sorted([*chosen, *others, *marks[: left - len(others)]], key=_time)
