"""The wire: messages between head and agent as length-prefixed msgpack, without any I/O.

A stream begins with ``MAGIC``; whatever a login shell printed before it is noise. Then each message is four
bytes of length, big-endian, and a msgpack array whose first element is the message's tag. The hello
describes the columns once; frames carry plain arrays. Floats travel in single precision; counters and times
are integers and exact.

Everything that comes from the other side is untrusted: sizes and shapes are checked, text is made printable,
and the first thing that doesn't fit raises ``WireError``, after which the stream is of no use.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, fields
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, Type, TypeVar, Union

import msgpack

from gswarm_agent.frame import (
    ERROR,
    INFO,
    WARNING,
    Clock,
    Frame,
    GpuFacts,
    Hello,
    HostFacts,
    Note,
    ProcessSample,
    Row,
)

WIRE_VERSION = 2
MAGIC = b"\x00gswarm-wire-%d\n" % WIRE_VERSION
MAX_MESSAGE = 4 * 1024 * 1024
MAX_NOISE = 64 * 1024
MAX_GPUS = 256
MAX_COLUMNS = 512
MAX_PROCESSES = 4096
MAX_NOTES = 1024
MAX_LIVES = 16
MAX_TEXT = 4096
TAKEN_OVER = "another head took over"
GAVE_ALL = "the agent gave all that was left"
KEEPS = "; frames that it could not send wait on its disk"
_LENGTH = struct.Struct(">I")
_MAX_INTEGER = 2**63 - 1
_MAX_SINGLE = 3.4028234663852886e38


class WireError(Exception):
    """The other side sent something that is not of this protocol; the message says what."""


@dataclass(frozen=True)
class Start:
    """Head to agent, first message: begin to sample every ``interval_ms``; ``sent`` is the head's time.

    ``resume`` says what the head has on disk of this node: (life, last sequence), newest life first, at most
    ``MAX_LIVES`` of them.
    """

    interval_ms: int
    sent: int
    resume: Tuple[Tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Ping:
    """Head to agent: tell me your time; ``sent`` is the head's Unix time in nanoseconds."""

    sent: int


@dataclass(frozen=True)
class Pong:
    """Agent to head: the answer to a ping."""

    clock: Clock


@dataclass(frozen=True)
class Ack:
    """Head to agent: every frame of ``life`` up to ``seq`` is on disk."""

    life: str
    seq: int


@dataclass(frozen=True)
class SetInterval:
    """Head to agent: sample every ``interval_ms`` from now on."""

    interval_ms: int


@dataclass(frozen=True)
class Stop:
    """Head to agent: send the last frames, say bye and end."""


@dataclass(frozen=True)
class Bye:
    """Agent to head: the last message, and why it ends."""

    reason: str


Message = Union[Hello, Frame, Start, Ping, Pong, Ack, SetInterval, Stop, Bye]

_T = TypeVar("_T")


def _fail(what: str) -> WireError:
    return WireError(f"malformed {what}")


def _integer(value: Any, what: str, low: int = 0, high: int = _MAX_INTEGER) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _fail(what)
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise _fail(what)
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def _optional(check: Callable[..., _T], value: Any, what: str) -> Optional[_T]:
    return None if value is None else check(value, what)


