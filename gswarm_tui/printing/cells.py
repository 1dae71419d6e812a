"""Formatting of values: readable in tables, exact in files, without control characters."""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from gswarm_tui.common.errors import printable
from gswarm_tui.store.querying.results import QueryError

NOTHING = "–"
_SINGLE = struct.Struct("f")
_DIGITS = 5
_MOST_DECIMALS = 6
_INTEGERS = frozenset(
    {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"}
    | {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT", "BIGNUM"}
)


def is_number(kind: str) -> bool:
    """Return whether a DuckDB type holds numbers."""
    return kind in _INTEGERS or kind in {"FLOAT", "DOUBLE"} or kind.startswith("DECIMAL")


@contextlib.contextmanager
def checked_depth() -> Iterator[None]:
    """Raise QueryError if a value that the block formats is nested too deeply."""
    try:
        yield
    except RecursionError:
        raise QueryError("a value of the result is nested too deeply; cast it to VARCHAR") from None


def exact(value: Any, kind: str = "") -> str:
    """Format a value so that DuckDB reads it back; NULL is empty, FLOAT has the digits it needs."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float():
            return repr(shortest(value) if kind == "FLOAT" else value)
        case datetime():
            return _utc(value)
        case bytes() | bytearray() | memoryview():
            return "".join(f"\\x{byte:02X}" for byte in bytes(value))
        case list() | tuple():
            return "[" + ", ".join(_within(each) for each in value) + "]"
        case dict():
            return "{" + ", ".join(f"{_within(key)}: {_within(each)}" for key, each in value.items()) + "}"
    return str(value)


def _utc(moment: datetime) -> str:
    """Format a time as ISO 8601 with its zone, always as long: pandas reads no mixed lengths."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='microseconds')}Z"


def _within(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else exact(value)


def shortest(value: float) -> float:
    """Return the number with the fewest digits that is equal in single precision."""
    if not math.isfinite(value):
        return value
    for digits in (7, 8):
        if _SINGLE.unpack(_SINGLE.pack(near := float(f"{value:.{digits}g}")))[0] == value:
            return near
    return value


def plain(value: Any, kind: str = "") -> Any:
    """Convert a value for JSON: JSON as it is, times and other types as text, NaN and infinity as null."""
    if kind == "JSON" and value is not None:
        with contextlib.suppress(ValueError):  # a number that Python can't read stays text
            return json.loads(value, parse_float=_finite)
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return (shortest(value) if kind == "FLOAT" else value) if math.isfinite(value) else None
        case Decimal():
            return float(value) if value.is_finite() else None
        case datetime():
            return _utc(value)
        case list() | tuple():
            return [plain(each) for each in value]
        case dict():
            return {exact(key): plain(each) for key, each in value.items()}
    return exact(value)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


def writer(kind: str, sample: Sequence[Any]) -> Callable[[Any], str]:
    """Return the formatter of a column; a sample of values decides the number of decimals."""
    if kind in {"FLOAT", "DOUBLE"} or kind.startswith("DECIMAL"):
        return _number(sample)
    if kind.startswith("TIMESTAMP"):
        return _moment(sample)
    return _text


def _text(value: Any) -> str:
    return NOTHING if value is None else printable(exact(value))


def _number(sample: Sequence[Any]) -> Callable[[Any], str]:
    finite = [abs(float(each)) for each in sample if each is not None and math.isfinite(each)]
    largest = max(finite, default=0.0)
    before = math.floor(math.log10(largest)) + 1 if largest >= 1 else 0
    most = min(_MOST_DECIMALS, max(1, _DIGITS - before))
    decimals = max((len(f"{each:.{most}f}".rstrip("0").partition(".")[2]) for each in finite), default=0)

    def shown(value: Any) -> str:
        if value is None:
            return NOTHING
        if not math.isfinite(value):
            return str(value)
        if value != 0 and not 10**-decimals / 2 <= abs(value) < 1e15:
            return f"{value:.3g}"
        return f"{value:.{decimals}f}"

    return shown


def _moment(sample: Sequence[Any]) -> Callable[[Any], str]:
    parts = [each.microsecond for each in sample if isinstance(each, datetime)]
    precision = "seconds" if not any(parts) else "milliseconds"

    def shown(value: Any) -> str:
        if isinstance(value, datetime):
            return value.isoformat(" ", precision)
        return _text(value)

    return shown
