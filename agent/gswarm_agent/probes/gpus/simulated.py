"""Simulated GPUs for demos and scale tests: one training job, computed.

The seed, the node's name and the time since ``origin_ns`` determine every value, in any process. The job
warms up and trains in epochs, with an evaluation and a checkpoint at the end of each. After two minutes one
GPU of the fleet overheats. All others wait for it in each step: they stay busy, draw less power and exchange
fewer bytes.
"""

from __future__ import annotations

import math
import random
import zlib
from dataclasses import dataclass
from functools import lru_cache

from gswarm_agent.frame import GpuFacts, GpuLink
from gswarm_agent.metrics import REASON_POWER_CAP, REASON_SW_THERMAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from gswarm_agent.probes.gpus.vendor import Values

HEAT_FROM_S, _HEATS_UP_S = 120.0, 15.0
SLOWED = 0.2
"""Share by which the hot GPU, and with it the job, is slower."""
_EPOCH_S, _EVALUATION_S, _CHECKPOINT_S = 60.0, 5.0, 1.0
_WARM_UP_S = 10.0
_POWER_LIMIT_W, _IDLE_W = 700.0, 72.0
_MEMORY_MIB = 81_559
_SM_CLOCK_MAX, _MEM_CLOCK_MAX = 1_980, 2_619
_NVLINKS, _NVLINK_GB_S = 18, 26.562
_BITS = (1 << 64) - 1
_HEALTH: Values = {
    "power_limit_now_w": _POWER_LIMIT_W,
    "app_sm_clock_mhz": _SM_CLOCK_MAX,
    "app_mem_clock_mhz": _MEM_CLOCK_MAX,
    "pcie_gen": 5,
    "pcie_width": 16,
    "fabric_state": 3,
    **dict.fromkeys(("pcie_replays", "nvlink_errors", "nvlink_recoveries", "recovery_action"), 0),
    **dict.fromkeys(("remapped_correctable", "remapped_uncorrectable", "remap_pending", "remap_failed"), 0),
}
UNMEASURED = dict.fromkeys(("c2c_tx_mb_s", "c2c_rx_mb_s", "module_power_w"), "not supported by this GPU")
"""Why a simulated GPU has no value: an H100 has no link to the CPU but PCIe."""


@dataclass(frozen=True)
class Simulation:
    """The parameters of a simulated node: the ``index``-th of ``nodes``, with ``gpus`` GPUs.

    ``origin_ns`` is the monotonic time at which the job began, None for now.
    """

    node: str = "sim001"
    index: int = 0
    nodes: int = 1
    gpus: int = 8
    seed: int = 1
    origin_ns: Optional[int] = None


@lru_cache(maxsize=8)
def hot_gpu(seed: int, nodes: int, gpus: int) -> Tuple[int, int]:
    """Return the node and the GPU that overheat, by their positions."""
    return divmod(random.Random(seed).randrange(nodes * max(1, gpus)), max(1, gpus))  # noqa: S311


def _unit(key: int, step: int) -> float:
    """Return a pseudo-random number in [0, 1) (splitmix64)."""
    x = (key + step * 0x9E3779B97F4A7C15) & _BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)


def noise(key: int, x: float) -> float:
    """Return smooth noise in [0, 1) that changes over a distance of 1."""
    step = math.floor(x)
    part = x - step
    low, high = _unit(key, step), _unit(key, step + 1)
    return low + (high - low) * part * part * (3 - 2 * part)


