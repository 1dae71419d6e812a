"""Attacks on a recorder's HTTP server: many connections, slow and long requests, ambiguous ones.

``python -m tests.security.web_attacks [--examples N]`` runs them in full, and prints what was seen.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gswarm_tui.server.application import HEAD_S
from tests.served import ServedRecorder, served

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
# Rules that JSON Schema can't express, such as those of SQL, are answered with 400 and a sentence. The stream
# of frames has no end without a limit.
_CONFIG = """
[headers]
Authorization = "Bearer ${GSWARM_TUI_TEST_TOKEN}"
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 401, 403, 404, 409, 429]
[[operations]]
include-path = "/api/v1/frames"
parameters = { "query.limit" = 1 }
"""
SLOW_HEAD = b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


def connect(recorder: ServedRecorder) -> socket.socket:
    """Return a connection to the server."""
    return socket.create_connection(("127.0.0.1", recorder.port), timeout=60)


def exchange(recorder: ServedRecorder, request: bytes) -> bytes:
    """Send bytes, and return all that comes back until the server closes the connection."""
    with connect(recorder) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            return b""


@contextmanager
def idle(recorder: ServedRecorder, count: int) -> Iterator[list[socket.socket]]:
    """Hold so many connections open on which nothing is sent."""
    with ExitStack() as stack:
        yield [stack.enter_context(connect(recorder)) for _ in range(count)]


@contextmanager
def slow_loris(recorder: ServedRecorder, count: int) -> Iterator[list[socket.socket]]:
    """Hold so many connections open, each with a request whose head goes on byte by byte."""
    ended = threading.Event()
    with idle(recorder, count) as connections:

        def drip() -> None:
            for connection in connections:
                _send(connection, SLOW_HEAD)
            while not ended.wait(0.5):
                for connection in connections:
                    _send(connection, b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            yield connections
        finally:
            ended.set()
            dripping.join()


def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the server has closed it
        connection.send(data)


def send_body(recorder: ServedRecorder, size: int, *, token: str, chunked: bool) -> bytes:
    """Send a body of about so many bytes, and return the beginning of the answer; empty if there was none."""
    piece = b" " * 65536
    count = size // len(piece)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {count * len(piece)}"
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{framing}\r\n\r\n"
    with connect(recorder) as connection:
        with suppress(ConnectionError):
            connection.sendall(head.encode())
            for _ in range(count):
                connection.sendall(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
            if chunked:
                connection.sendall(b"0\r\n\r\n")
        with suppress(ConnectionError):
            return connection.recv(65536)
    return b""


def are_closed(connections: Sequence[socket.socket]) -> bool:
    """Return whether the server has closed all these connections."""
    for connection in connections:
        try:
            if connection.recv(1, socket.MSG_DONTWAIT):
                return False
        except BlockingIOError:
            return False
        except ConnectionError:
            pass
    return True


def missed_ticks(recorder: ServedRecorder) -> int:
    """Return how many samples the nodes missed or the recorder lost."""
    by_node = "SELECT sum(missed) AS missed, max(seq) - count(*) AS lost FROM host_samples GROUP BY node_id"
    sql = f"SELECT sum(missed + lost) FROM ({by_node})"
    answer = recorder.call("POST", "/api/v1/query", {"sql": sql})
    return int(answer.json["rows"][0][0])


def check_schema(recorder: ServedRecorder, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis with all its checks against the server's own OpenAPI document."""
    config = folder / "schemathesis.toml"
    config.write_text(_CONFIG)
    document = f"{recorder.url}/api/v1/openapi.json"
    words = [str(SCHEMATHESIS), f"--config-file={config}", "--no-color", "run", document, "--checks=all"]
    words += ["--rate-limit=80/s", *options]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "GSWARM_TUI_TEST_TOKEN": recorder.token},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> int:
    """Attack a recorder in full; return 1 if it missed a tick or a request failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.web_attacks", description=__doc__)
    parser.add_argument("--examples", type=int, default=500, help="of schemathesis, for each call")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gswarm-web-") as name:
        folder = Path(name)
        with served(folder) as recorder:
            failed = [what for what, fails in _attacks(recorder, folder, arguments.examples) if fails]
            missed = missed_ticks(recorder)
    print(f"missed ticks: {missed}; failed: {', '.join(failed) or 'nothing'}")
    return 1 if missed or failed else 0


def _attacks(recorder: ServedRecorder, folder: Path, examples: int) -> Iterator[tuple[str, bool]]:
    """Run each attack, print its figures, and yield its name and whether it did harm."""
    with idle(recorder, 1000) as connections:
        slowest = _slowest_status(recorder)
        time.sleep(HEAD_S + 2)
        closed = are_closed(connections)
    print(f"1,000 idle connections: /status in {slowest:.0f} ms at most; closed in {HEAD_S:.0f} s: {closed}")
    yield "idle connections", not closed
    with slow_loris(recorder, 500) as connections:
        slowest = _slowest_status(recorder)
        time.sleep(HEAD_S + 5)
        closed = are_closed(connections)
    print(f"500 slow heads: /status in {slowest:.0f} ms at most; closed in {HEAD_S:.0f} s: {closed}")
    yield "slow heads", not closed
    for chunked in (False, True):
        answer = send_body(recorder, 100_000_000, token=recorder.token, chunked=chunked)
        print(f"a body of 100 MB, {'in chunks' if chunked else 'with its length'}: {answer[:32]!r}")
        yield "long body", b" 413 " not in answer[:32]
    answer = send_body(recorder, 100_000_000, token="wrong", chunked=False)
    print(f"a body of 100 MB without the token: {answer[:32]!r}")
    done = check_schema(recorder, folder, f"--max-examples={examples}")
    print(done.stdout[-1500:])
    yield "schemathesis", done.returncode != 0


def _slowest_status(recorder: ServedRecorder) -> float:
    """Return the longest time of 50 requests for the state, in ms."""
    times = []
    for _ in range(50):
        began = time.monotonic()
        recorder.get("/status")
        times.append(1000 * (time.monotonic() - began))
    return max(times)


if __name__ == "__main__":
    sys.exit(main())
