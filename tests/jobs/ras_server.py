"""Stand-in for NCCL RAS: a server that speaks its protocol and writes its reports, byte by byte.

The state is a JSON file, read for every connection: ``version``, ``mode`` (see ``_Handler``), ``advance``
(launches that each report adds) and ``communicators``: ``hash`` and ``ranks``, each with ``rank``, ``host``,
``pid``, ``nvml_dev``, and where it differs from one that runs: ``counts``, ``stuck`` (doesn't advance),
``init_state``, ``async_error``, ``missing``: "dead", "unresponsive" or "left".
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import socketserver
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
_FLAGS = ("finalize_called", "destroy_flag", "abort_flag")
_ERRORS = {2: "System error", 6: "Remote process error"}


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
        mode, in_json = state.get("mode", "answers"), False
        if mode == "closes":
            return
        for line in map(bytes.decode, self.rfile):
            command = line.strip().lower()
            self.server.commands.append(command)
            if mode == "silent":
                continue
            if command.startswith("client protocol "):
                self._write("220 mail.example.org ESMTP\n" if mode == "other" else "SERVER PROTOCOL 2\n")
            elif command.startswith("timeout "):
                self._write("OK\n")
            elif command == "set format json" and _version(state) >= (2, 28, 7):
                in_json = True
                self._write("OK\n")
            elif command in ("status", "verbose status"):
                self.server.reports += 1
                report = json_report(state) if in_json else text_report(state)
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


def _version(state: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, state["version"].split(".")))


def _split(one: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    missing = [rank for rank in one["ranks"] if rank.get("missing")]
    return [rank for rank in one["ranks"] if rank not in missing], missing


def json_report(state: dict[str, Any]) -> str:
    """Return the report of NCCL from 2.28.7 on; that of 2.28.9 and before lacks a comma."""

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
    if _version(state) <= (2, 28, 9):
        text = re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", text)
    return text + "\n"


def text_report(state: dict[str, Any]) -> str:
    """Return the verbose report of NCCL from 2.26 on; each communicator is a group of its own."""
    return "".join(_text_parts(state))


def _place(rank: dict[str, Any]) -> str:
    return f"GPU {rank['nvml_dev']} managed by process {rank['pid']} on node {rank['host']}\n"


def _text_parts(state: dict[str, Any]) -> Iterator[str]:
    everyone = {(rank["host"], rank["pid"]): rank for one in state["communicators"] for rank in one["ranks"]}
    nodes = len({host for host, _ in everyone})
    yield f"NCCL version {state['version']} compiled with CUDA 12.9\n"
    yield "CUDA runtime version 12090, driver version 12090\n\nJob summary\n===========\n\n"
    yield "  Nodes  Processes         GPUs  Processes     GPUs\n"
    yield "(total)   per node  per process    (total)  (total)\n"
    yield f"{nodes:7}  {len(everyone) // nodes:9}  {1:11}  {len(everyone):9}  {len(everyone):7}\n"
    yield "\nCommunicators... (0.00s)\n=============\n\n"
    yield "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
    yield "    #  in group  per comm  per node  per comm  in group\n"
    for at, one in enumerate(state["communicators"]):
        size = len(one["ranks"])
        yield f"{at:5}  {1:8}  {nodes:8}  {size // nodes:8}  {size:8}  {size:8}   RUNNING      OK\n"
    yield "\nErrors\n======\n\n"
    for word, kind in (("INCOMPLETE", "unresponsive"), ("DEAD", "dead")):
        lost = [rank for rank in everyone.values() if rank.get("missing") == kind]
        if lost and kind == "dead":
            yield f"DEAD\n  {len(lost)} job process is considered dead (unreachable via the RAS network)\n"
        elif lost:
            yield f"{word}\n  Missing communicator data from {len(lost)} job process\n"
        for rank in lost:
            yield f"  Process {rank['pid']} on node {rank['host']} managing GPU {rank['nvml_dev']}\n"
        yield "\n" if lost else ""
    for at, one in enumerate(state["communicators"]):
        present, missing = _split(one)
        lost = [rank for rank in missing if rank["missing"] != "left"]
        if lost:
            yield f"#{at}-0 ({one['hash']}) INCOMPLETE\n  Missing communicator data from {len(lost)} rank\n"
            yield from (f"  Rank {rank['rank']} -- {_place(rank)}" for rank in lost)
            yield "\n"
        failed = [rank for rank in present if rank.get("async_error")]
        if failed:
            yield f"#{at}-0 ({one['hash']}) ERROR\n  Asynchronous error on {len(failed)} rank\n"
            for rank in failed:
                yield f"  Rank {rank['rank']} reported {_ERRORS[rank['async_error']]} -- {_place(rank)}"
            yield "\n"
    yield "Warnings\n========\n\n"
    for at, one in enumerate(state["communicators"]):
        yield from _mismatches(f"#{at}-0 ({one['hash']}) MISMATCH\n", _split(one)[0])


def _mismatches(title: str, present: list[dict[str, Any]]) -> Iterator[str]:
    parts = []
    for function in FUNCTIONS:
        values = Counter(rank["counts"][function] for rank in present)
        if len(values) > 1:
            parts.append(f"  Communicator ranks have different {function} operation counts\n")
            for value, number in sorted(values.items(), key=lambda item: (item[1], item[0]), reverse=True):
                some = [rank for rank in present if rank["counts"][function] == value]
                many = f"{number} ranks have launched up to operation {value}"
                parts += _group(some, len(present), many, f"has launched up to operation {value}")
            parts.append("\n")
    yield from [title, *parts] if parts else []


def _group(some: list[dict[str, Any]], size: int, many: str, one: str) -> list[str]:
    if len(some) == 1:
        return [f"  Rank {some[0]['rank']} {one} -- {_place(some[0])}"]
    listed = [f"  Rank {rank['rank']} -- {_place(rank)}" for rank in some] if 2 * len(some) < size else []
    return [f"  {many}\n", *listed]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=28028)
    parser.add_argument("--host", default="::1")
    parser.add_argument("--state", type=Path, required=True)
    given = parser.parse_args()
    with RasServer(given.state, given.port, given.host) as server:
        print(f"listening on port {server.server_address[1]}", file=sys.stderr, flush=True)
        server.serve_forever()
