"""The wire: messages between recorder and agent as length-prefixed msgpack, without any I/O.

A stream begins with ``MAGIC``; the recorder skips what a login shell printed before it. Each message is four
bytes of length, big-endian, and a msgpack array whose first element is the message's tag. Frames carry one
block of numbers per table, in the catalogue's columns, see ``docs/decisions/002-wire-blocks.md``.

Nothing received is trusted: after the first ``WireError`` a stream can't be used any more.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, is_dataclass

import msgpack

from gswarm_agent.frame import ClockExchange, Frame, Hello
from gswarm_agent.metrics import DEFAULT_GROUPS, GPU_COLUMNS, HOST_COLUMNS, LISTING_COLUMNS, PROCESS_COLUMNS
from gswarm_agent.wire_payload import (
    MAX_NOTES,
    MAX_PROCESSES,
    MAX_TEXT,
    FrameReader,
    WireError,
    malformed,
    read_fields,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Tuple, Type, TypeAlias, Union

    LongBytes: TypeAlias = bytes
    """Bytes that only a message's own limit bounds: py-spy fits into one."""

WIRE_VERSION = zlib.crc32(repr((15, GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS, LISTING_COLUMNS)).encode())
"""Number of this form of messages, with the catalogue's columns. Increase the 15 with each other change."""
MAGIC = b"\x00gswarm-wire-%d\n" % WIRE_VERSION
MAX_MESSAGE = 4 * 1024 * 1024
MAX_PARTS = 16 * 1024
"""Maximum lists and maps in a message: an empty one takes one byte on the wire and sixty in memory."""
LENGTH = struct.Struct(">I")

# Recorders compare these texts, also with those of older agents and in recordings: they must not change.
TAKEN_OVER = "another head took over"
JOB_ENDED = "the agent ended because the job ended"
ENDED_BY = "the agent was ended by "
SENT_ALL = "the agent gave all that was left"
FRAMES_REMAIN = "; frames that it could not send wait on its disk"


@dataclass(frozen=True)
class Start:
    """Head to agent, first message: sample every ``interval_ms``; ``sent`` is the head's time.

    ``resume`` lists what the head has on disk of this node: (life, last sequence), newest life first, at most
    ``MAX_LIVES`` pairs. ``metrics`` are the groups of metrics to measure.
    """

    interval_ms: int
    sent: int
    resume: Tuple[Tuple[str, int], ...] = ()
    metrics: Tuple[str, ...] = DEFAULT_GROUPS


@dataclass(frozen=True)
class Ping:
    """Head to agent: request for the agent's time; ``sent`` is the head's Unix time in nanoseconds."""

    sent: int


@dataclass(frozen=True)
class Pong:
    """Agent to recorder: the response to a ping."""

    clock: ClockExchange


@dataclass(frozen=True)
class Ack:
    """Recorder to agent: every frame of ``life`` up to ``seq`` is on disk."""

    life: str
    seq: int


@dataclass(frozen=True)
class Configure:
    """Recorder to agent: sample these groups of metrics every ``interval_ms`` from now on.

    Unknown groups are ignored.
    """

    interval_ms: int
    metrics: Tuple[str, ...]


@dataclass(frozen=True)
class ReadEnergy:
    """Recorder to agent: read the energy counters at the next tick, as a session starts or stops."""


@dataclass(frozen=True)
class JobEnds:
    """Recorder to agent: the agent's job ends ``at``, None for never; ``sent`` is the recorder's time.

    Both are the recorder's Unix nanoseconds. The newest message counts, from any recorder.
    """

    at: Optional[int]
    sent: int


@dataclass(frozen=True)
class RequestTrace:
    """Recorder to agent: trace the PyTorch processes of these ranks, all without any.

    ``token`` names the request, which replaces an earlier one. The trace starts at ``start_ns``, the node's
    Unix time, and lasts ``duration_ms``.
    """

    token: str
    ranks: Tuple[int, ...]
    start_ns: int
    duration_ms: int
    stacks: bool


@dataclass(frozen=True)
class FetchTrace:
    """Recorder to agent: send the part of a process's trace at this offset."""

    token: str
    pid: int
    offset: int


@dataclass(frozen=True)
class EndTrace:
    """Recorder to agent: forget a request and remove its files from the node."""

    token: str


TRACE_REQUESTED, TRACE_READY, TRACE_FAILED = "requested", "ready", "failed"
TRACE_ASKED = "asked"
"""State of a node, with pid 0: all ranks that can be traced have asked, and the others are reported."""


@dataclass(frozen=True)
class TraceReport:
    """Agent to head: state of a process's trace; ``size`` is that of its file once it is ready, in bytes.

    ``reason`` says why it failed. ``pid`` is 0 if there is no process to name.
    """

    token: str
    pid: int
    rank: Optional[int]
    state: str
    reason: str
    size: int


@dataclass(frozen=True)
class TracePart:
    """Agent to recorder: the bytes of a trace at an offset; empty at its end."""

    token: str
    pid: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Ask:
    """Recorder to agent: ask this node's ranks by one step within ``seconds``; ``request`` is a JSON object.

    ``token`` names the request. The answer may have ``most`` bytes.
    """

    token: str
    step: str
    seconds: int
    most: int
    request: LongBytes


@dataclass(frozen=True)
class Answer:
    """Agent to recorder: the next part of the answer to a request, which is a JSON object."""

    token: str
    data: bytes
    last: bool


@dataclass(frozen=True)
class Stop:
    """Recorder to agent: send the last frames and a bye, then end."""


