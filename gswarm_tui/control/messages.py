"""Messages on a recorder's socket: length-prefixed msgpack, extended by the types of query results.

A request is one mapping; its reply is one mapping or, for a query, several. Each follows its length in four
bytes, big-endian. After a MessageError the connection is unusable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgpack

if TYPE_CHECKING:
    import asyncio

VERSION = 7
MAX_REQUEST = 4 * 1024 * 1024
MAX_REPLY = 64 * 1024 * 1024
MAX_STREAMED = MAX_REPLY + 1024
"""A viewer's stream carries replies inside its messages."""
LENGTH = struct.Struct(">I")
_MICROSECOND = timedelta(microseconds=1)


class MessageError(Exception):
    """Raised for an invalid or too long message."""


# The types that msgpack lacks, sent as text: type, code, encoder, decoder.
_EXTENSIONS: tuple[tuple[type, int, Callable[[Any], str], Callable[[str], Any]], ...] = (
    (datetime, 1, datetime.isoformat, datetime.fromisoformat),
    (date, 2, date.isoformat, date.fromisoformat),
    (time, 3, time.isoformat, time.fromisoformat),
    (timedelta, 4, lambda v: f"{v // _MICROSECOND}", lambda text: int(text) * _MICROSECOND),
    (Decimal, 5, str, Decimal),
    (UUID, 6, str, UUID),
    (int, 7, str, int),
)
_DECODERS = {code: read for _, code, _, read in _EXTENSIONS}


def _pack_extension(value: Any) -> Any:
    for kind, code, write, _ in _EXTENSIONS:
        if isinstance(value, kind):
            return msgpack.ExtType(code, write(value).encode())
    return str(value)


def _unpack_extension(code: int, data: bytes) -> Any:
    if (read := _DECODERS.get(code)) is None:
        raise MessageError(f"unknown type {code}")
    return read(data.decode())


def encode(message: dict[str, Any], limit: int = MAX_REPLY) -> bytes:
    """Encode a message with its length. Raises MessageError if it is longer than ``limit``."""
    try:
        packed: bytes = msgpack.packb(message, default=_pack_extension, unicode_errors="replace")
    except ValueError as error:
        raise MessageError(f"it can't be sent: {error}") from None
    if len(packed) > limit:
        raise MessageError(f"it is {len(packed) / 1e6:.0f} MB; the limit is {limit / 1e6:.0f} MB")
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


async def read_message(
    reader: asyncio.StreamReader, limit: int, begins_within_s: float | None = None
) -> dict[str, Any]:
    """Return the next message. Raises OSError, IncompleteReadError, TimeoutError, MessageError."""
    import asyncio

    # Not wait_for: in Python 3.11 it ignores a cancellation at the moment when a message arrives.
    async with asyncio.timeout(begins_within_s):
        prefix = await reader.readexactly(LENGTH.size)
    return decode(await reader.readexactly(message_length(prefix, limit)))


def message_length(prefix: bytes, limit: int) -> int:
    """Decode the length of the next message. Raises MessageError if it exceeds ``limit``."""
    (size,) = LENGTH.unpack(prefix)
    if size > limit:
        raise MessageError(f"a message of {size} bytes is too long")
    return int(size)