def _number(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not -_MAX_SINGLE <= value <= _MAX_SINGLE:
        raise _fail(what)
    return float(value)


def _array(value: Any, what: str, longest: int, exactly: Optional[int] = None) -> List[Any]:
    if type(value) is not list or len(value) > longest or (exactly is not None and len(value) != exactly):
        raise _fail(what)
    return value


def _row(value: Any, width: int, what: str) -> Row:
    row = _array(value, what, MAX_COLUMNS, width)
    for number in row:
        if number is None:
            continue
        kind = type(number)
        if kind is int:
            if not -_MAX_INTEGER <= number <= 2 * _MAX_INTEGER + 1:
                raise _fail(what)
        elif kind is not float or not -_MAX_SINGLE <= number <= _MAX_SINGLE:
            raise _fail(what)
    return tuple(row)


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise _fail(what)
    return value


_FACT_CHECKS: Dict[str, Callable[[Any, str], Any]] = {
    "str": _text,
    "int": _integer,
    "bool": _flag,
    "Optional[str]": partial(_optional, _text),
    "Optional[int]": partial(_optional, _integer),
    "Optional[float]": partial(_optional, _number),
}


def _facts(kind: Type[_T], value: Any, what: str) -> _T:
    """A dataclass of plain fields from an array in the order of its fields."""
    described = fields(kind)  # type: ignore[arg-type]
    values = _array(value, what, MAX_COLUMNS, len(described))
    return kind(*(_FACT_CHECKS[str(f.type)](v, f"{what} {f.name}") for f, v in zip(described, values)))


def _hello(body: List[Any]) -> Hello:
    version, life, interval_ms, simulated, host, gpus, capabilities, columns, clock = body
    if type(capabilities) is not dict or len(capabilities) > MAX_GPUS * MAX_COLUMNS:
        raise _fail("hello capabilities")
    named = [
        tuple(_text(name, "hello column") for name in _array(table, "hello columns", MAX_COLUMNS))
        for table in _array(columns, "hello columns", 3, 3)
    ]
    return Hello(
        agent_version=_text(version, "hello version"),
        life=_text(life, "hello life"),
        interval_ms=_integer(interval_ms, "hello interval"),
        simulated=_flag(simulated, "hello"),
        host=_facts(HostFacts, host, "hello host"),
        gpus=tuple(_facts(GpuFacts, g, "hello gpu") for g in _array(gpus, "hello gpus", MAX_GPUS)),
        capabilities={_text(k, "capability"): _text(v, "capability") for k, v in capabilities.items()},
        gpu_columns=named[0],
        host_columns=named[1],
        process_columns=named[2],
        clock=None if clock is None else _clock(clock),
    )


def _clock(value: Any) -> Clock:
    sent, received, answered = _array(value, "clock", 3, 3)
    return Clock(_integer(sent, "clock"), _integer(received, "clock"), _integer(answered, "clock"))


def _frame(body: List[Any], hello: Optional[Hello]) -> Frame:
    if hello is None:
        raise WireError("a frame came before the hello")
    seq, ts_ns, late_ms, missed, gpus, host, processes, notes = body
    width = len(hello.gpu_columns)
    return Frame(
        seq=_integer(seq, "frame seq", 1),
        ts_ns=_integer(ts_ns, "frame time"),
        late_ms=_number(late_ms, "frame lateness"),
        missed=_integer(missed, "frame missed"),
        gpus=tuple(
            None if row is None else _row(row, width, "frame gpus")
            for row in _array(gpus, "frame gpus", MAX_GPUS, len(hello.gpus))
        ),
        host=None if host is None else _row(host, len(hello.host_columns), "frame host"),
        processes=None
        if processes is None
        else tuple(_process(p, hello) for p in _array(processes, "frame processes", MAX_PROCESSES)),
        notes=tuple(_note(n, hello) for n in _array(notes, "frame notes", MAX_NOTES)),
    )


def _process(value: Any, hello: Hello) -> ProcessSample:
    gpu, pid, user, command, rank, local_rank, row = _array(value, "process", 7, 7)
    return ProcessSample(
        gpu=_integer(gpu, "process gpu", 0, len(hello.gpus) - 1),
        pid=_integer(pid, "process pid"),
        user=_optional(_text, user, "process user"),
        command=_optional(_text, command, "process command"),
        rank=_optional(_integer, rank, "process rank"),
        local_rank=_optional(_integer, local_rank, "process rank"),
        row=_row(row, len(hello.process_columns), "process row"),
    )


def _note(value: Any, hello: Hello) -> Note:
    kind, severity, message, gpu = _array(value, "note", 4, 4)
    if severity not in (INFO, WARNING, ERROR):
        raise _fail("note severity")
    return Note(
        kind=_text(kind, "note kind"),
        severity=severity,
        message=_text(message, "note message"),
        gpu=None if gpu is None else _integer(gpu, "note gpu", 0, len(hello.gpus) - 1),
    )


def _start(interval_ms: Any, sent: Any, resume: Any) -> Start:
    pairs = [_array(pair, "start resume", 2, 2) for pair in _array(resume, "start resume", MAX_LIVES)]
    committed = tuple((_text(life, "start life"), _integer(seq, "start seq")) for life, seq in pairs)
    return Start(_integer(interval_ms, "start interval", 1), _integer(sent, "start time"), committed)


_HELLO, _FRAME = 1, 2
_SIMPLE: Dict[int, Tuple[Type[Any], Callable[[List[Any]], Message]]] = {
    3: (Pong, lambda b: Pong(_clock(b[0]))),
    4: (Bye, lambda b: Bye(_text(b[0], "bye"))),
    16: (Start, lambda b: _start(*b)),
    17: (Ack, lambda b: Ack(_text(b[0], "ack life"), _integer(b[1], "ack seq"))),
    18: (Ping, lambda b: Ping(_integer(b[0], "ping"))),
    19: (SetInterval, lambda b: SetInterval(_integer(b[0], "interval", 1))),
    20: (Stop, lambda _b: Stop()),
}
_TAGS: Dict[Type[Any], int] = {kind: tag for tag, (kind, _) in _SIMPLE.items()}


def _sendable(row: Row) -> List[Optional[Union[int, float]]]:
    """The row without numbers that are none: a slip in a probe must not cost the node its link."""
    return [None if type(n) is float and not -_MAX_SINGLE <= n <= _MAX_SINGLE else n for n in row]


def _body(message: Message) -> List[Any]:
    if isinstance(message, Hello):
        return [
            _HELLO,
            message.agent_version,
            message.life,
            message.interval_ms,
            message.simulated,
            astuple(message.host),
            [astuple(gpu) for gpu in message.gpus],
            dict(message.capabilities),
            [message.gpu_columns, message.host_columns, message.process_columns],
            None if message.clock is None else astuple(message.clock),
        ]
    if isinstance(message, Frame):
        processes = message.processes
        return [
            _FRAME,
            message.seq,
            message.ts_ns,
            message.late_ms,
            message.missed,
            [None if row is None else _sendable(row) for row in message.gpus],
            None if message.host is None else _sendable(message.host),
            processes
            and [
                (p.gpu, p.pid, p.user, p.command, p.rank, p.local_rank, _sendable(p.row)) for p in processes
            ],
            [(n.kind, n.severity, n.message, n.gpu) for n in message.notes],
        ]
    return [_TAGS[type(message)], *astuple(message)]


def encode(message: Message) -> bytes:
    """One message as bytes, its length first. Text is expected to fit (``clip_text``). Raises WireError."""
    try:
        packed: bytes = msgpack.packb(_body(message), use_single_float=True)
    except (ValueError, OverflowError, TypeError) as error:
        raise WireError(f"a message can't be said: {error}") from None
    if len(packed) > MAX_MESSAGE:
        raise WireError(f"a message of {len(packed)} bytes is larger than the {MAX_MESSAGE} allowed")
    return _LENGTH.pack(len(packed)) + packed


def clip_text(text: str, longest: int = MAX_TEXT) -> str:
    """The text cut to what the wire allows, lone surrogates replaced, so that it can always be encoded."""
    return text[:longest].encode("utf-8", "replace").decode("utf-8")


class Decoder:
    """Turns bytes, in pieces of any size, into messages; knows the hello so that frames can be checked.

    ``noise`` holds what came before the magic, for an error message.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False
        self._hello: Optional[Hello] = None
        self.noise = b""

    @property
    def started(self) -> bool:
        """Whether the magic has been seen."""
        return self._started

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that these bytes complete. Raises WireError at the first thing that doesn't fit."""
        self._buffer += data
        if not self._started and not self._find_magic():
            return
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE:
                raise WireError(f"a message of {length} bytes is larger than the {MAX_MESSAGE} allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            packed = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield self._decode(packed)

    def _find_magic(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at < 0:
            self.noise = bytes(self._buffer[:MAX_NOISE])
            if len(self._buffer) > MAX_NOISE:
                raise WireError("no agent answered, only other output")
            return False
        self.noise = bytes(self._buffer[:at])
        del self._buffer[: at + len(MAGIC)]
        self._started = True
        return True

    def _decode(self, packed: bytes) -> Message:
        try:
            body = msgpack.unpackb(packed, max_str_len=4 * MAX_TEXT, max_bin_len=0, max_ext_len=0)
        except (ValueError, RecursionError, msgpack.exceptions.StackError) as error:
            raise WireError(f"not msgpack: {str(error) or 'nested too deep'}") from None
        if type(body) is not list or not body or type(body[0]) is not int:
            raise _fail("message")
        tag, values = body[0], body[1:]
        try:
            if tag == _HELLO:
                self._hello = _hello(values)
                return self._hello
            if tag == _FRAME:
                return _frame(values, self._hello)
            if tag in _SIMPLE:
                kind, build = _SIMPLE[tag]
                if len(values) != len(fields(kind)):
                    raise _fail(kind.__name__.lower())
                return build(values)
        except (ValueError, TypeError) as error:
            raise WireError(f"malformed message: {error}") from None
        raise WireError(f"unknown message {tag}")
