"""Payloads of hellos and frames on the wire, and the checks of everything that the other side sends.

Nothing received is trusted: sizes and shapes are checked, text is made printable, and the first value that
does not fit raises ``WireError``.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from gswarm_agent import frame
from gswarm_agent.block import MAX_SINGLE, Block, BlockLayout
from gswarm_agent.metrics import MAX_INTERVAL_MS, MIN_INTERVAL_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type, TypeVar

    _T = TypeVar("_T")

MAX_GPUS = 256
MAX_GPU_INDEX = 9_999
MAX_COLUMNS = 512
MAX_PROCESSES = 4096
MAX_LISTINGS, MAX_LISTED = 8, 256
"""Listings of a node and rows of each, at most."""
MAX_NOTES = 1024
MAX_LIVES = 16
MAX_GROUPS = 64
MAX_LINKS = 4096
MAX_TEXT = 4096
TRACE_PART = 128 * 1024
"""Bytes of a trace that are sent at once, at most."""
MAX_INTEGER = 2**63 - 1
_MAYBE_TEXTS = frozenset({str, type(None)})


class WireError(Exception):
    """Raised for input that does not follow the protocol; the message names the malformed part."""


def malformed(what: str) -> WireError:
    """Return the error for a malformed part."""
    return WireError(f"malformed {what}")


def read_integer(value: Any, what: str, low: int = 0, high: int = MAX_INTEGER) -> int:
    """Return a whole number between two bounds, both included."""
    if type(value) is not int or not low <= value <= high:
        raise malformed(what)
    return value


def read_text(value: Any, what: str) -> str:
    """Return text of at most ``MAX_TEXT`` characters, with blanks for unprintable ones."""
    if type(value) is not str or len(value) > MAX_TEXT:
        raise malformed(what)
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def optional(check: Callable[..., _T], value: Any, what: str) -> Optional[_T]:
    """Return None for None, else the value after ``check``."""
    return None if value is None else check(value, what)


def read_number(value: Any, what: str) -> float:
    """Return a number within the range of single precision."""
    if type(value) not in (int, float) or not -MAX_SINGLE <= value <= MAX_SINGLE:
        raise malformed(what)
    return float(value)


def read_array(value: Any, what: str, longest: int, exactly: Optional[int] = None) -> List[Any]:
    """Return a list of at most ``longest`` values, or of exactly this many."""
    if type(value) is not list or len(value) > longest or (exactly is not None and len(value) != exactly):
        raise malformed(what)
    return value


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise malformed(what)
    return value


def _mapping(value: Any, what: str, longest: int) -> Mapping[Any, Any]:
    if type(value) is not dict or len(value) > longest:
        raise malformed(what)
    return value


def _resume(value: Any, what: str) -> Tuple[Tuple[str, int], ...]:
    pairs = [read_array(pair, what, 2, 2) for pair in read_array(value, what, MAX_LIVES)]
    return tuple((read_text(life, what), read_integer(seq, what)) for life, seq in pairs)


def _tuple(check: Callable[..., _T], longest: int, value: Any, what: str) -> Tuple[_T, ...]:
    return tuple(check(one, what) for one in read_array(value, what, longest))


def _data(most: int, value: Any, what: str) -> bytes:
    if type(value) is not bytes or len(value) > most:
        raise malformed(what)
    return value


def _capabilities(value: Any, what: str) -> Dict[str, str]:
    found = _mapping(value, what, MAX_GPUS * MAX_COLUMNS)
    return {read_text(name, what): read_text(reason, what) for name, reason in found.items()}


_FIELD_CHECKS: Dict[str, Callable[[Any, str], Any]] = {
    "str": read_text,
    "int": read_integer,
    "bool": _flag,
    "Optional[str]": partial(optional, read_text),
    "Optional[int]": partial(optional, read_integer),
    "Optional[float]": partial(optional, read_number),
    "ClockExchange": lambda value, what: read_fields(frame.ClockExchange, value, what),
    "Optional[ClockExchange]": partial(
        optional, lambda value, what: read_fields(frame.ClockExchange, value, what)
    ),
    "HostFacts": lambda value, what: read_fields(frame.HostFacts, value, what),
    "Tuple[GpuFacts, ...]": partial(
        _tuple, lambda value, what: read_fields(frame.GpuFacts, value, what), MAX_GPUS
    ),
    "Tuple[GpuLink, ...]": partial(
        _tuple, lambda value, what: read_fields(frame.GpuLink, value, what), MAX_LINKS
    ),
    "Mapping[str, str]": _capabilities,
    "Tuple[Tuple[str, int], ...]": _resume,
    "Tuple[str, ...]": partial(_tuple, read_text, MAX_GROUPS),
    "Tuple[int, ...]": partial(_tuple, read_integer, MAX_PROCESSES),
    "bytes": partial(_data, TRACE_PART),
    "LongBytes": partial(_data, MAX_INTEGER),
}


def read_fields(kind: Type[_T], value: Any, what: str) -> _T:
    """Return a dataclass from an array in the order of its fields, checked by their annotations."""
    named = fields(kind)  # type: ignore[arg-type]
    values = read_array(value, what, MAX_COLUMNS, len(named))
    return kind(*(_FIELD_CHECKS[str(f.type)](v, f"{what} {f.name}") for f, v in zip(named, values)))


class FrameReader:
    """Reads frames of the GPUs of a hello, whose numbers it checks. Raises WireError."""

    def __init__(self, hello: frame.Hello) -> None:
        read_integer(hello.interval_ms, "hello interval", MIN_INTERVAL_MS, MAX_INTERVAL_MS)
        for gpu in hello.gpus:
            read_integer(gpu.index, "hello gpu index", 0, MAX_GPU_INDEX)
        for link in hello.links:
            read_integer(link.gpu, "hello link", 0, len(hello.gpus) - 1)
        self._hello = hello

    def read(self, body: List[Any]) -> frame.Frame:
        """Return the frame of a message's values."""
        hello = self._hello
        seq, ts_ns, late_ms, missed, gpus, host, processes, notes, gauge_ms, listings = body
        read_array(notes, "frame notes", MAX_NOTES)
        return frame.Frame(
            read_integer(seq, "frame seq", 1),
            read_integer(ts_ns, "frame time"),
            read_number(late_ms, "frame lateness"),
            read_integer(missed, "frame missed"),
            _block(gpus, frame.TABLES.gpus, len(hello.gpus), "frame gpus"),
            _block(host, frame.TABLES.host, 1, "frame host"),
            None if processes is None else self._read_processes(processes),
            tuple([_note(note, hello) for note in notes]) if notes else (),
            read_integer(gauge_ms, "frame gauges", 0, frame.MAX_GAUGE_MS),
            {kind: self._read_listing(kind, rows) for kind, rows in listings.items()}
            if _mapping(listings, "frame listings", MAX_LISTINGS)
            else {},
        )

    def _read_listing(self, kind: Any, value: Any) -> frame.NamedRows:
        layout = frame.TABLES.listings.get(kind)
        if layout is None:
            raise malformed("frame listing")
        names, numbers = read_array(value, "listing", 2, 2)
        checked = _tuple(read_text, MAX_LISTED, names, "listed name")
        return frame.NamedRows(checked, _block(numbers, layout, len(checked), "listed numbers"))

    def _read_processes(self, value: Any) -> frame.Processes:
        width = len(frame.PROCESS_FIELDS)
        columns, numbers = read_array(value, "processes", 2, 2)
        gpus, *_ = read_array(columns, "processes", width, width)
        count = len(read_array(gpus, "process gpu", MAX_PROCESSES))
        checked = tuple(
            _COLUMN_CHECKS[kind](column, count, f"process {name}")
            for (name, kind), column in zip(frame.PROCESS_FIELDS.items(), columns)
        )
        if count and max(gpus) >= len(self._hello.gpus):
            raise malformed("process gpu")
        return frame.Processes(checked, _block(numbers, frame.TABLES.processes, count, "process numbers"))


