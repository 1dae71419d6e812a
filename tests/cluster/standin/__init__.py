"""A stand-in for NVIDIA's management library, for tests: nvitop and pynvml run on it unchanged.

No driver is involved: every number comes from a scenario file, so tests know the true values.
"""

from tests.cluster.standin.build import LIBRARY, NoCompiler, build
from tests.cluster.standin.scenario import (
    COUNTERS,
    H200_US,
    Counter,
    Event,
    EventType,
    GpuProcess,
    MigDevice,
    Return,
    Scenario,
    StandinGpu,
    read_counters,
)

__all__ = [
    "COUNTERS",
    "H200_US",
    "LIBRARY",
    "Counter",
    "Event",
    "EventType",
    "GpuProcess",
    "MigDevice",
    "NoCompiler",
    "Return",
    "Scenario",
    "StandinGpu",
    "build",
    "read_counters",
]