class SimulatedJob:
    """The load that all GPUs of a node share. Times are seconds since the job began."""

    def __init__(self, simulation: Simulation) -> None:
        self.key = zlib.crc32(f"{simulation.seed} {simulation.node}".encode()) << 20
        # Nodes start one after the other over a few seconds, as a launcher starts them.
        self.delay = 4.0 * simulation.index / simulation.nodes + _unit(self.key, 1)

    def warm(self, t: float) -> float:
        """Return the progress of the warm-up, 0 to 1."""
        return min(1.0, max(0.0, (t - self.delay) / _WARM_UP_S))

    def checkpoint(self, t: float) -> float:
        """Return 1 while the job writes a checkpoint, else 0."""
        return 1.0 if t > _WARM_UP_S and t % _EPOCH_S >= _EPOCH_S - _CHECKPOINT_S else 0.0

    def heat(self, t: float) -> float:
        """Return how much the hot GPU lacks cooling, 0 to 1."""
        return min(1.0, max(0.0, (t - HEAT_FROM_S) / _HEATS_UP_S))

    def level(self, t: float) -> float:
        """Return the load of the GPUs, 0 to 1."""
        level = 0.97 * self.warm(t) ** 2
        if self.checkpoint(t):
            level *= 0.06
        elif t > _WARM_UP_S and t % _EPOCH_S > _EPOCH_S - _CHECKPOINT_S - _EVALUATION_S:
            level *= 0.62
        return level

    def pace(self, t: float) -> float:
        """Return the speed of the job, which is that of its slowest GPU: 1 before the heat."""
        return 1 - SLOWED * self.heat(t)


class SimulatedGpu:
    """One GPU of a job; adds up its power second by second."""

    def __init__(self, job: SimulatedJob, index: int, *, hot: bool) -> None:
        self._hot = hot
        self._job = job
        self._index = index
        self._key = job.key + 4096 * (index + 1)
        self._character = _unit(self._key, 7)
        self._second = 0
        self._joules = 3.6e6 * (20 + 10 * _unit(self._key, 8))
        self._watts = self._power(0.5, self.level(0.5))  # mean power of the current second

    def facts(self, node: int) -> GpuFacts:
        """Return its facts on the node with this number."""
        index = self._index
        return GpuFacts(
            index=index,
            uuid=f"GPU-{self._job.key >> 20:08x}-{index:04d}-4000-8000-{node:012d}",
            name="NVIDIA H100 80GB HBM3 (simulated)",
            pci_bus_id=f"00000000:{0x19 + 0x11 * index & 0xFF:02X}:00.0",
            minor=index,
            memory_total_mib=_MEMORY_MIB,
            power_limit_w=_POWER_LIMIT_W,
            sm_clock_max_mhz=_SM_CLOCK_MAX,
            mem_clock_max_mhz=_MEM_CLOCK_MAX,
            numa_node=index // 4,
        )

    def level(self, t: float) -> float:
        """Return the share of time in which kernels run, 0 to 1."""
        return self._job.level(t) * (1 - 0.03 * self._character - 0.03 * noise(self._key, t * 1.7))

    def memory_mib(self, t: float) -> int:
        """Return the memory of the job's process."""
        return round(620 + 69_000 * self._job.warm(t) + 2_500 * self.level(t))

    def values(self, t: float) -> Values:
        """Return the values by column; times may not decrease between calls."""
        job, level, pace = self._job, self.level(t), self._job.pace(t)
        # The hot GPU works all the time; the others wait for it for the rest of each step.
        heat, work = (job.heat(t) * level, level) if self._hot else (0.0, level * pace)
        power = self._power(t, level)
        heat_noise = noise(self._key + 13, t * 3)
        capped = power > 0.985 * _POWER_LIMIT_W
        clock = _SM_CLOCK_MAX - 25 * self._character - 90 * capped - 1.2 * SLOWED * _SM_CLOCK_MAX * heat
        temp = 34 + 3 * self._character + 0.055 * power + 28 * heat
        exchange = level * pace * (0.8 + 0.2 * noise(self._key + 3, t * 2))
        nvlink = 186_000 * exchange
        while self._second < math.floor(t):
            self._joules += self._watts
            self._second += 1
            self._watts = self._power(self._second + 0.5, self.level(self._second + 0.5))
        return {
            "util_pct": round(100 * level),
            "mem_util_pct": round(62 * work * (0.9 + 0.1 * noise(self._key + 4, t))),
            "mem_used_mib": 480 + self.memory_mib(t),
            "power_w": round(power, 1),
            "temp_c": round(temp),
            "mem_temp_c": round(temp + 4 + 6 * level),
            "sm_clock_mhz": 15 * round(clock / 15),
            "mem_clock_mhz": _MEM_CLOCK_MAX,
            "pcie_tx_mb_s": 90 + 300 * exchange + 9_500 * job.checkpoint(t),
            "pcie_rx_mb_s": 120 + 2_100 * exchange,
            "nvlink_tx_mb_s": nvlink,
            "nvlink_rx_mb_s": nvlink * (0.99 + 0.02 * noise(self._key + 5, t)),
            "energy_mj": int(1000 * (self._joules + (t - self._second) * self._watts)),
            "clock_reasons": (REASON_POWER_CAP * capped) | (REASON_SW_THERMAL * (heat > 1.3 * heat_noise)),
            "throttle_power_pct": 4 + 20 * noise(self._key + 6, t) if capped else 0.0,
            "throttle_thermal_pct": round(heat * (60 + 25 * heat_noise), 1),
            "throttle_brake_pct": 0.0,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
            "pstate": 0,
            "power_instant_w": round(power * (0.97 + 0.06 * noise(self._key + 9, t * 9)), 1),
            "temp_margin_c": round(90 - temp),
            **_HEALTH,
            **self._activity(t, work),
        }

    def _activity(self, t: float, level: float) -> Values:
        """Return what the chip does while kernels run: mixed precision that waits for memory now and then."""
        tensor = level * (0.38 + 0.14 * noise(self._key + 7, t / 2) - 0.05 * self._character)
        return {
            "sm_active_pct": round(100 * level * (0.82 + 0.1 * noise(self._key + 8, t)), 1),
            "sm_occupancy_pct": round(100 * level * (0.24 + 0.08 * noise(self._key + 9, t)), 1),
            "tensor_active_pct": round(100 * tensor, 1),
            "dram_active_pct": round(100 * level * (0.42 + 0.16 * noise(self._key + 10, t)), 1),
            "fp64_active_pct": 0.0,
            "fp32_active_pct": round(100 * level * (0.09 + 0.05 * noise(self._key + 11, t)), 1),
            "fp16_active_pct": round(100 * level * (0.03 + 0.02 * noise(self._key + 12, t)), 1),
        }

    def _power(self, t: float, level: float) -> float:
        wanted = 1.04 - 0.12 * self._character - 0.06 * noise(self._key + 1, t / 3)
        wanted -= (0.25 if self._hot else SLOWED) * self._job.heat(t)
        return min(_POWER_LIMIT_W, _IDLE_W + (_POWER_LIMIT_W * wanted - _IDLE_W) * level)


