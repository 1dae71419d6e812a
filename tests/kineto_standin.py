"""Stand-ins for Kineto: trace files in the format that PyTorch writes, and a process that asks for traces.

The traces of several ranks are invented, as no test machine has several GPUs, but not their format: members
and arguments are those of the traces of a real GPU in ``data/traces``, and those of Kineto's source for
collectives of several ranks.
As a program, it asks the socket in ``KINETO_IPC_SOCKET_DIR`` for a configuration as Kineto does, and writes
the trace that it is asked for.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
ITERATION_US = 1000
HEADER = struct.Struct("<Q32s")
REQUEST = struct.Struct("<iiq")
CONTEXT = struct.Struct("<iiq")


def event(
    category: str,
    name: str,
    start_us: float,
    duration_us: float,
    *,
    pid: int = 100,
    tid: int = 101,
    **args: Any,
) -> dict[str, Any]:
    """Return an event of a thread; its start counts from the trace's own."""
    times = {"ts": 4_657_000_000_000.0 + start_us, "dur": duration_us}
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def on_gpu(
    category: str, name: str, start_us: float, duration_us: float, stream: int, correlation: int, **args: Any
) -> list[dict[str, Any]]:
    """Return an event of a GPU, the call that launched it, and the arrow between them."""
    call = {"kernel": "cudaLaunchKernel", "gpu_memcpy": "cudaMemcpyAsync"}[category]
    launch = event("cuda_runtime", call, start_us - 20, 8, cbid=211, correlation=correlation)
    run = event(
        category,
        name,
        start_us,
        duration_us,
        pid=0,
        tid=stream,
        device=0,
        context=1,
        stream=stream,
        correlation=correlation,
        **args,
    )
    arrow = {"cat": "ac2g", "name": "ac2g", "id": correlation}
    ends = (("s", launch), ("f", run))
    arrows = [{**arrow, "ph": ph, **{key: one[key] for key in ("pid", "tid", "ts")}} for ph, one in ends]
    return [launch, run, *arrows]


def events(late_us: Sequence[float], rank: int, *, on_request: bool, first: int = 0) -> list[dict[str, Any]]:
    """Return iterations of 1,000 µs: 400 of compute, an all-reduce from 300 + its ``late_us`` to 800, a copy.

    Those before ``first`` are left out, as in a trace that begins later. Traces on request have no numbers of
    iterations, and those of PyTorch 2.11 none of collectives.
    """
    found = []
    for step, late in enumerate(late_us):
        if step < first:
            continue
        at = float(ITERATION_US * step)
        facts: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": 1048576,
            "Out msg nelems": 1048576,
            "Group size": 2,
            "dtype": "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]",
        }
        own: dict[str, Any] = {"Rank": rank, "Global rank start": 0, "Global rank stride": 1}
        if on_request:
            found.append(event("user_annotation", "Optimizer.step#AdamW.step", at + 900, 50))
        else:
            facts["Seq"] = step
            found.append(event("user_annotation", f"ProfilerStep#{7 + step}", at - 50, ITERATION_US))
            found.append(event("python_function", "/home/ada/secret/train.py(12): step", at, 900))
        numbers: dict[str, Any] = {"External id": 10 + step, "Record function id": 0, "Ev Idx": step}
        all_reduce = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        found += [
            event("cpu_op", "aten::mm", at, 50, **numbers),
            event("cpu_op", "record_param_comms", at + 250, 40, **numbers, **facts, **own),
            *on_gpu("kernel", "sgemm", at, 400, 7, 10 * step + 1, grid=[8, 32, 1], block=[128, 1, 1]),
            *on_gpu("kernel", all_reduce, at + 300 + late, 500 - late, 9, 10 * step + 2, **facts),
            *on_gpu(
                "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at + 850, 50, 7, 10 * step + 3, bytes=4096
            ),
            event("cuda_sync", "Context Sync", at + 900, 50, pid=0, tid=1, device=0, stream=-1),
            event("gpu_user_annotation", "DistributedDataParallel.forward", at, 400, pid=0, tid=7),
        ]
    return found


def write_trace(
    path: Path,
    rank: int | None = 3,
    *,
    node: str = "gpu01",
    late_us: float | Sequence[float] = 0.0,
    first: int = 0,
    on_request: bool = False,
    instead: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write a trace of one rank, compressed if its name ends with .gz, and return its path.

    It is one of ``torch.profiler``, which states rank and node, or on request, where Kineto appends the rank.
    It has the events ``instead`` of iterations, if there are any.
    """
    late: Sequence[float] = [late_us] * 2 if isinstance(late_us, int | float) else late_us
    members: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "a GPU"}]}
    distributed = {"backend": "nccl", "rank": rank or 0, "world_size": 2}
    if rank is not None and not on_request:
        members["distributedInfo"] = distributed
    if not on_request:
        members["host_name"] = node
    members |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
    capture = event("Trace", "PyTorch Profiler (0)", ITERATION_US * first - 30, 5)
    capture |= {"pid": "Spans", "tid": "PyTorch Profiler"}
    end = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": ""}
    members["traceEvents"] = [
        *(instead or events(late, rank or 0, on_request=on_request, first=first)),
        capture,
        end | {"ts": capture["ts"] + 40 + ITERATION_US * (len(late) - first)},
    ]
    if on_request:
        members["distributedInfo"] = distributed
    members["traceName"] = "/home/ada/secret.json"
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
            write_trace(partial, rank, late_us=100.0 * rank, on_request=True)
            partial.rename(path.with_name(f"{path.stem}_{pid}.json"))
            _print_line(json.dumps(config))
        time.sleep(0.2)  # Kineto does every 5 s


if __name__ == "__main__":
    main()