def _block(value: Any, layout: BlockLayout, count: int, what: str) -> Block:
    """Return a block of this many rows. Any bits are numbers, so only the size is checked."""
    if type(value) is not bytes or len(value) != layout.row_size * count:
        raise malformed(what)
    return Block(layout, count, value)


def _integers(value: Any, count: int, what: str) -> Tuple[int, ...]:
    """Return a column of whole numbers, checked together: the recorder reads thousands a second."""
    column = read_array(value, what, MAX_PROCESSES, count)
    if column and (set(map(type, column)) != {int} or min(column) < 0 or max(column) > MAX_INTEGER):
        raise malformed(what)
    return tuple(column)


def _maybe_integers(value: Any, count: int, what: str) -> Tuple[Optional[int], ...]:
    column = read_array(value, what, MAX_PROCESSES, count)
    known = [number for number in column if number is not None]
    _integers(known, len(known), what)
    return tuple(column)


def _texts(value: Any, count: int, what: str) -> Tuple[Optional[str], ...]:
    """Return a column of texts, each distinct one checked once: ranks of one job share them."""
    column = read_array(value, what, MAX_PROCESSES, count)
    if not _MAYBE_TEXTS.issuperset(map(type, column)):
        raise malformed(what)
    clean = {text: optional(read_text, text, what) for text in set(column)}
    return tuple([clean[text] for text in column])


_COLUMN_CHECKS: Dict[str, Callable[[Any, int, str], Tuple[Any, ...]]] = {
    "int": _integers,
    "Optional[int]": _maybe_integers,
    "Optional[str]": _texts,
}


def _note(value: Any, hello: frame.Hello) -> frame.Note:
    note = read_fields(frame.Note, value, "note")
    if note.severity not in (frame.INFO, frame.WARNING, frame.ERROR):
        raise malformed("note severity")
    if note.gpu is not None:
        read_integer(note.gpu, "note gpu", 0, len(hello.gpus) - 1)
    if note.detail is not None:
        _check_detail(note.detail)
    return note


def _check_detail(text: str) -> None:
    """Check that a text is a flat JSON object."""
    import json

    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if type(values) is not dict or any(type(one) in (dict, list) for one in values.values()):
        raise malformed("note detail")