def simulated_gpus(simulation: Simulation, job: SimulatedJob) -> List[SimulatedGpu]:
    """Return the GPUs of a node."""
    hot = hot_gpu(simulation.seed, simulation.nodes, simulation.gpus)
    return [
        SimulatedGpu(job, index, hot=(simulation.index, index) == hot) for index in range(simulation.gpus)
    ]


@lru_cache(maxsize=8)
def simulated_links(gpus: int) -> Tuple[GpuLink, ...]:
    """Return how the GPUs of a simulated node are connected: by NVSwitches, half of them to each socket."""
    found = []
    for gpu in range(gpus):
        nvlinks = (_NVLINKS, "4.0", _NVLINKS * _NVLINK_GB_S)
        names = [f"GPU{peer}" for peer in range(gpus) if peer != gpu] + ["NVSwitch"]
        found += [GpuLink(gpu, name, f"NV{_NVLINKS}", *nvlinks) for name in names]
        for peer in range(gpus):
            kind = "PIX" if peer == gpu else "NODE" if (peer < gpus / 2) == (gpu < gpus / 2) else "SYS"
            found.append(GpuLink(gpu, f"mlx5_{peer}", kind, 0, None, 50.0))
        found.append(GpuLink(gpu, "host", "PCIe", 16, "5.0", 63.008))
    return tuple(found)
