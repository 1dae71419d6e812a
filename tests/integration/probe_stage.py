"""A scenario of the NVML stand-in for tests of the GPU probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.standin import Scenario
from tests.integration.probe_driver import NamedSamples, ProbeProcess


class Stage:
    """A scenario of the NVML stand-in, its file, and probes that read it."""

    def __init__(self, lib: Path, file: Path) -> None:
        self.lib, self.file = lib, file
        self.scenario = Scenario()

    def set(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.write()

    def write(self) -> None:
        self.scenario.write(self.file)

    def node(self, *, start_s: float = 10, wait_s: float = 10) -> ProbeProcess:
        return ProbeProcess(self.lib, self.file, start_s=start_s, wait_s=wait_s)


def values(reading: NamedSamples, metric: str) -> list[object]:
    """Return one metric of all GPUs; "lost" for a GPU without a row."""
    return ["lost" if row is None else row[metric] for row in reading.gpus]


def about(wanted: float) -> object:
    """Return a tolerant comparison for a rate, as its interval is measured around the driver's call."""
    return pytest.approx(wanted, rel=0.03)
