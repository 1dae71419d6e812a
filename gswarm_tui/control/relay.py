"""Relay that a viewer's ssh starts beside the recorder: joins its standard input and output to the socket.

The stream to the viewer begins with ``MAGIC``; anything that a login shell printed before it is noise.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

MAGIC = b"\x00gswarm-view\n"
_PIECE = 1 << 18


def relay(connection: socket.socket) -> None:
    """Copy standard input to the socket and the socket to standard output until one of the ends closes."""
    threading.Thread(target=_copy_input, args=(connection,), daemon=True).start()
    with suppress(OSError):
        _write(MAGIC)
        while data := connection.recv(_PIECE):
            _write(data)


def _copy_input(connection: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(0, _PIECE):
            connection.sendall(data)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _write(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]