@dataclass(frozen=True)
class Lost:
    """Agent to head: the frames of ``life`` up to ``seq`` that the head lacks are lost, for this ``reason``.

    ``ts_ns`` is the node's Unix time of the last of them, or close to it. The agent sends this before the
    frames that follow, and repeats it until it is acknowledged like a frame with this ``seq``.
    """

    life: str
    seq: int
    ts_ns: int
    reason: str


@dataclass(frozen=True)
class Bye:
    """Agent to recorder: the last message, and why it ends."""

    reason: str


Message: TypeAlias = (
    "Union[Hello, Frame, Lost, Start, Ping, Pong, Ack, Configure, ReadEnergy, JobEnds, Stop,"
    " Bye, RequestTrace, FetchTrace, EndTrace, TraceReport, TracePart, Ask, Answer]"
)


_TO_RECORDER: Tuple[Type[Any], ...] = (*(Hello, Frame, Lost, Pong, TraceReport, TracePart, Bye, Answer),)
_TO_AGENT: Tuple[Type[Any], ...] = (
    *(Start, Ack, Ping, Configure, ReadEnergy, JobEnds, Stop),
    *(RequestTrace, FetchTrace, EndTrace, Ask),
)
_KINDS = dict(enumerate(_TO_RECORDER + _TO_AGENT, 1))
"""The messages by tag; all but frames are arrays of their fields."""
_TAGS = {kind: tag for tag, kind in _KINDS.items()}


def _body(message: Message) -> List[Any]:
    if isinstance(message, Frame):
        processes = message.processes
        return [
            _TAGS[Frame],
            message.seq,
            message.ts_ns,
            message.late_ms,
            message.missed,
            message.gpus.data,
            message.host.data,
            None if processes is None else [processes.columns, processes.numbers.data],
            _parts(message.notes[-MAX_NOTES:]),
            message.gauge_ms,
            {kind: [rows.names, rows.numbers.data] for kind, rows in message.listings.items()},
        ]
    return [_TAGS[type(message)], *_parts(message)]


def _parts(value: Any) -> Any:
    """Return a dataclass as a list of its fields, also within a tuple or another one."""
    if isinstance(value, tuple):
        return [_parts(part) for part in value]
    return [_parts(part) for part in vars(value).values()] if is_dataclass(value) else value


def encode(message: Message) -> bytes:
    """Return one message as bytes, length first; a frame keeps its newest ``MAX_NOTES`` notes.

    Text has to fit (``clip_text``). Raises WireError.
    """
    try:
        packed: bytes = msgpack.packb(_body(message), use_single_float=True)
    except (ValueError, OverflowError, TypeError) as error:
        raise WireError(f"a message can't be encoded: {error}") from None
    if len(packed) > MAX_MESSAGE:
        raise WireError(f"a message of {len(packed)} bytes is larger than the {MAX_MESSAGE} allowed")
    return LENGTH.pack(len(packed)) + packed


def clip_text(text: str) -> str:
    """Cut text to the length that the wire allows and replace lone surrogates, so that it can be encoded."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")


class _Parts:
    """Counts a message's lists and maps while it is unpacked. Raises WireError if there are too many."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, part: Any) -> Any:
        self._count += 1
        if self._count > MAX_PARTS:
            raise WireError(f"a message has more than the {MAX_PARTS} parts allowed")
        return part


class Decoder:
    """Decodes a stream, in pieces of any size, into messages; checks frames against their hello."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._started = False
        self._frames: Optional[FrameReader] = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that these bytes complete. Raises WireError at the first malformed one."""
        rest, at = self._rest, 0
        rest += data
        if not self._started:
            if not rest.startswith(MAGIC[: len(rest)]):
                text = bytes(rest[:100]).decode("utf-8", "replace").strip()
                raise WireError(f"other output came before its first message: {text}")
            if len(rest) < len(MAGIC):
                return
            self._started, at = True, len(MAGIC)
        try:
            while len(rest) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(rest, at)
                if length > MAX_MESSAGE:
                    raise WireError(f"a message of {length} bytes is larger than the {MAX_MESSAGE} allowed")
                begin = at + LENGTH.size
                if len(rest) < begin + length:
                    break
                at = begin + length
                yield self._decode(bytes(rest[begin:at]))
        finally:  # also when the caller stops early
            del rest[:at]

    def _decode(self, packed: bytes) -> Message:
        # A part takes at least one byte, so a short message can't have too many.
        parts = _Parts() if len(packed) > MAX_PARTS else None
        try:
            body = msgpack.unpackb(
                packed,
                max_str_len=4 * MAX_TEXT,
                max_bin_len=MAX_MESSAGE,
                max_ext_len=0,
                max_array_len=MAX_PROCESSES,
                list_hook=parts,
                object_hook=parts,
            )
        except (ValueError, RecursionError, msgpack.exceptions.StackError) as error:
            raise WireError(f"not msgpack: {str(error) or 'nested too deep'}") from None
        if type(body) is not list or not body or type(body[0]) is not int:
            raise malformed("message")
        tag, values = body[0], body[1:]
        try:
            if _KINDS.get(tag) is Frame:
                if self._frames is None:
                    raise WireError("a frame came before the hello")
                return self._frames.read(values)
            if tag in _KINDS:
                message: Message = read_fields(_KINDS[tag], values, _KINDS[tag].__name__.lower())
                if isinstance(message, Hello):
                    self._frames = FrameReader(message)
                return message
        except (ValueError, TypeError) as error:
            raise WireError(f"malformed message: {error}") from None
        raise WireError(f"unknown message {tag}")
