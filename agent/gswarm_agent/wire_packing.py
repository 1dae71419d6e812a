"""What an agent says, packed: stretches of one deflate stream, about half as long as the messages in them.

Whoever unpacks is safe from a little that becomes a lot: a stretch holds at most ``MAX_STRETCH`` bytes, and
not more than ``MAX_RATIO`` times its own.
"""

from __future__ import annotations

import struct
import zlib

from gswarm_agent.wire_values import WireError

LENGTH = struct.Struct(">I")
PACKED = 1 << 31
"""In the four bytes of length: what follows is a packed stretch and not a message."""
MAX_STRETCH = 256 * 1024
MAX_RATIO = 64
# A window of 8 KiB holds the few frames before, which is what pays; both ends keep it for each connection.
_WINDOW_BITS, _LEVEL, _MEMORY = 13, 1, 7
_EMPTY_BLOCK = b"\x00\x00\x00\xff\xff"


class Packer:
    """One connection's stream at the sending end."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -_WINDOW_BITS, _MEMORY)

    def pack(self, messages: bytes) -> bytes:
        """Encoded messages as stretches with their lengths, to be unpacked as soon as they arrive."""
        return b"".join(
            self._stretch(messages[at : at + MAX_STRETCH]) for at in range(0, len(messages), MAX_STRETCH)
        )

    def _stretch(self, piece: bytes) -> bytes:
        packed = self._deflate.compress(piece) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        lacking = -(-len(piece) // MAX_RATIO) - len(packed)
        packed += _EMPTY_BLOCK * -(-max(0, lacking) // len(_EMPTY_BLOCK))
        return LENGTH.pack(PACKED | len(packed)) + packed


class Unpacker:
    """The same stream at the receiving end."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(-_WINDOW_BITS)

    def unpack(self, stretch: bytes) -> bytes:
        """What a stretch holds, without its length. Raises WireError."""
        most = min(MAX_STRETCH, MAX_RATIO * len(stretch))
        try:
            unpacked = self._inflate.decompress(stretch, most + 1)
        except zlib.error:
            raise WireError("a packed stretch is damaged") from None
        if len(unpacked) > most or self._inflate.unconsumed_tail:
            raise WireError("a packed stretch holds more than it may")
        if self._inflate.eof:
            raise WireError("a packed stretch says that it is the last")
        return unpacked
