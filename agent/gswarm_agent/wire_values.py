"""What came over the wire, checked: values as msgpack unpacked them become those that everything speaks.

They are untrusted: sizes and shapes are checked, text is made printable, and the first thing that doesn't fit
raises ``WireError``.
"""

from __future__ import annotations

from functools import lru_cache, partial

from gswarm_agent.block import MAX_SINGLE
from gswarm_agent.frame import ClockExchange, GpuFacts, Hello, HostFacts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar

    _T = TypeVar("_T")

MAX_GPUS = 256
MAX_COLUMNS = 512
MAX_PROCESSES = 4096
MAX_NOTES = 1024
MAX_LIVES = 16
MAX_TEXT = 4096
MAX_INTEGER = 2**63 - 1


class WireError(Exception):
    """The other side sent something that is not of this protocol; the message says what."""


def malformed(what: str) -> WireError:
    """What to raise for a part that isn't as it has to be."""
    return WireError(f"malformed {what}")


def read_integer(value: Any, what: str, low: int = 0, high: int = MAX_INTEGER) -> int:
    """A whole number between two bounds, both included."""
    if type(value) is not int or not low <= value <= high:
        raise malformed(what)
    return value


def read_text(value: Any, what: str) -> str:
    """Text of at most ``MAX_TEXT`` characters, blanks for those that can't be printed."""
    if type(value) is not str or len(value) > MAX_TEXT:
        raise malformed(what)
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)


def optional(check: Callable[..., _T], value: Any, what: str) -> Optional[_T]:
    """None, or what ``check`` makes of the value."""
    return None if value is None else check(value, what)


def read_number(value: Any, what: str) -> float:
    """A number that single precision holds."""
    if type(value) not in (int, float) or not -MAX_SINGLE <= value <= MAX_SINGLE:
        raise malformed(what)
    return float(value)


def read_array(value: Any, what: str, longest: int, exactly: Optional[int] = None) -> List[Any]:
    """A list of at most, or of exactly, so many values."""
    if type(value) is not list or len(value) > longest or (exactly is not None and len(value) != exactly):
        raise malformed(what)
    return value


def _flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        raise malformed(what)
    return value


_FACT_CHECKS: Dict[str, Callable[[Any, str], Any]] = {
    "str": read_text,
    "int": read_integer,
    "bool": _flag,
    "Optional[str]": partial(optional, read_text),
    "Optional[int]": partial(optional, read_integer),
    "Optional[float]": partial(optional, read_number),
}


def _facts(kind: Type[_T], value: Any, what: str) -> _T:
    """A dataclass of plain fields from an array in the order of its fields."""
    described = kind.__annotations__.items()
    values = read_array(value, what, MAX_COLUMNS, len(described))
    return kind(*(_FACT_CHECKS[type_](v, f"{what} {name}") for (name, type_), v in zip(described, values)))


def read_hello(body: List[Any]) -> Hello:
    """A hello from the parts of its message."""
    version, life, interval_ms, simulated, host, gpus, capabilities, columns, clock = body
    if type(capabilities) is not dict or len(capabilities) > MAX_GPUS * MAX_COLUMNS:
        raise malformed("hello capabilities")
    tables = read_array(columns, "hello columns", 4, 4)
    named = [_columns(tuple(read_array(table, "hello columns", MAX_COLUMNS))) for table in tables]
    return Hello(
        agent_version=read_text(version, "hello version"),
        life=read_text(life, "hello life"),
        interval_ms=read_integer(interval_ms, "hello interval"),
        simulated=_flag(simulated, "hello"),
        host=_facts(HostFacts, host, "hello host"),
        gpus=tuple(_facts(GpuFacts, g, "hello gpu") for g in read_array(gpus, "hello gpus", MAX_GPUS)),
        capabilities={
            read_text(k, "capability"): read_text(v, "capability") for k, v in capabilities.items()
        },
        gpu_columns=named[0],
        host_columns=named[1],
        process_columns=named[2],
        exact_columns=frozenset(named[3]),
        clock=None if clock is None else read_clock(clock),
    )


@lru_cache(maxsize=8)
def _columns(names: Tuple[Any, ...]) -> Tuple[str, ...]:
    """A table's columns, read once for all nodes of a version, which then share them."""
    return tuple(read_text(name, "hello column") for name in names)


def read_clock(value: Any) -> ClockExchange:
    """An exchange of times."""
    sent, received, answered = read_array(value, "clock", 3, 3)
    return ClockExchange(
        read_integer(sent, "clock"), read_integer(received, "clock"), read_integer(answered, "clock")
    )
