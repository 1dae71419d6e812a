"""Relay between a viewer on another host and a recorder's socket: standard input and output of an ssh.

The stream to the viewer begins with ``MAGIC``; anything that a login shell printed before it is noise.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

MAGIC = b"\x00gswarm-view\n"
_PIECE = 1 << 18


def relay(connection: socket.socket, source: int = 0, target: int = 1) -> None:
    """Copy ``source`` to the socket and the socket to ``target`` until one of the ends closes."""
    threading.Thread(target=_copy_input, args=(connection, source), daemon=True).start()
    with suppress(OSError):
        _write(target, MAGIC)
        while data := connection.recv(_PIECE):
            _write(target, data)


def _copy_input(connection: socket.socket, source: int) -> None:
    with suppress(OSError):
        while data := os.read(source, _PIECE):
            connection.sendall(data)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _write(target: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]
