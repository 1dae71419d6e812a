"""A simulated node for demos and scale tests: one training job, computed.

The seed, the node's name and the time since ``origin_ns`` determine every sample, in any process. The job
warms up, trains in epochs with an evaluation and a checkpoint at the end of each, and has the problems of
real fleets: an idle GPU, a node that waits for its disks, a hot node, a straggler, and memory errors.
"""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections import deque
from dataclasses import dataclass, fields
from functools import lru_cache
from operator import mul
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from gswarm_agent.frame import WARNING, GpuFacts, GpuLink, HostFacts, Note, ProcessSample, Row
from gswarm_agent.metrics import (
    COUNTER_COLUMNS,
    COUNTERS,
    DEFAULT_GROUPS,
    GPU_METRICS,
    HOST,
    HOST_METRICS,
    PROC_COLUMNS,
    PROCESS_METRICS,
    PROCESSES,
    RATE,
    REASON_POWER_CAP,
    REASON_SW_THERMAL,
    Metric,
    columns_off,
)
from gswarm_agent.probes.base import TickSamples

IDLE, LOADER, HOT, STRAGGLER, ERRORS, OLD_DRIVER = (
    "idle",
    "loader",
    "hot",
    "straggler",
    "errors",
    "old driver",
)
_ODD = (IDLE, LOADER, HOT, STRAGGLER, ERRORS)

_EPOCH_S = 60.0
_CHECKPOINT_S = 4.0
_EVALUATION_S = 5.0
_WARM_UP_S = 10.0
_PROCESS_EVERY_S = 2.0
_FIRST_ERROR_S = 45.0

_POWER_LIMIT_W = 700.0
_IDLE_W = 72.0
_MEMORY_MIB = 81_559
_SM_CLOCK_MAX = 1_980
_MEM_CLOCK_MAX = 2_619
_CPUS = 192
_NVLINKS, _NVLINK_GB_S = 18, 26.562
_HOST_MEMORY_MIB = 2_063_937
_SLOWDOWN_C = 84
_THERMAL_MASS = 15
_WEIGHTS = sum(range(1, _THERMAL_MASS + 1))
_BITS = (1 << 64) - 1


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


