"""Runs a node's probe in its own process, so that each test has its own NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from gswarm_agent.frame import GpuLink, Note, Number
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, PROCESS_COLUMNS
from gswarm_agent.probes import node

Values = dict[str, "Number | None"]
DEADLINE = 60.0
AS_AGENTS_S = 0.5
"""The longest time that an agent waits for a GPU."""


@dataclass(frozen=True)
class OnGpu:
    """A process sample whose row is by column name."""

    gpu: int
    pid: int
    user: str | None
    command: str | None
    rank: int | None
    local_rank: int | None
    row: Values
    cpus: str | None
    state: str | None
    wchan: str | None
    slurm_job: str | None
    slurm_step: str | None
    framework: str | None
    nccl: str | None
    container: str | None


@dataclass(frozen=True)
class NamedSamples:
    """A tick's samples with rows by column name, taken between ``begun`` and ``ended`` (monotonic, ns)."""

    begun: int
    ended: int
    gpus: list[Values | None]
    host: Values
    processes: list[OnGpu] | None
    notes: list[Note]


@dataclass(frozen=True)
class NodeFacts:
    """The facts and capabilities that the probe returned."""

    host: dict[str, Any]
    gpus: list[dict[str, Any]]
    capabilities: dict[str, str]


class ProbeProcess:
    """A NodeProbe in another process, on the NVML stand-in with a scenario, or without NVML.

    It waits up to ``wait_s`` for a GPU, longer than an agent would: on a busy machine a thread may get no CPU
    for half a second. Tests of GPUs that hang wait ``AS_AGENTS_S``.
    """

    def __init__(
        self,
        lib: Path | None = None,
        scenario: Path | None = None,
        *,
        start_s: float = 10,
        wait_s: float = 10,
        proc: Path = Path("/proc"),
    ) -> None:
        self._killed = False
        environment = {**os.environ, "GSWARM_STANDIN_SCENARIO": str(scenario or "/nonexistent")}
        environment.pop("LD_LIBRARY_PATH", None)
        if lib is not None:
            environment["LD_LIBRARY_PATH"] = str(lib)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(start_s), str(wait_s), str(proc)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )

    def __enter__(self) -> ProbeProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(DEADLINE)
        finally:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._process.stdout.close()
        errors = self._process.stderr.read()
        self._process.stderr.close()
        if error is None and not self._killed:
            assert errors == "", errors
            assert self._process.returncode == 0

    def children(self) -> list[int]:
        """Return the processes that the probe's process has started, but not those that were killed."""
        task = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [
            int(pid)
            for pid in task.read_text().split()
            if "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
        ]

    def kill(self) -> None:
        """Kill the probe's process, after which it can't be used any more."""
        self._process.kill()
        self._killed = True

    def facts(self) -> NodeFacts:
        """Return the current facts."""
        return NodeFacts(**self._call("facts"))

    def links(self) -> list[GpuLink]:
        """Return how the GPUs are connected."""
        return [GpuLink(**link) for link in self._call("links")["links"]]

    def switch(self, *groups: str) -> None:
        """Measure only these groups of metrics from now on."""
        self._call(f"switch {' '.join(groups)}")

    def read(self, skip_s: float = 1, *, last: bool = False) -> NamedSamples:
        """Take samples after moving the probe's clock ahead, so that it waits for GPUs as at 1 Hz.

        The ``last`` ones have the energy, for which the probe waits.
        """
        answer = self._call(f"read {int(skip_s * 1e9)} {int(last)}")
        processes = answer.pop("processes")
        return NamedSamples(
            notes=[Note(**note) for note in answer.pop("notes")],
            processes=None if processes is None else [OnGpu(**process) for process in processes],
            **answer,
        )

    def until(self, condition: Callable[[NamedSamples], object], every_s: float = 0.1) -> NamedSamples:
        """Take samples until they meet the condition; the last ones carry the notes of all."""
        deadline = time.monotonic() + DEADLINE
        notes: list[Note] = []
        while time.monotonic() < deadline:
            time.sleep(every_s)
            reading = self.read(0)
            notes += reading.notes
            reading = NamedSamples(**{**vars(reading), "notes": list(notes)})
            if condition(reading):
                return reading
        raise AssertionError(f"not within {DEADLINE:g} s; at last {reading}")

    def _call(self, request: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{request}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(self._process.stderr.read())
        answer: dict[str, Any] = json.loads(line)
        return answer


def _main() -> None:
    start_s, wait_s, proc = sys.argv[1:]
    node._SHORTEST_WAIT_S = node._LONGEST_WAIT_S = float(wait_s)
    probe = node.NodeProbe(proc, start_s=float(start_s))
    skipped = 0
    for line in sys.stdin:
        request, *arguments = line.split()
        if request == "facts":
            host, gpus, capabilities = probe.facts()
            answer: dict[str, Any] = {"host": asdict(host), "gpus": [asdict(gpu) for gpu in gpus]}
            answer["capabilities"] = capabilities
        elif request == "links":
            answer = {"links": [asdict(link) for link in probe.links()]}
        elif request == "switch":
            probe.switch(arguments)
            answer = {}
        else:
            skipped += int(arguments[0])
            begun = time.monotonic_ns()
            probe.patient = last = arguments[1] == "1"
            if last:
                node._LONGEST_WAIT_S = DEADLINE
            reading = probe.read(begun + skipped, fresh=last)
            answer = {
                "begun": begun,
                "ended": time.monotonic_ns(),
                "gpus": [_named(GPU_COLUMNS, row) for row in reading.gpus],
                "host": _named(HOST_COLUMNS, reading.host) or {},
                "notes": [asdict(note) for note in reading.notes],
                "processes": None
                if reading.processes is None
                else [{**asdict(p), "row": _named(PROCESS_COLUMNS, p.row)} for p in reading.processes],
            }
        print(json.dumps(answer), flush=True)
    probe.close()


def _named(columns: tuple[str, ...], row: tuple[Number | None, ...] | None) -> Values | None:
    return None if row is None else {name: row[at] for at, name in enumerate(columns)}


if __name__ == "__main__":
    _main()
