"""NCCL RAS, the service inside NCCL: asks one process of the job for the state of all its communicators."""

from __future__ import annotations

import re
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

DEFAULT_ADDRESS = "localhost:28028"
MAX_BYTES = 8 << 20
"""Size of a report, at most; JSON has some 600 bytes for each rank of each communicator."""
_ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%\w+)?)\]|([\w.-]+)):(\d{1,5})", re.ASCII)


class _NoReportError(Exception):
    """Raised with a clause on why there is no report."""


def _query(ras: socket.socket, command: str, deadline: float, *, whole: bool = False) -> str:
    """Send a command and return the line that answers it, or ``whole``, all until the server closes."""
    ras.sendall(command.encode("ascii") + b"\n")
    received = bytearray()
    while whole or not received.endswith(b"\n"):
        ras.settimeout(_seconds_left(deadline))
        chunk = ras.recv(1 << 16)
        received += chunk
        if not chunk and whole and received.strip():
            break
        if not chunk:
            raise _NoReportError("closed the connection without a report")
        if len(received) > MAX_BYTES:
            raise _NoReportError(f"sent a report of more than {MAX_BYTES >> 20} MiB")
    return received.decode("utf-8", "replace")


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise socket.timeout
    return left


def ask(request: Dict[str, Any]) -> Dict[str, Any]:
    """Return the ``report`` of the RAS at ``address``, as in ``NCCL_RAS_ADDR``, or ``why`` there is none."""
    address = str(request.get("address") or DEFAULT_ADDRESS)
    seconds = float(request.get("seconds", 12))
    deadline = time.monotonic() + seconds
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        return {"why": f"NCCL_RAS_ADDR isn't an address such as {DEFAULT_ADDRESS}: {address[:80]!r}"}
    # NCCL listens on the first address of "localhost", mostly ::1. All ranks of a node listen on the same
    # port, and the kernel chooses one for each connection: if it has stopped, the next may reach another.
    hosts = ("::1", "127.0.0.1") if match[2] == "localhost" else (match[1] or match[2],)
    why = ""
    for host in hosts * 2:
        try:
            return _read_report(host, int(match[3]), deadline, seconds / 6)
        except _NoReportError as error:
            why = f"NCCL RAS at {address} {error}"
        except socket.timeout:
            return {"why": f"NCCL RAS at {address} sent no whole report within {seconds:g} s"}
        except OSError as error:
            # A refusal says less than what another address answered.
            why = why or f"NCCL RAS can't be reached at {address}: {error.strerror or error}"
    return {"why": why}


def _read_report(host: str, port: int, deadline: float, patience: float) -> Dict[str, Any]:
    with socket.create_connection((host, port), _seconds_left(deadline)) as ras:
        try:
            greeting = _query(ras, "CLIENT PROTOCOL 2", min(deadline, time.monotonic() + patience))
        except socket.timeout:
            raise _NoReportError(f"accepts connections but doesn't answer within {patience:g} s") from None
        if not greeting.startswith("SERVER PROTOCOL "):
            raise _NoReportError("doesn't speak the protocol of NCCL RAS")
        # RAS waits this long twice for processes that don't answer.
        _query(ras, f"TIMEOUT {max(1, int(_seconds_left(deadline) - 1) // 2)}", deadline)
        # NCCL before 2.28.7 refuses this and reports text.
        _query(ras, "SET FORMAT json", deadline)
        return {"report": _query(ras, "VERBOSE STATUS", deadline, whole=True)}
