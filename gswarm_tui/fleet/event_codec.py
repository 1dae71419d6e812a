"""Codec of events for viewers elsewhere: plain values for msgpack.

An event is a list: its kind, then its fields in order. Hellos and frames are in it as the agents' wire
encodes them, so that they have one format; a frame's energy isn't sent, as each fleet decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, get_args

from gswarm_agent.frame import Frame, Hello
from gswarm_agent.wire import MAGIC, Decoder, encode
from gswarm_agent.wire_payload import WireError
from gswarm_tui.fleet import events
from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.plain_values import typed

_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(events.Event)}
"""Kinds of events by the name of their class."""


class EventError(ValueError):
    """Raised for values that are no event."""


def encode_event(event: events.Event) -> list[Any]:
    """Return an event as plain values. Raises WireError for a hello or frame that didn't come from a wire."""
    fields = list(vars(event).values())
    match event:
        case events.FrameArrived():
            fields[4:] = encode(event.frame), event.offset_s
        case events.NodeIntroduced():
            fields[2] = encode(event.hello)
        case events.LinkChanged():
            fields[2] = event.phase.value
        case events.FindingChanged():
            fields[1] = event.finding.plain()
    return [type(event).__name__, *fields]


class EventReader:
    """Reads events in the order in which they were encoded: a frame follows the hello of its agent's run."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[str, str], Decoder] = {}

    def event(self, values: Sequence[Any]) -> events.Event:
        """Return the event of plain values. Raises EventError."""
        try:
            name, *fields = values
            kind = _KINDS[name]
            if kind is events.FrameArrived:
                fields[4] = self.frame(fields[0], fields[3], fields[4])
            elif kind is events.NodeIntroduced:
                fields[2] = self.hello(fields[0], fields[2])
            elif kind is events.LinkChanged:
                fields[2] = events.Phase(fields[2])
            elif kind is events.FindingChanged:
                fields[1] = Finding.from_plain(fields[1])
            elif kind is events.MetricsChanged:
                fields[1] = tuple(fields[1])
            event: events.Event = typed(kind, *fields)
            if isinstance(event, events.FleetExamined):
                _check_examined(event)
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


def _check_examined(event: events.FleetExamined) -> None:
    """Check what the containers have, which ``typed`` doesn't. Raises TypeError."""
    texts = [*event.ledger, *event.not_measured, *chain.from_iterable(event.not_measured.values())]
    numbers, causes = event.ledger.values(), event.causes.values()
    types = [{*map(type, values)} for values in (texts, causes, numbers)]
    known = types[0] <= {str} and types[1] <= {bytes} and types[2] <= {int, float}
    steps = [of for of in (event.step_s, event.step_before_s) if of is not None]
    if not known or not all(map(math.isfinite, numbers)) or not all(0 < of < math.inf for of in steps):
        raise TypeError("no result of the rules")
