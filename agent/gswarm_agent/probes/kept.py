"""Small files of the kernel, read again and again through a descriptor that stays open."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_CHUNK = 65536
_SHORT = 2048
"""The kernel answers at least this much of a file that has more (a page, less a line that didn't fit)."""


class KeptFile:
    """A file in /proc or /sys whose text is made anew at each read. Opened at the first read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor: Optional[int] = None

    def read(self, most: int = _CHUNK * _CHUNK) -> bytes:
        """Its text, all of it or about the ``most`` bytes. Raises OSError; the next read opens it again."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = chunk = os.pread(self._descriptor, min(_CHUNK, most), 0)
            while len(chunk) >= _SHORT and len(text) < most:
                chunk = os.pread(self._descriptor, _CHUNK, len(text))
                text += chunk
        except OSError as error:
            self.close()
            raise OSError(error.errno, error.strerror, self.path) from None
        return text

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
