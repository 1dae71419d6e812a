"""Codec of events for viewers elsewhere: plain values for msgpack.

An event is a list: its kind, then its fields in order. Hellos and frames are in it as the agents' wire
encodes them, so that they have one format; a frame's energy isn't sent, as each fleet decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, encode
from gswarm_agent.wire_payload import WireError
from gswarm_tui.fleet.events import (
    Event,
    FrameArrived,
    LinkChanged,
    MetricsChanged,
    NodeIntroduced,
    Phase,
)

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Event)}
"""Kinds of events by the name of their class."""
INVALID = (ValueError, TypeError, LookupError, WireError)
"""Raised for values that are no event. Recorder and viewer have the same version, so types aren't checked."""


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
    return [type(event).__name__, *fields]


class EventReader:
    """Reads events in the order in which they were encoded: a frame follows the hello of its agent's run."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str], Decoder] = {}

    def event(self, values: Sequence[Any]) -> Event:
        """Return the event of plain values. Raises INVALID."""
        name, *fields = values
        kind = _KINDS[name]
        if kind is FrameArrived:
            fields[4] = self.frame(fields[0], fields[3], fields[4])
        elif kind is NodeIntroduced:
            fields[2] = self.hello(fields[0], fields[2])
        elif kind is LinkChanged:
            fields[2] = Phase(fields[2])
        elif kind is MetricsChanged:
            fields[1] = tuple(fields[1])
        event: Event = kind(*fields)
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
