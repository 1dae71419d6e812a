"""PyTorch's worker server: HTTP handlers of a rank's process, which answer also while its Python hangs."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

from gswarm_agent.probes.procfs import read_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, Mapping, Optional

_THREAD = b"pt_workerserver\n"
_LISTENS, _ANY = b"0A", b"0" * 32
_MOST_PORTS, _PING_S = 8, 1.0
_CHUNK = 1 << 16


class NoAnswerError(Exception):
    """Raised if a rank can't be asked; the message is a clause."""


def find_port(pid: int, environ: Mapping[str, str], seconds: float) -> Optional[int]:
    """Return the port of a process's worker server, None if it has none. Raises NoAnswerError.

    Other ports of a rank belong to NCCL, Gloo and stores, which a stray request could disturb. So only a
    process with the server's threads is tried, and only ports on all addresses, as the server's is.
    """
    folder = f"/proc/{pid}"
    try:
        tasks = os.listdir(f"{folder}/task")  # noqa: PTH208
        if not any(read_file(f"{folder}/task/{task}/comm") == _THREAD for task in tasks):
            return None
        ports = sorted(_open_ports(folder), reverse=True)
    except OSError:
        return None
    why, ends_at = "its worker server has no port on this node", time.monotonic() + seconds
    for port in [each for each in ports if str(each) != environ.get("MASTER_PORT")][:_MOST_PORTS]:
        try:
            if post(port, "ping", min(_PING_S, ends_at - time.monotonic()), 1024) == b"pong":
                return port
        except NoAnswerError as error:
            why = str(error)
    raise NoAnswerError(why)


def _open_ports(folder: str) -> Iterator[int]:
    # A container may have a network of its own, whose ports can't be reached from here.
    if os.readlink(f"{folder}/ns/net") != os.readlink("/proc/self/ns/net"):  # noqa: PTH115
        return
    inodes = set()
    for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208
        with suppress(OSError):  # it was closed meanwhile
            inodes.add(os.readlink(f"{folder}/fd/{name}"))  # noqa: PTH115
    for line in read_file(f"{folder}/net/tcp6").splitlines()[1:]:
        words = line.split()
        address, _, port = words[1].partition(b":")
        if words[3] == _LISTENS and address == _ANY and f"socket:[{int(words[9])}]" in inodes:
            yield int(port, 16)


def post(port: int, name: str, seconds: float, most: int) -> bytes:
    """Return what the handler of this name answers, at most ``most`` bytes. Raises NoAnswerError."""
    ends_at, answer = time.monotonic() + seconds, bytearray()
    request = (
        f"POST /handler/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    try:
        with socket.create_connection(("::1", port), max(seconds, 0.01)) as connection:
            connection.sendall(request.encode())
            while True:
                connection.settimeout(max(ends_at - time.monotonic(), 0.01))
                chunk = connection.recv(_CHUNK)
                answer += chunk
                if len(answer) > most:
                    raise NoAnswerError(f"its worker server's answer has more than {most >> 20} MiB")
                if not chunk:
                    break
                if time.monotonic() > ends_at:
                    raise socket.timeout
    except socket.timeout:
        raise NoAnswerError("its worker server didn't answer in time") from None
    except OSError as error:
        raise NoAnswerError(f"its worker server can't be reached: {error.strerror}") from None
    head, separator, body = bytes(answer).partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or words[1] != b"200":
        raise NoAnswerError(f"its worker server doesn't know {name}")
    return body
