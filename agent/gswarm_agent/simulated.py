"""A simulated node: a probe of simulated GPUs (``probes/gpus/simulated.py``) and of the host below them."""

from __future__ import annotations

import json
import time
from functools import lru_cache

from gswarm_agent.frame import HostFacts, ProcessSample
from gswarm_agent.metrics import (
    COUNTER,
    DEFAULT_GROUPS,
    GPU_METRICS,
    HOST,
    HOST_METRICS,
    LISTING_S,
    LISTINGS,
    MOUNTS,
    PORTS,
    PROCESS_METRICS,
    PROCESSES,
    RATE,
)
from gswarm_agent.probes.base import TickSamples
from gswarm_agent.probes.gpus.simulated import (
    UNMEASURED,
    SimulatedJob,
    Simulation,
    noise,
    simulated_gpus,
    simulated_links,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Sequence, Tuple

    from gswarm_agent.frame import GpuFacts, GpuLink, NamedRow, Row
    from gswarm_agent.probes.gpus.vendor import Values

__all__ = ["SimulatedNode", "Simulation", "parse_simulation"]

_PROCESS_EVERY_S = 2.0
_CPUS = 192
_HOST_MEMORY_MIB = 2_063_937
_METRICS = {"gpus": GPU_METRICS, "host": HOST_METRICS, "processes": PROCESS_METRICS, **LISTINGS}


def parse_simulation(text: str) -> Simulation:
    """Parse a JSON object with the fields of ``Simulation``, which the recorder writes."""
    return Simulation(**json.loads(text))


@lru_cache(maxsize=64)
def _names(metrics: str, groups: Tuple[str, ...], first: bool) -> Tuple[str, ...]:
    """Return the columns with a value, empty names for the others."""
    return tuple(
        m.name if m.group in groups and not (first and m.kind == RATE) else "" for m in _METRICS[metrics]
    )


class SimulatedNode:
    """A probe of a simulated node. See ``Probe``."""

    simulated, patient = True, False

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._job = SimulatedJob(simulation)
        self._gpus = simulated_gpus(simulation, self._job)
        self._origin_ns = time.monotonic_ns() if simulation.origin_ns is None else simulation.origin_ns
        self._last: Optional[float] = None
        self._groups: Sequence[str] = DEFAULT_GROUPS

    def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
        """Return the facts of the node, which follow from its name."""
        host = HostFacts(
            hostname=self._simulation.node,
            boot_id=f"{self._job.key >> 20:08x}-0000-4000-8000-{self._simulation.index:012d}",
            kernel="5.14.0-503.el9.x86_64",
            cpu_model="Simulated 96-core processor",
            cpus=_CPUS,
            memory_total_mib=_HOST_MEMORY_MIB,
            driver_version="570.86.15",
            cuda_version="12.8",
        )
        return host, tuple(gpu.facts(self._simulation.index) for gpu in self._gpus), dict(UNMEASURED)

    def links(self) -> Tuple[GpuLink, ...]:
        """See Probe."""
        return simulated_links(len(self._gpus))

    def switch(self, groups: Sequence[str]) -> None:
        """See Probe."""
        self._groups = groups

    def read(self, now_ns: int, *, fresh: bool = False) -> TickSamples:
        """Return the samples at a monotonic time; like a real node's, the first ones have no rates."""
        t = max(0.0, (now_ns - self._origin_ns) / 1e9)
        last, self._last = self._last, t
        first = last is None
        looks = last is None or t // _PROCESS_EVERY_S != last // _PROCESS_EVERY_S
        lists = last is None or t // LISTING_S != last // LISTING_S
        return TickSamples(
            gpus=tuple(self._row("gpus", gpu.values(t), first) for gpu in self._gpus),
            host=self._row("host", self._host(t), first),
            processes=self._processes(t, first) if looks and PROCESSES in self._groups else None,
            listings=self._listings(t, first) if lists and HOST in self._groups else {},
        )

    def close(self) -> None:
        """Do nothing."""

    def _row(self, metrics: str, values: Values, first: bool) -> Row:
        """Return the values in the catalogue's order, without rates at first and what is switched off."""
        return tuple(map(values.get, _names(metrics, tuple(self._groups), first)))

    def _host(self, t: float) -> Values:
        job, key = self._job, self._job.key
        level, writing, warm = job.level(t), job.checkpoint(t), job.warm(t)
        user = 3 + 24 * level + 30 * (1 - warm) * (t > job.delay) + 4 * noise(key + 9, t)
        system = 1 + 4 * level + 6 * writing
        iowait = 6 * writing
        fabric = 42_000 * level * job.pace(t) * (0.85 + 0.15 * noise(key + 11, t))
        cycles, ipc = 3.4 * _CPUS * (0.03 + 0.26 * level), 0.6 + 0.9 * level
        traffic = 4_000 + 61_000 * level
        return {
            "cpu_pct": user + system,
            "cpu_user_pct": user,
            "cpu_system_pct": system,
            "cpu_iowait_pct": iowait,
            "cpu_busiest_pct": min(100.0, 70 + 30 * level) if t > job.delay else 9.0,
            "load_1m": _CPUS * (user + system + iowait) / 100,
            "memory_used_mib": round(61_000 + 240_000 * warm + 3_000 * noise(key + 12, t / 20)),
            "swap_used_mib": 0,
            "disk_read_mb_s": 180 * level + 3_000 * (0 < warm < 1),
            "disk_write_mb_s": 2 + 2_900 * writing,
            "net_rx_mb_s": 9 + 320 * level,
            "net_tx_mb_s": 7 + 90 * level + 1_400 * writing,
            "ib_rx_mb_s": fabric,
            "ib_tx_mb_s": fabric * (0.98 + 0.04 * noise(key + 13, t)),
            "psi_cpu_pct": 1.5 * level,
            "psi_memory_pct": 0.0,
            "psi_io_pct": 22.0 * writing,
            "job_memory_mib": round(20_000 + 240_000 * warm),
            "job_memory_limit_mib": 1_966_080,
            "job_oom_kills": 0,
            "job_psi_cpu_pct": 1.2 * level,
            "job_psi_memory_pct": 0.0,
            "job_psi_io_pct": 20.0 * writing,
            "instructions_g_s": cycles * ipc,
            "cycles_g_s": cycles,
            "ipc": ipc,
            "flops_g_s": 0.4 + 30 * level,
            "memory_bandwidth_mb_s": traffic,
            "llc_misses_m_s": traffic / 150,
            "page_faults_s": 900 + 22_000 * (1 - warm),
            "context_switches_s": 6_000 + 31_000 * level,
            "cpu_migrations_s": 40 + 260 * level,
        }

    def _listings(self, t: float, first: bool) -> Dict[str, List[NamedRow]]:
        traffic = 5_000 * self._job.level(t) * self._job.pace(t)
        port: Values = dict.fromkeys((m.name for m in LISTINGS[PORTS] if m.kind == COUNTER), 0)
        port.update(state=4, phys_state=5, rate_gbit_s=400, rx_mb_s=traffic, tx_mb_s=traffic)
        mounts: Dict[str, Values] = {
            "/scratch/demo": {"free_mib": 9e8, "total_mib": 2e9, "read_ms": 1.5, "write_ms": 2.5},
            "/tmp": {"free_mib": 3e6, "total_mib": 7e6},  # noqa: S108
        }
        return {
            PORTS: [(f"mlx5_{at}/1", self._row(PORTS, port, first)) for at in range(len(self._gpus))],
            MOUNTS: [(path, self._row(MOUNTS, values, first)) for path, values in mounts.items()],
        }

    def _processes(self, t: float, first: bool) -> Tuple[ProcessSample, ...]:
        job, samples = self._job, []
        for index, gpu in enumerate(self._gpus):
            if t < job.delay:
                continue
            level = gpu.level(t)
            values: Values = {
                "gpu_memory_mib": gpu.memory_mib(t),
                "sm_pct": round(100 * level),
                "cpu_pct": 100 + 260 * level + 40 * noise(job.key + index, t),
                "memory_mib": round(9_000 + 21_000 * job.warm(t)),
                "read_mb_s": 22 * level,
                "write_mb_s": 360 * job.checkpoint(t),
                "read_calls_mb_s": 60 * level,
                "write_calls_mb_s": 1 + 360 * job.checkpoint(t),
                "voluntary_switches_s": 900 * level,
                "involuntary_switches_s": 3 + 9 * level,
                "world_size": self._simulation.nodes * self._simulation.gpus,
                "threads": 212,
                "numa_node": index // 4,
                "age_s": int(t - job.delay),
            }
            state, wchan = ("S", "futex_wait_queue") if level < 0.5 else ("R", None)
            pid = 41_200 + 17 * index + job.key % 997
            rank = self._simulation.index * self._simulation.gpus + index
            command = "python train.py --config llama-8b.yaml"
            row = self._row("processes", values, first)
            software = "4711", "0", "torch 2.14.1", "2.30.7", "apptainer torch.sif"
            texts = f"{12 * index}-{12 * index + 11}", state, wchan, *software
            samples.append(ProcessSample(index, pid, "demo", command, rank, index, row, *texts))
        return tuple(samples)
