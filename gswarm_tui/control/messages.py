"""Messages on a head's socket: length-prefixed msgpack, extended by the types of query results.

A request is one mapping; its reply is one mapping or, for a query, several. Each follows its length in four
bytes, big-endian. After a MessageError the connection is unusable.
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
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # naive UTC, like the database
_MICROSECOND = timedelta(microseconds=1)


class MessageError(Exception):
    """Raised for an invalid or too long message."""


def _pack(values: Any) -> bytes:
    packed: bytes = msgpack.packb(values)
    return packed


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data)


# The types that msgpack lacks: type, code, encoder, decoder.
_EXTENSIONS: tuple[tuple[type, int, Callable[[Any], bytes], Callable[[bytes], Any]], ...] = (
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
_DECODERS = {code: read for _, code, _, read in _EXTENSIONS}


def _of_datetime(value: datetime) -> tuple[int, int | None]:
    offset = value.utcoffset()
    micros = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    return micros, None if offset is None else offset // timedelta(seconds=1)


def _to_datetime(micros: int, offset_s: int | None) -> datetime:
    value = _EPOCH + timedelta(microseconds=micros)
    return value if offset_s is None else value.replace(tzinfo=timezone(timedelta(seconds=offset_s)))


def _pack_extension(value: Any) -> Any:
    for kind, code, write, _ in _EXTENSIONS:
        if isinstance(value, kind):
            return msgpack.ExtType(code, write(value))
    return str(value)


def _unpack_extension(code: int, data: bytes) -> Any:
    if (read := _DECODERS.get(code)) is None:
        raise MessageError(f"unknown type {code}")
    return read(data)


def _wrap_large_integers(value: Any) -> Any:
    # msgpack doesn't call ``default`` for integers beyond 64 bits.
    match value:
        case int() if not -(1 << 63) <= value < 1 << 64:
            return _pack_extension(value)
        case list() | tuple():
            return [_wrap_large_integers(each) for each in value]
        case dict():
            return {_wrap_large_integers(key): _wrap_large_integers(each) for key, each in value.items()}
    return value


def encode(message: dict[str, Any], limit: int = MAX_REPLY) -> bytes:
    """Encode a message with its length. Raises MessageError if it is longer than ``limit``."""
    try:
        packed: bytes = msgpack.packb(message, default=_pack_extension, unicode_errors="replace")
    except OverflowError:
        packed = msgpack.packb(
            _wrap_large_integers(message), default=_pack_extension, unicode_errors="replace"
        )
    except ValueError as error:
        raise MessageError(f"it can't be sent: {error}") from None
    if len(packed) > limit:
        raise MessageError(f"it has {len(packed) / 1e6:.0f} MB; the limit is {limit / 1e6:.0f} MB")
    return LENGTH.pack(len(packed)) + packed


def decode(packed: bytes) -> dict[str, Any]:
    """Decode a message without its length. Raises MessageError."""
    try:
        message = msgpack.unpackb(packed, ext_hook=_unpack_extension, strict_map_key=False)
    except (ValueError, TypeError, ArithmeticError, RecursionError, msgpack.exceptions.StackError) as error:
        raise MessageError(f"not a message: {error}") from None
    if not isinstance(message, dict):
        raise MessageError("not a message")
    return message


def message_length(prefix: bytes, limit: int) -> int:
    """Decode the length of the next message. Raises MessageError if it exceeds ``limit``."""
    (size,) = LENGTH.unpack(prefix)
    if size > limit:
        raise MessageError(f"a message of {size} bytes is too long")
    return int(size)
