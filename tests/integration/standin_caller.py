"""A process that uses the NVML stand-in through pynvml, so that each test has its own library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LOOP = """
import json, sys, time
from pynvml import *

def timed(call, *arguments):
    return time.monotonic_ns(), call(*arguments), time.monotonic_ns()

def fields(handle, *ids):
    return [[f.nvmlReturn, f.valueType, f.value.ullVal] for f in nvmlDeviceGetFieldValues(handle, list(ids))]

def across_a_rewrite(handle):
    power, deadline = nvmlDeviceGetPowerUsage(handle), time.monotonic() + 60
    samples = [timed(nvmlDeviceGetTotalEnergyConsumption, handle)]
    print("null", flush=True)
    while nvmlDeviceGetPowerUsage(handle) == power and time.monotonic() < deadline:
        samples.append(timed(nvmlDeviceGetTotalEnergyConsumption, handle))
    until = time.monotonic_ns() + 50_000_000
    while samples[-1][0] < until:
        samples.append(timed(nvmlDeviceGetTotalEnergyConsumption, handle))
    return samples

for line in sys.stdin:
    name, _, expression = line.rpartition(":=")
    try:
        answer = eval(expression)
    except NVMLError as error:
        answer = type(error).__name__
    if name:
        globals()[name.strip()], answer = answer, None
    print(json.dumps(answer), flush=True)
"""
"""Evaluates lines from a test: ``expression`` prints JSON, ``name := expression`` keeps the value."""


class Caller:
    """A pynvml process on the stand-in."""

    def __init__(self, library: Path, scenario: Path | None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            env=environment(library, scenario),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def __call__(self, line: str) -> Any:
        self.send(line)
        return self.receive()

    def start(self, gpus: int = 1) -> None:
        """Start NVML and keep the GPUs' handles as ``gpu0``, ``gpu1``, ..."""
        assert self("nvmlInit()") is None
        for index in range(gpus):
            self(f"gpu{index} := nvmlDeviceGetHandleByIndex({index})")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def environment(library: Path, scenario: Path | None) -> dict[str, str]:
    named = {"GSWARM_STANDIN_SCENARIO": str(scenario)} if scenario else {}
    return {**os.environ, "LD_LIBRARY_PATH": str(library), **named}
