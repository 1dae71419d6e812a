"""An NVML stand-in with eight busy GPUs, for programs of this bench."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.standin import GpuProcess, Scenario, build


def stand_in(folder: Path, gpus: int, pids: Sequence[int] = (), **unusual: Any) -> dict[str, str]:
    """Return an environment in which programs see stand-in GPUs, each with a process of ``pids`` or this one.

    What is ``unusual`` about them is given as fields of StandinGpu.
    """
    lib, file = folder / "lib", folder / f"{'-'.join([str(gpus), *unusual])}.scenario"
    if not lib.exists():
        build(lib, folder)
    scenario = Scenario.of("bench", gpus=gpus, utilization_percent=93, power_mw=612_345)
    for i, gpu in enumerate(scenario.gpus):
        gpu.processes.append(GpuProcess(pids[i] if pids else os.getpid(), used_mib=70_000, sm_percent=91))
        for name, value in unusual.items():
            setattr(gpu, name, value)
    scenario.write(file)
    return {**os.environ, "LD_LIBRARY_PATH": str(lib), "GSWARM_STANDIN_SCENARIO": str(file)}
