"""Frames on the wire: numbers as a block for each table, what stands beside them in lists."""

from __future__ import annotations

import struct
from functools import lru_cache

import msgpack

from gswarm_agent.block import Block, BlockLayout
from gswarm_agent.frame import ERROR, INFO, WARNING, Frame, Hello, Note, Processes
from gswarm_agent.wire_values import (
    MAX_INTEGER,
    MAX_NOTES,
    MAX_PROCESSES,
    malformed,
    optional,
    read_array,
    read_integer,
    read_number,
    read_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence, Tuple

_MAYBE_TEXTS = frozenset({str, type(None)})

# msgpack's formats, all in one width (msgpack specification).
_HEAD = struct.Struct(">BBBQBQBfBQ")
_BINARY = struct.Struct(">BI")
_ARRAY, _BIN_32, _FLOAT_32, _UINT_64 = 0x90, 0xC6, 0xCA, 0xCF
_NIL, _NOTHING, _SEVEN = b"\xc0", b"\x90", b"\x97"


def pack_frame(tag: int, frame: Frame) -> bytes:
    """A frame's message in msgpack; of too many notes the newest. Raises struct.error, and as msgpack does.

    What is in every frame is written here: it takes msgpack without its compiled part several times as long.
    """
    times = (_UINT_64, frame.seq, _UINT_64, frame.ts_ns, _FLOAT_32, frame.late_ms, _UINT_64, frame.missed)
    return b"".join(
        (
            _HEAD.pack(_ARRAY | 9, tag, *times),
            _binary(frame.gpus),
            _binary(frame.host),
            _NIL if frame.processes is None else _packed_processes(frame.processes),
            _packed_notes(frame.notes[-MAX_NOTES:]) if frame.notes else _NOTHING,
        )
    )


def _binary(block: Block) -> bytes:
    return _BINARY.pack(_BIN_32, len(block.data)) + block.data


def _packed_processes(told: Processes) -> bytes:
    who = _packed_who(told.gpus, told.pids, told.users, told.commands, told.ranks, told.local_ranks)
    return _SEVEN + who + _binary(told.numbers)


@lru_cache(maxsize=1)
def _packed_who(*columns: Tuple[Any, ...]) -> bytes:
    """What is said of processes beside their numbers, which most often are those of the look before."""
    return b"".join([msgpack.packb(column) for column in columns])


def _packed_notes(notes: Sequence[Note]) -> bytes:
    packed: bytes = msgpack.packb([(n.kind, n.severity, n.message, n.gpu, n.ts_ns, n.detail) for n in notes])
    return packed


class FrameReader:
    """Frames in the shape that the hello before them described."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._said: List[Any] = []
        self._looked: Optional[Processes] = None

    def read(self, body: List[Any]) -> Frame:
        """A frame from the parts of its message."""
        hello = self._hello
        seq, ts_ns, late_ms, missed, gpus, host, processes, notes = body
        read_array(notes, "frame notes", MAX_NOTES)
        return Frame(
            read_integer(seq, "frame seq", 1),
            read_integer(ts_ns, "frame time"),
            read_number(late_ms, "frame lateness"),
            read_integer(missed, "frame missed"),
            _block(gpus, hello.tables.gpus, len(hello.gpus), "frame gpus"),
            _block(host, hello.tables.host, 1, "frame host"),
            None if processes is None else self._processes(processes),
            tuple([_note(note, hello) for note in notes]) if notes else (),
        )

    def _processes(self, value: Any) -> Processes:
        """Most are those of the look before: what is said of them is checked, and held, once."""
        *said, numbers = read_array(value, "processes", 7, 7)
        if self._looked is not None and said == self._said:
            known = self._looked
            block = _block(numbers, self._hello.tables.processes, len(known), "process numbers")
            who = known.gpus, known.pids, known.users, known.commands, known.ranks, known.local_ranks
            return Processes(*who, block)
        self._looked = _processes(value, self._hello)
        self._said = said
        return self._looked


def _block(value: Any, layout: BlockLayout, count: int, what: str) -> Block:
    """A block of so many rows. Any bits are numbers, but there have to be as many as it takes."""
    if type(value) is not bytes or len(value) != layout.row_size * count:
        raise malformed(what)
    return Block(layout, count, value)


def _processes(value: Any, hello: Hello) -> Processes:
    gpus, pids, users, commands, ranks, local_ranks, numbers = read_array(value, "processes", 7, 7)
    count = len(read_array(gpus, "process gpu", MAX_PROCESSES))
    return Processes(
        gpus=_integers(gpus, count, "process gpu", len(hello.gpus) - 1),
        pids=_integers(pids, count, "process pid"),
        users=_texts(users, count, "process user"),
        commands=_texts(commands, count, "process command"),
        ranks=_maybe_integers(ranks, count, "process rank"),
        local_ranks=_maybe_integers(local_ranks, count, "process rank"),
        numbers=_block(numbers, hello.tables.processes, count, "process numbers"),
    )


def _integers(value: Any, count: int, what: str, high: int = MAX_INTEGER) -> Tuple[int, ...]:
    """A column of whole numbers, checked all at once: there are thousands of them in a second."""
    column = read_array(value, what, MAX_PROCESSES, count)
    if column and (set(map(type, column)) != {int} or min(column) < 0 or max(column) > high):
        raise malformed(what)
    return tuple(column)


def _maybe_integers(value: Any, count: int, what: str) -> Tuple[Optional[int], ...]:
    column = read_array(value, what, MAX_PROCESSES, count)
    known = [number for number in column if number is not None]
    _integers(known, len(known), what)
    return tuple(column)


def _texts(value: Any, count: int, what: str) -> Tuple[Optional[str], ...]:
    """A column of texts, each checked once: processes of one job say the same."""
    column = read_array(value, what, MAX_PROCESSES, count)
    if not _MAYBE_TEXTS.issuperset(map(type, column)):
        raise malformed(what)
    clean = {text: optional(read_text, text, what) for text in set(column)}
    return tuple([clean[text] for text in column])


def _note(value: Any, hello: Hello) -> Note:
    kind, severity, message, gpu, ts_ns, detail = read_array(value, "note", 6, 6)
    if severity not in (INFO, WARNING, ERROR):
        raise malformed("note severity")
    return Note(
        kind=read_text(kind, "note kind"),
        severity=severity,
        message=read_text(message, "note message"),
        gpu=None if gpu is None else read_integer(gpu, "note gpu", 0, len(hello.gpus) - 1),
        ts_ns=optional(read_integer, ts_ns, "note time"),
        detail=optional(read_text, detail, "note detail"),
    )
