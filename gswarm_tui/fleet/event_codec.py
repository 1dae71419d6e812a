"""Codec of events for viewers elsewhere: plain values for msgpack.

An event is a list: its kind, then its fields in order. Hellos and frames are in it as the agents' wire
encodes them, so that they have one format; a frame's energy isn't sent, as each fleet decides the same.
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
    FindingChanged,
    FrameArrived,
    LinkChanged,
    MetricsChanged,
    NodeIntroduced,
    Phase,
)
from gswarm_tui.fleet.findings import Finding

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
"""Kinds of events by the name of their class."""


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
    fields = list(vars(event).values())
    match event:
        case FrameArrived():
            fields[4:] = encode(event.frame), event.offset_s
        case NodeIntroduced():
            fields[2] = encode(event.hello)
        case LinkChanged():
            fields[2] = event.phase.value
        case FindingChanged():
            fields[1] = event.finding.plain()
    return [type(event).__name__, *fields]


class EventReader:
    """Reads events in the order in which they were encoded: a frame follows the hello of its agent's run."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str], Decoder] = {}

    def event(self, values: Sequence[Any]) -> Event:
        """Return the event of plain values. Raises EventError."""
        try:
            name, *fields = values
            kind = _KINDS[name]
            if kind is FrameArrived:
                fields[4] = self.frame(fields[0], fields[3], fields[4])
            elif kind is NodeIntroduced:
                fields[2] = self.hello(fields[0], fields[2])
            elif kind is LinkChanged:
                fields[2] = Phase(fields[2])
            elif kind is FindingChanged:
                fields[1] = Finding.from_plain(fields[1])
            elif kind is MetricsChanged:
                fields[1] = tuple(fields[1])
            event: Event = typed(kind, *fields)
        except (ValueError, TypeError, LookupError, WireError) as error:
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
