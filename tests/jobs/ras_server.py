"""Stand-in for NCCL RAS: a server that speaks its protocol and writes its reports, byte by byte.

The state is a JSON file, read for every connection: ``version``, ``mode`` (see ``_Handler``), ``advance``
(launches that each report adds) and ``communicators``: ``hash`` and ``ranks``, each with ``rank``, ``host``,
``pid``, ``nvml_dev``, and where it differs from one that runs: ``counts``, ``stuck`` (doesn't advance),
``init_state``, ``async_error``, ``missing``: "dead", "unresponsive" or "left".
"""

from __future__ import annotations

import argparse
import json
import socket
import socketserver
import sys
from collections import Counter
from pathlib import Path
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_FLAGS = ("finalize_called", "destroy_flag", "abort_flag")


class RasServer(socketserver.ThreadingTCPServer):
    """Serves the reports of ``state``, a file; ``commands`` are all that it got."""

    address_family = socket.AF_INET6
    allow_reuse_address = daemon_threads = True

    def __init__(self, state: Path, port: int = 0, host: str = "::1") -> None:
        super().__init__((host, port), _Handler)
        self.state, self.reports, self.commands = state, 0, list[str]()

    def read_state(self) -> dict[str, Any]:
        """Return the state with the launches of each rank as they are now."""
        state: dict[str, Any] = json.loads(self.state.read_text())
        for rank in (rank for one in state["communicators"] for rank in one["ranks"]):
            launched = Counter(rank.setdefault("counts", {}))
            if not rank.get("stuck"):
                launched["AllReduce"] += state.get("advance", 0) * self.reports
            rank["counts"] = {name: launched[name] for name in FUNCTIONS}
        return state


class _Handler(socketserver.StreamRequestHandler):
    """Answers one client. Modes: "answers", "closes", "silent", "other", "huge", "drips", "half"."""

    server: RasServer

    def handle(self) -> None:
        state = self.server.read_state()
        mode = state.get("mode", "answers")
        if mode == "closes":
            return
        for line in map(bytes.decode, self.rfile):
            command = line.strip().lower()
            self.server.commands.append(command)
            if mode == "silent":
                continue
            if command.startswith("client protocol "):
                self._write("220 mail.example.org ESMTP\n" if mode == "other" else "SERVER PROTOCOL 2\n")
            elif command.startswith("timeout ") or command == "set format json":
                self._write("OK\n")
            elif command in ("status", "verbose status"):
                self.server.reports += 1
                report = json_report(state)
                if mode == "huge":
                    report += " " * 10_000_000
                if mode == "drips":
                    self._write(report[:1])
                    self.rfile.read()
                self._write(report[: len(report) // 2 if mode == "half" else None])
                return
            else:
                self._write(f"ERROR: Unknown command {command}\n")

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())


def _split(one: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    missing = [rank for rank in one["ranks"] if rank.get("missing")]
    return [rank for rank in one["ranks"] if rank not in missing], missing


def json_report(state: dict[str, Any]) -> str:
    """Return the report of NCCL as JSON."""

    def described(rank: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        device = rank["nvml_dev"]
        who = {"rank": rank["rank"], "host": rank["host"], "pid": rank["pid"]}
        return who | {"cuda_dev": device, "nvml_dev": device, "status": status}

    communicators = []
    for one in state["communicators"]:
        present, missing = _split(one)
        ranks = []
        for rank in present:
            status = {"init_state": rank.get("init_state", 0), "async_error": rank.get("async_error", 0)}
            status |= {flag: rank.get(flag, False) for flag in _FLAGS}
            ranks.append(described(rank, status) | {"collective_counts": rank["counts"]})
        lost = []
        for rank in missing:
            dead = rank["missing"] == "dead"
            status = {"unresponsive": rank["missing"] != "left", "considered_dead": dead}
            lost.append(described(rank, status))
        communicators.append(
            {"hash": f"0x{one['hash']}", "secondary_hash": "0xb7e71:0xb824", "size": len(one["ranks"])}
            | {"ranks_count": len(ranks), "missing_ranks_count": len(lost)}
            | {"ranks": ranks, "missing_ranks": lost}
        )
    report = {
        "nccl_version": state["version"],
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 12090,
        "timestamp": "2026-11-28 12:00:00",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    text = json.dumps(report, indent=2).replace("[]", "[\n\n      ]").replace('_sec": 0.0', '_sec": 0.000')
    return text + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=28028)
    parser.add_argument("--host", default="::1")
    parser.add_argument("--state", type=Path, required=True)
    given = parser.parse_args()
    with RasServer(given.state, given.port, given.host) as server:
        print(f"listening on port {server.server_address[1]}", file=sys.stderr, flush=True)
        server.serve_forever()
