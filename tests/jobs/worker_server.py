"""Stand-in of PyTorch's worker server, which answers byte by byte as that of PyTorch 2.14.1 does.

``python worker_server.py --port P --state FILE`` prints its port, which 0 lets it choose. The file is read
at each request: a JSON object with each handler's answer, text or an object. A time that is text ("-0.5") is
in seconds from now. The answer "HANG" never comes, and "HUGE" is one of 80 MB.
"""

from __future__ import annotations

import argparse
import json
import socket
import socketserver
import time
from pathlib import Path
from typing import Any

HANG, HUGE = "HANG", "HUGE"


def dated(value: Any) -> Any:
    """Replace times from now by Unix times in nanoseconds, as PyTorch writes them."""
    if isinstance(value, list):
        return [dated(each) for each in value]
    if isinstance(value, dict):
        return {
            key: int((time.time() + float(each)) * 1e9)
            if key.endswith("_ns") and isinstance(each, str)
            else dated(each)
            for key, each in value.items()
        }
    return value


class Handler(socketserver.StreamRequestHandler):
    """Answers one request and closes the connection."""

    state: Path

    def handle(self) -> None:
        _method, path, _version = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        name = path.removeprefix("/handler/").partition("?")[0]
        handlers = {"ping": "pong", **json.loads(self.state.read_text())}
        answer = handlers.get(name)
        if answer == HANG:
            self.connection.settimeout(60)
            self.rfile.read(1)  # until the client closes
        elif answer is None:
            self._send(
                "404 Not Found", "text/plain", f"Handler {name} not found: Failed to find handler {name}"
            )
        elif isinstance(answer, str):
            self._send("200 OK", "text/plain", "x" * 80_000_000 if answer == HUGE else answer)
        else:
            self._send("200 OK", "application/json", json.dumps(dated(answer), separators=(",", ":")))

    def _send(self, status: str, kind: str, text: str) -> None:
        body = text.encode()
        fields = "Connection: close", f"Content-Length: {len(body)}", f"Content-Type: {kind}"
        head = "\r\n".join((f"HTTP/1.1 {status}", *fields, "", ""))
        self.wfile.write(head.encode() + body)


class Server(socketserver.ThreadingTCPServer):
    """Listens on all addresses, with a thread of the name that PyTorch's has."""

    address_family = socket.AF_INET6
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has gone."""


def main() -> None:
    """Serve until a signal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state", type=Path, required=True)
    chosen = parser.parse_args()
    Handler.state = chosen.state
    Path("/proc/thread-self/comm").write_text("pt_workerserver")
    with Server(("::", chosen.port), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
