"""Codec of events for viewers elsewhere: plain values for msgpack.

An event is a list: its tag, then its fields in order. Hellos and frames are in it as the agents' wire encodes
them, so that they have one format; a frame's energy isn't sent, as each fleet decides the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, encode
from gswarm_agent.wire_payload import WireError
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
    SessionChanged,
    SessionStarted,
    SessionStopped,
    StopUndone,
)

_FRAME, _HELLO, _LINK, _METRICS = 1, 2, 3, 4
_PLAIN: dict[int, type[Any]] = {
    5: LinkMeasured,
    6: FramesLost,
    7: IntervalChanged,
    8: SessionStarted,
    9: SessionChanged,
    10: SessionStopped,
    11: StopUndone,
    12: EventLogged,
}
"""Events whose fields are plain values, by tag."""
_TAGS = {kind: tag for tag, kind in _PLAIN.items()}


T = TypeVar("T")


class EventError(ValueError):
    """Raised for values that are no event."""


def typed(kind: type[T], *values: Any) -> T:
    """Return an instance of a dataclass, whose fields have their types. Raises TypeError for others."""
    dataclass: Any = kind
    for (name, types), value in zip(field_types(dataclass).items(), values, strict=False):
        if type(value) not in types:
            raise TypeError(f"{kind.__name__}.{name} is no {type(value).__name__}")
    return kind(*values)


@cache
def field_types(kind: type[Any]) -> dict[str, frozenset[type]]:
    """Return the types that plain values of a dataclass may have by field; parts of containers may be any."""
    plain: dict[Any, set[type]] = {float: {int, float}, Mapping: {dict}}
    found = {}
    for name, hint in get_type_hints(kind).items():
        kinds = [
            get_origin(one) or one for one in (get_args(hint) if isinstance(hint, UnionType) else [hint])
        ]
        found[name] = frozenset[type]().union(*(plain.get(one, {one}) for one in kinds))
    return found


def encode_event(event: Event) -> list[Any]:
    """Return an event as plain values. Raises WireError for a hello or frame that didn't come from a wire."""
    match event:
        case FrameArrived():
            frame = encode(event.frame)
            return [_FRAME, event.node, event.at, event.ts, event.life, event.offset_s, frame]
        case NodeIntroduced():
            return [_HELLO, event.node, event.at, event.former, encode(event.hello)]
        case LinkChanged():
            why = event.reason, event.remedy, event.retry_at
            return [_LINK, event.node, event.at, event.phase.value, *why]
        case MetricsChanged():
            return [_METRICS, event.at, list(event.groups)]
    return [_TAGS[type(event)], *vars(event).values()]


class EventReader:
    """Reads events in the order in which they were encoded: a frame follows the hello of its agent's run."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str], Decoder] = {}

    def event(self, values: Sequence[Any]) -> Event:
        """Return the event of plain values. Raises EventError."""
        try:
            tag, *fields = values
            match tag:
                case 1:
                    node, at, ts, life, offset_s, frame = fields
                    return typed(FrameArrived, node, at, ts, life, self.frame(node, life, frame), offset_s)
                case 2:
                    node, at, former, hello = fields
                    return typed(NodeIntroduced, node, at, self.hello(node, hello), former)
                case 3:
                    node, at, phase, *why = fields
                    return typed(LinkChanged, node, at, Phase(phase), *why)
                case 4:
                    at, groups = fields
                    return typed(MetricsChanged, at, tuple(groups))
            event: Event = typed(_PLAIN[tag], *fields)
        except (ValueError, TypeError, KeyError, WireError) as error:
            raise EventError(f"invalid event: {error}") from None
        return event

    def hello(self, node: str, packed: bytes) -> Hello:
        """Return a hello, whose frames can be read from now on. Raises WireError."""
        decoder = Decoder()
        (hello,) = decoder.feed(MAGIC + packed)
        if not isinstance(hello, Hello):
            raise WireError("not a hello")
        self._decoders[node, hello.life] = decoder
        return hello

    def frame(self, node: str, life: str, packed: bytes) -> Frame:
        """Return a frame of an agent's run. Raises WireError, KeyError before its hello."""
        (frame,) = self._decoders[node, life].feed(packed)
        if not isinstance(frame, Frame):
            raise WireError("not a frame")
        return frame
