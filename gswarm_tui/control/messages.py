"""What goes over a head's socket: length-prefixed msgpack, with the types that answers have.

A request is one mapping; what answers it is one mapping or, for a query, several. Four bytes of length,
big-endian, come before each. What doesn't fit raises MessageError, and the connection is of no use then.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgpack

VERSION = 1
MAX_REQUEST = 4 * 1024 * 1024
MAX_REPLY = 64 * 1024 * 1024
LENGTH = struct.Struct(">I")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # as the database has it: UTC, without saying so
_MICROSECOND = timedelta(microseconds=1)


class MessageError(Exception):
    """Something that isn't a message, or is too long for one."""


def _pack(values: Any) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data)


# For each type that msgpack lacks: its code, how it becomes bytes, and how it comes back.
_EXTRAS: tuple[tuple[type, int, Callable[[Any], bytes], Callable[[bytes], Any]], ...] = (
    (datetime, 1, lambda v: _pack(_of_datetime(v)), lambda d: _to_datetime(*_unpack(d))),
    (date, 2, lambda v: _pack(v.toordinal()), lambda d: date.fromordinal(_unpack(d))),
    (time, 3, lambda v: v.isoformat().encode(), lambda d: time.fromisoformat(d.decode())),
    (
        timedelta,
        4,
        lambda v: _pack((v.days, v.seconds, v.microseconds)),
        lambda d: timedelta(*_unpack(d)),
    ),
    (Decimal, 5, lambda v: str(v).encode(), lambda d: Decimal(d.decode())),
    (UUID, 6, lambda v: v.bytes, lambda d: UUID(bytes=d)),
    (int, 7, lambda v: str(v).encode(), lambda d: int(d.decode())),
)
_READERS = {code: read for _, code, _, read in _EXTRAS}


def _of_datetime(value: datetime) -> tuple[int, int | None]:
    offset = value.utcoffset()
    micros = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    return micros, None if offset is None else offset // timedelta(seconds=1)


def _to_datetime(micros: int, offset_s: int | None) -> datetime:
    value = _EPOCH + timedelta(microseconds=micros)
    return value if offset_s is None else value.replace(tzinfo=timezone(timedelta(seconds=offset_s)))


def _extra(value: Any) -> Any:
    for kind, code, write, _ in _EXTRAS:
        if isinstance(value, kind):
            return msgpack.ExtType(code, write(value))
    return str(value)


def _read_extra(code: int, data: bytes) -> Any:
    if (read := _READERS.get(code)) is None:
        raise MessageError(f"unknown type {code}")
    return read(data)


def _small(value: Any) -> Any:
    """The value with integers that msgpack can't hold wrapped; it doesn't ask ``default`` for these."""
    match value:
        case int() if not -(1 << 63) <= value < 1 << 64:
            return _extra(value)
        case list() | tuple():
            return [_small(each) for each in value]
        case dict():
            return {_small(key): _small(each) for key, each in value.items()}
    return value


def encode(message: dict[str, Any], most: int = MAX_REPLY) -> bytes:
    """A message with its length. Raises MessageError where it would be longer than ``most``."""
    try:
        packed: bytes = msgpack.packb(message, default=_extra, unicode_errors="replace")
    except OverflowError:
        packed = msgpack.packb(_small(message), default=_extra, unicode_errors="replace")
    except ValueError as error:
        raise MessageError(f"it can't be sent: {error}") from None
    if len(packed) > most:
        raise MessageError(f"{len(packed) / 1e6:.0f} MB are more than the {most / 1e6:.0f} MB that fit")
    return LENGTH.pack(len(packed)) + packed


def decode(packed: bytes) -> dict[str, Any]:
    """The message of these bytes, which come after their length. Raises MessageError."""
    try:
        message = msgpack.unpackb(packed, ext_hook=_read_extra, strict_map_key=False)
    except (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.exceptions.StackError) as error:
        raise MessageError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("not a message")
    return message


def length(head: bytes, most: int) -> int:
    """The length of the message that these four bytes announce. Raises MessageError where it is too long."""
    (size,) = LENGTH.unpack(head)
    if size > most:
        raise MessageError(f"a message of {size} bytes is too long")
    return int(size)
