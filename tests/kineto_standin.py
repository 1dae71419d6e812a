"""Stand-ins for Kineto: trace files in the format that PyTorch documents, and a process that asks for traces.

Where no GPU can be had, the events of a trace are invented, but not its format: the members and their names
are those that PyTorch 2.14.1 writes. As a program, it asks the socket in ``KINETO_IPC_SOCKET_DIR`` for a
configuration as Kineto does, and writes the trace that it is asked for.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
HEADER = struct.Struct("<Q32s")
REQUEST = struct.Struct("<iiq")
CONTEXT = struct.Struct("<iiq")


def event(category: str, name: str, start_us: float, duration_us: float, **arguments: Any) -> dict[str, Any]:
    """Return an event; its start counts from the trace's own."""
    times = {"ts": 4_657_000_000_000.0 + start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 101, **times, "args": arguments}


def events(late_us: float = 0.0, iterations: int = 2) -> list[dict[str, Any]]:
    """Return iterations of 1,000 µs: 400 of compute, an all-reduce from 300 + ``late_us`` to 800, a copy."""
    found = [event("cpu_op", "aten::mm", 0, 50)]
    for step in range(iterations):
        at = 1000.0 * step
        collective = {
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "Group size": 2,
            "Seq": step,
        }
        found += [
            event("user_annotation", f"ProfilerStep#{7 + step}", at, 1000),
            event("python_function", "/home/ada/secret/train.py(12): step", at, 900),
            event("kernel", "sgemm", at, 400, device=0, stream=7, correlation=5),
            event(
                "kernel",
                "ncclDevKernel_AllReduce_Sum_f32",
                at + 300 + late_us,
                500 - late_us,
                device=0,
                stream=9,
                **collective,
            ),
            event(
                "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 850, 50, device=0, stream=7, bytes=4096
            ),
        ]
    return found


def write_trace(path: Path, rank: int | None = 3, *, node: str = "gpu01", late_us: float = 0.0) -> Path:
    """Write a trace of one rank, compressed if its name ends with .gz, and return its path."""
    members: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}]}
    if rank is not None:
        members["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
    members |= {"host_name": node, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    flow = {"ph": "s", "cat": "ac2g", "id": 5, "pid": 100, "tid": 101, "ts": 1.0, "name": "ac2g"}
    members |= {"traceEvents": [flow, *events(late_us)], "traceName": "/home/ada/secret.json"}
    text = json.dumps(members, indent=1).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


class KinetoProcess:
    """Speaks for one process with the endpoint in a folder; ``config`` is the newest configuration."""

    def __init__(self, folder: str, pid: int) -> None:
        self._pid = pid
        self._endpoint = f"{folder}/dynolog"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"{folder}/dynoconfigclient{pid}")
        self._socket.settimeout(0.2)

    def ask(self) -> dict[str, str]:
        """Register and ask once; return the configuration, empty if there is nothing to do."""
        try:
            self.send_question()
        except (FileNotFoundError, ConnectionRefusedError):
            return {}
        return self.read_answer()

    def send_question(self) -> None:
        """Register and ask. Raises OSError if nobody listens."""
        self._send(b"ctxt", CONTEXT.pack(0, self._pid, 0))
        self._send(b"req", REQUEST.pack(3, 1, 0) + struct.pack("<i", self._pid))

    def read_answer(self) -> dict[str, str]:
        """Return the configuration that was sent, empty if there is nothing to do."""
        while True:
            try:
                data, sender = self._socket.recvfrom(65536)
            except TimeoutError:
                return {}
            if sender != self._endpoint:  # Kineto ends the process
                sys.exit(f"Unexpected socket name: {sender}")
            size, kind = HEADER.unpack_from(data)
            text = data[HEADER.size :][:size]
            if kind.rstrip(b"\0") == b"req":
                return dict(line.split("=", 1) for line in text.decode().splitlines())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, kind: bytes, payload: bytes) -> None:
        self._socket.sendto(HEADER.pack(len(payload), kind) + payload, self._endpoint)


def _print_line(text: str) -> None:
    """Print in one write: ranks share a pipe, and an unbuffered print writes the line break apart."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Ask every 0.2 s; write a trace at its start time, with its pid in the name."""
    pid = os.getpid()
    process = KinetoProcess(os.environ["KINETO_IPC_SOCKET_DIR"], pid)
    _print_line("ready")
    while True:
        config = process.ask()
        if config:
            path = Path(config["ACTIVITIES_LOG_FILE"])
            start_s = int(config.get("PROFILE_START_TIME", "0")) / 1000
            time.sleep(max(0.0, start_s - time.time()))  # as Kineto waits for the common start
            rank = int(os.environ["RANK"])
            partial = path.with_name(f"{path.stem}_{pid}.tmp")
            write_trace(partial, rank, late_us=100.0 * rank)
            partial.rename(path.with_name(f"{path.stem}_{pid}.json"))
            _print_line(json.dumps(config))
        time.sleep(0.2)  # Kineto does every 5 s


if __name__ == "__main__":
    main()