def parse_simulation(text: str) -> Simulation:
    """Parse a JSON object with the fields of ``Simulation``. Raises ValueError."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError("a simulation is a JSON object")
    known = {f.name for f in fields(Simulation)}
    for name, value in given.items():
        wanted = str if name == "node" else int
        if name not in known or not isinstance(value, wanted):
            raise ValueError(f"a simulation can't have {name!r} = {value!r}")
    return Simulation(**given)


@lru_cache(maxsize=8)
def _order(seed: int, nodes: int) -> List[int]:
    """Return the nodes in the order in which they get problems."""
    return random.Random(seed).sample(range(nodes), nodes)  # noqa: S311


def traits(simulation: Simulation) -> FrozenSet[str]:
    """Return this node's problems: five in a small fleet, one node in six of a large one."""
    order = _order(simulation.seed, simulation.nodes)
    odd = [kind for kind in _ODD if kind != LOADER or simulation.nodes >= 4]
    found = set()
    for place in range(max(len(odd), simulation.nodes // 6)):
        if order[place % simulation.nodes] == simulation.index:
            found.add(odd[place % len(odd)])
    if simulation.nodes >= 4 and order[-1] == simulation.index:
        found.add(OLD_DRIVER)
    return frozenset(found)


def _unit(key: int, step: int) -> float:
    """Return a pseudo-random number in [0, 1) (splitmix64)."""
    x = (key + step * 0x9E3779B97F4A7C15) & _BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return ((x ^ (x >> 31)) >> 11) / (1 << 53)


def _noise(key: int, x: float) -> float:
    """Return smooth noise in [0, 1) that changes over a distance of 1."""
    step = math.floor(x)
    part = x - step
    low, high = _unit(key, step), _unit(key, step + 1)
    return low + (high - low) * part * part * (3 - 2 * part)


class _Job:
    """The load that all GPUs of a node share. Times are seconds since the job began."""

    def __init__(self, simulation: Simulation, odd: FrozenSet[str]) -> None:
        self.key = zlib.crc32(f"{simulation.seed} {simulation.node}".encode()) << 20
        self.loader = LOADER in odd
        # Nodes start one after the other over a few seconds, as a launcher starts them.
        self.delay = 4.0 * simulation.index / simulation.nodes + _unit(self.key, 1)

    def warm(self, t: float) -> float:
        """Return the progress of the warm-up, 0 to 1."""
        return min(1.0, max(0.0, (t - self.delay) / _WARM_UP_S))

    def checkpoint(self, t: float) -> float:
        """Return 1 while the job writes a checkpoint, else 0."""
        return 1.0 if t > _WARM_UP_S and t % _EPOCH_S > _EPOCH_S - _CHECKPOINT_S else 0.0

    def evaluating(self, t: float) -> bool:
        """Return whether the job evaluates, which loads GPUs less than training."""
        into = t % _EPOCH_S
        end = _EPOCH_S - _CHECKPOINT_S
        return t > _WARM_UP_S and end - _EVALUATION_S < into <= end

    def starved(self, t: float) -> float:
        """Return the share of time that GPUs wait for data, 0 to 1."""
        if not self.loader or t < _WARM_UP_S:
            return 0.0
        return 0.25 + 0.75 * _noise(self.key + 2, t / 7)

    def level(self, t: float) -> float:
        """Return the load of the GPUs, 0 to 1."""
        warm = self.warm(t)
        level = 0.97 * warm * warm
        if self.checkpoint(t):
            level *= 0.06
        elif self.evaluating(t):
            level *= 0.62
        return level * (1 - 0.8 * self.starved(t))


class _Gpu:
    """One GPU of a job; remembers its power second by second for energy and temperature."""

    def __init__(self, job: _Job, index: int, kind: Optional[str], has_memory_temperature: bool) -> None:
        self.job = job
        self.index = index
        self.kind = kind
        self.key = job.key + 4096 * (index + 1)
        self.has_memory_temperature = has_memory_temperature
        self._character = _unit(self.key, 7)
        self._second = 0
        self._joules = 3.6e6 * (20 + 10 * _unit(self.key, 8))
        self._recent = deque([_IDLE_W] * _THERMAL_MASS, _THERMAL_MASS)
        self._temp = self._temperature(0)
        self._watts = self.power(0.5)

    @property
    def hot(self) -> float:
        """Thermal throttling of the clocks, 0 to 1."""
        return min(1.0, max(0.0, (self._temp - _SLOWDOWN_C) / 5))

    def level(self, t: float) -> float:
        """Return the share of time in which kernels run, 0 to 1."""
        if self.kind == IDLE:
            return 0.0
        level = self.job.level(t)
        if self.kind == STRAGGLER:
            return min(1.0, level * 1.03)
        return level * (1 - 0.03 * self._character - 0.03 * _noise(self.key, t * 1.7))

    def power(self, t: float, level: Optional[float] = None) -> float:
        """Return the power in watts; ``level`` is that of the time, where it is known."""
        if self.kind == IDLE:
            return _IDLE_W + 2 * _noise(self.key, t)
        wanted = 1.04 - 0.12 * self._character - 0.06 * _noise(self.key + 1, t / 3)
        if self.kind == STRAGGLER:
            wanted = 0.55
        wanted *= 1 - 0.3 * self.hot
        level = self.level(t) if level is None else level
        return min(_POWER_LIMIT_W, _IDLE_W + (_POWER_LIMIT_W * wanted - _IDLE_W) * level)

    def row(self, t: float) -> Row:
        """Return all GPU metrics; times may not decrease between calls."""
        self._advance(t)
        level, hot, temp = self.level(t), self.hot, self._temp
        power = self.power(t, level)
        busy = self.kind != IDLE
        capped = power > 0.985 * _POWER_LIMIT_W
        clock = 345.0
        if busy:
            clock = _SM_CLOCK_MAX - 25 * self._character - (90 if capped else 0) - 620 * hot
            clock = 1_155 if self.kind == STRAGGLER else clock
        exchange = level * (0.8 + 0.2 * _noise(self.key + 3, t * 2))
        memory = 4 if not busy else 1_100 + 69_000 * self.job.warm(t) + 2_500 * level
        writing, starved = self.job.checkpoint(t), self.job.starved(t)
        nvlink = 186_000 * exchange
        return (
            round(100 * level),
            round(62 * level * (0.9 + 0.1 * _noise(self.key + 4, t))),
            round(memory),
            round(power, 1),
            round(temp),
            round(temp + 6 + 9 * level) if self.has_memory_temperature else None,
            15 * round(clock / 15),
            _MEM_CLOCK_MAX,
            (90 + 300 * exchange + 9_500 * writing) if busy else 0.1,
            (120 + 2_100 * exchange * (1 - 0.5 * starved)) if busy else 0.1,
            nvlink,
            nvlink * (0.99 + 0.02 * _noise(self.key + 5, t)),
            int(self._energy_mj(t)),
            (REASON_POWER_CAP if capped else 0) | (REASON_SW_THERMAL if hot else 0) | (not busy),
            min(100.0, 4 + 20 * _noise(self.key + 6, t)) if capped else 0.0,
            round(100 * hot * (0.8 + 0.2 * _noise(self.key + 7, t)), 1),
            0.0,
            self.errors(t),
            0,
            0 if busy else 8,
        )

    def errors(self, t: float) -> int:
        """Return the corrected memory errors so far."""
        return int(max(0.0, t - _FIRST_ERROR_S) / 6) if self.kind == ERRORS else 0

    def _advance(self, t: float) -> None:
        while self._second < math.floor(t):
            self._joules += self._watts
            self._recent.append(self._watts)
            self._second += 1
            self._temp = self._temperature(self._second)
            self._watts = self.power(self._second + 0.5)

    def _temperature(self, t: float) -> float:
        """Return degrees Celsius from the power of the last seconds; a hot GPU lacks cooling now and then."""
        heat: float = sum(map(mul, range(1, _THERMAL_MASS + 1), self._recent)) / _WEIGHTS
        resistance = 0.060 + (0.05 * max(0.0, math.sin(t / 20 - 0.5)) if self.kind == HOT else 0)
        return 26 + 1.1 * (self.index % 4) + 3 * self._character + resistance * heat

    def _energy_mj(self, t: float) -> float:
        return 1000 * (self._joules + (t - self._second) * self._watts)


@lru_cache(maxsize=8)
def _links(gpus: int) -> Tuple[GpuLink, ...]:
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


class SimulatedNode:
    """A probe of a simulated node."""

    simulated = True

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._origin_ns = time.monotonic_ns() if simulation.origin_ns is None else simulation.origin_ns
        self._odd = traits(simulation)
        self._job = _Job(simulation, self._odd)
        self._key = self._job.key
        self._gpus = [
            _Gpu(self._job, index, self._kind_of(index), OLD_DRIVER not in self._odd)
            for index in range(simulation.gpus)
        ]
        self._last: Optional[float] = None
        self._groups: Sequence[str] = DEFAULT_GROUPS

    def facts(self) -> Tuple[HostFacts, Tuple[GpuFacts, ...], Dict[str, str]]:
        """Return the facts of the node, which follow from its name."""
        old = OLD_DRIVER in self._odd
        host = HostFacts(
            hostname=self._simulation.node,
            boot_id=f"{self._key >> 20:08x}-0000-4000-8000-{self._simulation.index:012d}",
            kernel="5.14.0-503.el9.x86_64",
            cpu_model="Simulated 96-core processor",
            cpus=_CPUS,
            memory_total_mib=_HOST_MEMORY_MIB - self._simulation.index % 3 * 512,
            driver_version="550.90.07" if old else "570.86.15",
            cuda_version="12.4" if old else "12.8",
        )
        gpus = tuple(
            GpuFacts(
                index=gpu.index,
                uuid=f"GPU-{self._key >> 20:08x}-{gpu.index:04d}-4000-8000-{self._simulation.index:012d}",
                name="NVIDIA H100 80GB HBM3 (simulated)",
                pci_bus_id=f"00000000:{0x19 + 0x11 * gpu.index & 0xFF:02X}:00.0",
                minor=gpu.index,
                memory_total_mib=_MEMORY_MIB,
                power_limit_w=_POWER_LIMIT_W,
                sm_clock_max_mhz=_SM_CLOCK_MAX,
                mem_clock_max_mhz=_MEM_CLOCK_MAX,
            )
            for gpu in self._gpus
        )
        reason = f"the simulated driver {host.driver_version} does not report the memory temperature"
        return host, gpus, {"mem_temp_c": reason} if old else {}

    def links(self) -> Tuple[GpuLink, ...]:
        """Return the connections of a node with NVSwitches and an adapter for each GPU."""
        return _links(self._simulation.gpus)

    def switch(self, groups: Sequence[str]) -> None:
        """See Probe."""
        self._groups = groups

    def read(self, now_ns: int) -> TickSamples:
        """Return the samples at a monotonic time; like a real node's, the first ones have no rates."""
        t = max(0.0, (now_ns - self._origin_ns) / 1e9)
        last, self._last = self._last, t
        first = last is None
        looks = last is None or t // _PROCESS_EVERY_S != last // _PROCESS_EVERY_S
        return TickSamples(
            gpus=tuple(self._on(_row(GPU_METRICS, gpu.row(t), first)) for gpu in self._gpus),
            host=_row(HOST_METRICS, self._host_row(t), first),
            processes=self._processes(t, first) if looks and PROCESSES in self._groups else None,
            notes=() if last is None else self._notes(last, t),
        )

    def _on(self, row: Row) -> Row:
        """Return a GPU's row without the metrics that are switched off."""
        if not columns_off(self._groups):
            return row
        return tuple(number if m.group in self._groups else None for m, number in zip(GPU_METRICS, row))

    def _host_row(self, t: float) -> Row:
        """Return the node's row without the metrics that are switched off."""
        host = self._host(t) if HOST in self._groups else (None,) * len(PROC_COLUMNS)
        counted = self._counters(t) if COUNTERS in self._groups else (None,) * len(COUNTER_COLUMNS)
        return (*host, *counted)

    def _counters(self, t: float) -> Row:
        level, starved = self._job.level(t), self._job.starved(t)
        cycles = 3.4 * _CPUS * (0.03 + 0.26 * level)
        ipc = 0.6 + 0.9 * level
        traffic = 4_000 + 61_000 * level + 30_000 * starved
        return (
            cycles * ipc,
            cycles,
            ipc,
            0.4 + 30 * level,
            traffic,
            traffic / 150,
            900 + 22_000 * (1 - self._job.warm(t)),
            6_000 + 31_000 * level,
            40 + 260 * level,
        )

    def close(self) -> None:
        """Do nothing."""

    def _kind_of(self, index: int) -> Optional[str]:
        """Return a GPU's problem, if any; heat affects two neighbours, the others one GPU each."""
        count = self._simulation.gpus
        first = int(_unit(self._key, 3) * count)
        places = {IDLE: (0,), HOT: (1, 2), STRAGGLER: (3,), ERRORS: (4,)}
        for kind, offsets in places.items():
            if kind in self._odd and index in {(first + offset) % count for offset in offsets}:
                return kind
        return None

    def _host(self, t: float) -> Row:
        job, key = self._job, self._key
        level, writing, starved = job.level(t), job.checkpoint(t), job.starved(t)
        user = 3 + 24 * level + 30 * (1 - job.warm(t)) * (t > job.delay) + 4 * _noise(key + 9, t)
        system = 1 + 4 * level + 6 * writing + 2 * starved
        iowait = 34 * starved * (0.7 + 0.3 * _noise(key + 10, t)) + 6 * writing
        reading = 180 * level + 2_600 * starved + 3_000 * (0 < job.warm(t) < 1)
        fabric = 42_000 * level * (0.85 + 0.15 * _noise(key + 11, t))
        memory = 61_000 + 240_000 * job.warm(t) + 3_000 * _noise(key + 12, t / 20)
        return (
            user + system,
            user,
            system,
            iowait,
            min(100.0, 70 + 30 * max(level, starved)) if t > job.delay else 9.0,
            _CPUS * (user + system + iowait) / 100,
            round(memory),
            0,
            reading,
            2 + 2_900 * writing,
            9 + 320 * level,
            7 + 90 * level + 1_400 * writing,
            fabric,
            fabric * (0.98 + 0.04 * _noise(key + 13, t)),
            1.5 * level,
            0.0,
            min(100.0, 70 * starved + 22 * writing),
        )

    def _processes(self, t: float, first: bool) -> Tuple[ProcessSample, ...]:
        if t < self._job.delay:
            return ()
        samples = []
        for gpu in self._gpus:
            if gpu.kind == IDLE:
                continue
            level = gpu.level(t)
            row: Row = (
                round(620 + 69_000 * self._job.warm(t) + 2_500 * level),
                round(100 * level),
                100 + 260 * level + 40 * _noise(gpu.key + 9, t),
                round(9_000 + 21_000 * self._job.warm(t)),
                22 * level + 320 * self._job.starved(t),
                360 * self._job.checkpoint(t),
                *(self._process_counters(level) if COUNTERS in self._groups else (None, None, None)),
            )
            samples.append(
                ProcessSample(
                    gpu=gpu.index,
                    pid=41_200 + 17 * gpu.index + self._key % 997,
                    user="demo",
                    command="python train.py --config llama-8b.yaml",
                    rank=self._simulation.index * self._simulation.gpus + gpu.index,
                    local_rank=gpu.index,
                    row=_row(PROCESS_METRICS, row, first),
                )
            )
        return tuple(samples)

    def _process_counters(self, level: float) -> Row:
        ipc = 0.6 + 0.9 * level
        return 3.4 * (1 + 2.6 * level) * ipc, ipc, 90 + 700 * level

    def _notes(self, last: float, t: float) -> Tuple[Note, ...]:
        if not last < _FIRST_ERROR_S <= t:
            return ()
        message = "XID 92: high single-bit ECC error rate"
        return tuple(Note("xid", WARNING, message, gpu.index) for gpu in self._gpus if gpu.kind == ERRORS)


def _row(metrics: Tuple[Metric, ...], row: Row, first: bool) -> Row:
    if not first:
        return row
    return tuple(None if metric.kind == RATE else number for metric, number in zip(metrics, row))
