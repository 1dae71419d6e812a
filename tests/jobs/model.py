"""What the agents of a fleet would measure of one training job, tick by tick.

A job works in lock-step: each step takes as long as its slowest rank. Faults change the causes (clocks,
waiting for input, links, processes), and ``_Run`` derives the metrics from them. A rank that waits for
others spins in NCCL's kernels: NVML says util 100 %, but power, memory and tensor activity are low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import GpuFacts, GpuLink, Hello, HostFacts, NamedRow, Note, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, MOUNT_COLUMNS, PORT_COLUMNS, PROCESS_COLUMNS
from tests.unit.store_recording import hello

Floats = npt.NDArray[np.float64]
Where = int | slice | npt.NDArray[np.bool_]
Value = float | tuple[float, float]
T0 = 1_800_000_000.0
USER = "ada"
GPU_MIB, HOST_MIB, LIMIT_MIB, CPUS = 81_559, 1_031_000, 900_000, 96
IDLE_W, HELD_W = 75.0, 110.0


class Kind(NamedTuple):
    """What a kind of job does while all is well.

    ``compute`` is the share of a step in which a rank computes; the rest is communication. Then follow
    memory util, power, tensor activity, and MB/s of each GPU over NVLink and of each node over InfiniBand.
    ``spin_w`` is the power of a rank that waits.
    """

    compute: float
    mem: float
    watts: float
    tensor: float
    nvlink: float
    ib: float
    spin_w: float = 240.0


KINDS = {
    "ddp": Kind(0.85, 48, 640, 38, 55_000, 18_000),
    "fsdp": Kind(0.65, 40, 560, 30, 120_000, 38_000),
    "pipeline": Kind(0.75, 42, 570, 33, 30_000, 6_000),
    "moe": Kind(0.7, 44, 560, 27, 90_000, 30_000),
    "packed": Kind(0.8, 46, 610, 36, 60_000, 19_000),
    "inference": Kind(0.9, 55, 450, 12, 20_000, 0),
    "other": Kind(0.95, 70, 420, 45, 8_000, 2_500, 330.0),
}


Act = Callable[["State", "Fault"], None]
"""What a fault changes in one tick."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to a job: ``act`` is called with the state at each tick from ``start`` on.

    ``start`` is in seconds after the recording's. ``kind`` is the finding that must come, "" if none.
    """

    act: Act
    start: float
    kind: str = ""
    node: int = 0
    gpu: int = 0
    strength: float = 0.2
    names_node: bool = True
    names_gpu: bool = True
    lasts: float = math.inf


@dataclass(frozen=True)
class Job:
    """A job and what happens to it. Times are seconds after the start of the recording.

    ``missing`` has columns that aren't measured, and "processes", "ports", "mounts". ``noise`` scales the
    noise of all metrics. ``spinning`` is the util of GPUs that wait. ``compile_s`` is the time before the
    first step; ``ends_at`` that at which all processes end.
    """

    nodes: int = 4
    gpus: int = 8
    kind: str = "ddp"
    seconds: float = 1500.0
    tick_s: float = 5.0
    step_s: float = 2.0
    seed: int = 1
    faults: tuple[Fault, ...] = ()
    missing: frozenset[str] = frozenset()
    noise: float = 1.0
    spinning: float = 99.0
    compile_s: float = 60.0
    checkpoint_every: float = math.inf
    checkpoint_s: float = 15.0
    asynchronous: bool = False
    ends_at: float = math.inf
    stages: int = 4

    @property
    def count(self) -> int:
        """The number of GPUs."""
        return self.nodes * self.gpus

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [f"gpu{at + 1:02d}" for at in range(self.nodes)]

    @property
    def ports(self) -> list[str]:
        """The names of a node's InfiniBand ports."""
        return [f"mlx5_{at}/1" for at in range(min(4, self.gpus) if self.nodes > 1 else 0)]

    def with_faults(self, *faults: Fault) -> Job:
        """Return the same job with these faults, too."""
        return replace(self, faults=(*self.faults, *faults))

    def hellos(self) -> dict[str, Hello]:
        """Return how the agents introduce the nodes."""
        links = [GpuLink(at, "host", "PCIe", 16, "5", 63.0) for at in range(self.gpus)]
        links += [
            GpuLink(at, "NVSwitch", "NV18", 18, "4", 450.0) for at in range(self.gpus if self.gpus > 1 else 0)
        ]
        found = {}
        for name in self.names:
            host = HostFacts(*(name, f"boot-{name}", "5.14.0", "Xeon", CPUS, HOST_MIB, "570.86.15", "12.8"))
            gpus = tuple(
                GpuFacts(
                    *(at, f"GPU-{name}-{at}", "NVIDIA H100 80GB HBM3", f"0000:{at + 1:02x}:00.0", at),
                    *(GPU_MIB, 700.0, 1980, 2619),
                    numa_node=at * 2 // self.gpus,
                )
                for at in range(self.gpus)
            )
            found[name] = replace(hello(name, life=name, links=tuple(links)), host=host, gpus=gpus)
        return found


class Tick(NamedTuple):
    """What is measured in one tick: values by column, NaN where not measured; lists by node."""

    age: float
    gpus: dict[str, Floats]
    hosts: dict[str, Floats]
    processes: dict[str, tuple[ProcessSample, ...]] | None
    ports: dict[str, list[NamedRow]]
    mounts: dict[str, list[NamedRow]]
    notes: dict[str, list[Note]]


@dataclass
class State:
    """What goes on in one tick. Faults change it before it is measured.

    Arrays have a value for each GPU: ``clock`` and ``silicon`` are speeds (1 is usual), ``load`` the work of
    a step, ``input_s`` how long a step waits for data, as a share of a usual step, ``alive`` whether it has
    a rank, ``paused`` whether that leaves it idle. ``links`` is the speed of communication, ``moves`` how
    many of the usual bytes a step moves. ``hung`` ranks spin for ever. ``silent`` nodes send nothing, and
    ``lost`` GPUs don't answer. ``gpus``, ``hosts`` and ``rank`` replace measured values.
    """

    job: Job
    age: float
    rng: np.random.Generator
    clock: Floats
    silicon: Floats
    load: Floats
    input_s: Floats
    alive: npt.NDArray[np.bool_]
    paused: npt.NDArray[np.bool_]
    links: float = 1.0
    moves: float = 1.0
    hung: bool = False
    incarnation: int = 0
    of_gpus: dict[str, Floats] = field(default_factory=dict)
    of_hosts: dict[str, Floats] = field(default_factory=dict)
    of_ranks: dict[int, dict[str, float | str]] = field(default_factory=dict)
    processes: list[tuple[int, ProcessSample]] = field(default_factory=list)
    ports: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    mounts: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    notes: list[tuple[int, Note]] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    def gpus(self, where: Where, **columns: Value) -> None:
        """Replace what is measured of GPUs; a pair of numbers is drawn between them."""
        self._replace(self.of_gpus, self.job.count, where, columns)

    def hosts(self, where: Where, **columns: Value) -> None:
        """Replace what is measured of nodes, as ``gpus`` does."""
        self._replace(self.of_hosts, self.job.nodes, where, columns)

    def _replace(self, of: dict[str, Floats], count: int, where: Where, columns: dict[str, Value]) -> None:
        for name, value in columns.items():
            drawn = (
                self.rng.uniform(*value, count) if isinstance(value, tuple) else np.full(count, float(value))
            )
            of.setdefault(name, np.full(count, np.nan))[where] = drawn[where]

    def rank(self, where: Where, **values: float | str) -> None:
        """Replace columns and fields of the processes of ranks."""
        for at in np.atleast_1d(np.arange(self.job.count)[where]).tolist():
            self.of_ranks.setdefault(at, {}).update(values)

    def pause(self, cpu_pct: float = 100.0, where: Where = slice(None)) -> None:
        """Leave GPUs idle while their processes use CPUs."""
        self.paused[where] = True
        self.rank(where, cpu_pct=cpu_pct, sm_pct=0)


def ticks(job: Job) -> Iterator[Tick]:
    """Return what is measured of a job, tick by tick."""
    one = _Run(job)
    for at in range(int(job.seconds / job.tick_s + 1e-6)):
        yield one.measure(one.state((at + 1) * job.tick_s))


class _Run:
    """One run of a job: what its GPUs are like, and how far it has come."""

    def __init__(self, job: Job) -> None:
        self.job, self.rng, self.usual = job, np.random.default_rng(job.seed), KINDS[job.kind]
        # Equal GPUs differ: clocks and power under one power limit by 1 to 2 %.
        self.clock = self.rng.normal(1.0, 0.008, job.count)
        self.watts = self.rng.normal(1.0, 0.02, job.count)
        self.temp = self.rng.normal(58, 4, job.count)
        self.capped, self.phase = self.rng.uniform(5, 30), self.rng.uniform(0, 6.28)
        self.position, self.energy, self.told = 0.0, np.full(job.count, 1e9), set[tuple[int, Note]]()
        stage = np.arange(job.count) * job.stages // job.count
        self.load = np.linspace(1.0, 0.8 if job.kind == "pipeline" else 1.0, job.stages)[stage]

    def state(self, age: float) -> State:
        """Return what goes on, with what faults make of it."""
        job, rng, count, spread = self.job, self.rng, self.job.count, 1 / math.sqrt(self.job.tick_s)
        load = self.load.copy()
        if job.kind == "moe":
            load *= np.maximum(0.6, rng.normal(1.0, 0.25 * spread, count))
        elif job.kind == "packed":
            # The mean over 60 s varies by up to 19 %, that over 240 s by 4 %.
            load *= 1 + 0.13 * math.sin(age / 13 + self.phase) + rng.normal(0, 0.1 * spread)
        elif job.kind == "inference":
            load *= rng.uniform(0.6, 1.0, count)
        alive, idle = np.full(count, age < job.ends_at), np.zeros(count, dtype=bool)
        state = State(job, age, rng, self.clock.copy(), np.ones(count), load, np.zeros(count), alive, idle)
        if age <= job.compile_s:
            state.pause()
        elif age > job.checkpoint_every and (age - job.compile_s) % job.checkpoint_every < job.checkpoint_s:
            writes = 700.0 if job.asynchronous else 1800.0
            state.hosts(slice(None), disk_write_mb_s=writes, psi_io_pct=8)
            state.rank(slice(None), write_calls_mb_s=writes / job.gpus, write_mb_s=writes / job.gpus)
            if not job.asynchronous:
                state.pause(60)
        for fault in job.faults:
            if fault.start <= age < fault.start + fault.lasts:
                fault.act(state, fault)
        return state

    def measure(self, state: State) -> Tick:
        """Derive what is measured."""
        job, usual, alive = self.job, self.usual, state.alive
        working = alive & ~state.paused
        compute = usual.compute * state.load / (state.clock * state.silicon)
        talk = (1 - usual.compute) / state.links
        takes = compute + state.input_s + talk
        if job.kind == "inference":
            # Each GPU answers requests of its own, and idles in between.
            busy, waits, rate = compute / takes * state.load, 1 - state.load, 1 / takes
        elif working.any() and not state.hung:
            takes = np.full(job.count, takes[working].max())
            part = self._part(talk / takes[0], takes[0])
            busy, waits, rate = compute / takes, state.input_s / takes, part / takes
            busy = np.clip(busy * (1 - part * talk / takes) / (1 - talk / takes), 0, 1)
        else:
            busy, waits, rate = np.zeros((3, job.count))
        busy, waits, rate = (np.where(working, one, 0.0) for one in (busy, waits, rate * state.moves))
        gpus = self._gpus(state, busy, waits, rate)
        hosts = self._hosts(alive, usual.ib * rate.reshape(job.nodes, job.gpus).mean(axis=1))
        for values, replaced in ((gpus, state.of_gpus), (hosts, state.of_hosts)):
            values |= {name: np.where(np.isnan(new), values[name], new) for name, new in replaced.items()}
        gone = np.isin(np.arange(job.nodes), list(state.silent))
        lost = np.isin(np.arange(job.count), list(state.lost)) | gone.repeat(job.gpus)
        for values, unknown in ((gpus, lost), (hosts, gone)):
            for name in values:
                values[name] = np.where(unknown | (name in job.missing), np.nan, values[name])
        new = {one for one in state.notes if one not in self.told}
        self.told |= new
        return Tick(
            state.age,
            gpus,
            hosts,
            None if "processes" in job.missing else self._processes(state),
            {} if "ports" in job.missing else self._ports(state, np.nan_to_num(hosts["ib_rx_mb_s"])),
            {} if "mounts" in job.missing else self._mounts(state),
            {job.names[node]: [note for of, note in new if of == node] for node, _ in new},
        )

    def _part(self, share: float, takes: float) -> float:
        """Return how much a tick communicates against the mean: steps longer than a tick come apart."""
        before, self.position = self.position, self.position + self.job.tick_s / (self.job.step_s * takes)
        if self.job.step_s <= self.job.tick_s:
            return 1.0
        places = np.linspace(before, self.position, 16, endpoint=False) % 1
        return float(np.mean(places > 1 - share)) / share

    def _gpus(self, state: State, busy: Floats, waits: Floats, rate: Floats) -> dict[str, Floats]:
        job, usual, rng, zero = self.job, self.usual, self.rng, np.zeros(self.job.count)
        working = state.alive & ~state.paused
        spins = np.where(working, np.clip(1 - busy - waits, 0, 1), 0)
        spread = job.noise / math.sqrt(job.tick_s)

        def noisy(values: Floats, of: float) -> Floats:
            return values * rng.normal(1.0, of * spread, job.count)

        blips = np.abs(rng.normal(0, 1.2 * spread, job.count))
        util = (job.spinning * spins + 99.5 * busy) / np.maximum(1e-9, busy + spins) * (1 - waits) - blips
        watts = np.where(state.alive, HELD_W, IDLE_W) + spins * (usual.spin_w - HELD_W)
        watts += busy * (usual.watts - HELD_W) * state.clock**1.5
        power = noisy(watts * self.watts, 0.025)
        self.energy = self.energy + power * job.tick_s * 1000
        temp = self.temp - 25 * (1 - watts / usual.watts)
        moved = noisy(usual.nvlink * rate / 2 if job.gpus > 1 else zero + np.nan, 0.01)
        work = busy / usual.compute
        counters = (
            "ecc",
            "rema",
            "pcie_replays",
            "nvlink_errors",
            "nvlink_recoveries",
            "recovery",
            "throttle",
        )
        quiet = [name for name in GPU_COLUMNS if name.startswith(counters)]
        return (
            dict.fromkeys(GPU_COLUMNS, zero + np.nan)
            | dict.fromkeys(quiet, zero)
            | {
                "util_pct": np.where(working, np.clip(util, 0, 100), 0).round(),
                "mem_util_pct": np.clip(noisy(usual.mem * work, 0.03) + 1.5 * spins, 0, 100).round(),
                "mem_used_mib": np.where(state.alive, 61_000.0, 500.0),
                "power_w": power,
                "temp_c": temp.round(),
                "temp_margin_c": (87 - temp).round(),
                "sm_clock_mhz": np.minimum(1980, noisy(1900 * state.clock, 0.004)).round(),
                "pcie_tx_mb_s": noisy(np.where(working, 150 + 350 * rate, 0), 0.1),
                "pcie_rx_mb_s": noisy(np.where(working, 250 + 700 * rate, 0), 0.1),
                "nvlink_tx_mb_s": moved,
                "nvlink_rx_mb_s": moved,
                "energy_mj": self.energy.round(),
                # Big matrix products run at the power limit: a cap that all have alike is normal.
                "clock_reasons": 4.0 * (busy * self.capped / 30 > rng.uniform(0, 1, job.count)),
                "throttle_power_pct": noisy(self.capped * busy, 0.1),
                "sm_active_pct": noisy(82 * busy + 14 * spins, 0.02),
                "tensor_active_pct": noisy(usual.tensor * work, 0.02),
                "dram_active_pct": noisy(0.9 * usual.mem * work, 0.02),
                "power_limit_now_w": zero + 700,
                "app_sm_clock_mhz": zero + 1980,
                "pcie_gen": zero + 5,
                "pcie_width": zero + 16,
                "fabric_state": zero + 3,
            }
        )

    def _hosts(self, alive: npt.NDArray[np.bool_], sent: Floats) -> dict[str, Floats]:
        ranks = alive.reshape(self.job.nodes, self.job.gpus).sum(axis=1)
        wobble = self.rng.normal(1.0, 0.05, self.job.nodes)
        quiet = ("swap_used_mib", "psi_memory_pct", "job_psi_memory_pct", "job_oom_kills")
        return dict.fromkeys(quiet, 0 * wobble) | {
            "cpu_pct": (1.5 + 2.2 * ranks) * wobble,
            "cpu_iowait_pct": 0.2 * wobble,
            "cpu_busiest_pct": np.where(ranks > 0, 100.0, 9.0),
            "load_1m": (0.8 + 2.5 * ranks) * wobble,
            "memory_used_mib": 45_000 + 12_000.0 * ranks,
            "job_memory_mib": 12_000.0 * ranks,
            "job_memory_limit_mib": 0 * wobble + LIMIT_MIB,
            "disk_read_mb_s": 3 * wobble,
            "disk_write_mb_s": 1.5 * wobble,
            "net_rx_mb_s": np.where(ranks > 0, 60, 0.1) * wobble,
            "net_tx_mb_s": np.where(ranks > 0, 6, 0.1) * wobble,
            "ib_rx_mb_s": sent * wobble**0.2 if self.job.nodes > 1 else 0 * wobble,
            "ib_tx_mb_s": sent * wobble**0.2 if self.job.nodes > 1 else 0 * wobble,
            **dict.fromkeys(("psi_cpu_pct", "psi_io_pct", "job_psi_cpu_pct", "job_psi_io_pct"), 0.4 * wobble),
        }

    def _processes(self, state: State) -> dict[str, tuple[ProcessSample, ...]]:
        job, cores = self.job, CPUS // self.job.gpus
        found: dict[str, list[ProcessSample]] = {name: [] for name in job.names}
        for at in np.flatnonzero(state.alive).tolist():
            node, gpu = divmod(at, job.gpus)
            row: dict[str, float | str] = dict.fromkeys(PROCESS_COLUMNS, 0)
            row |= {
                "gpu_memory_mib": 60_500,
                "sm_pct": 95,
                "cpu_pct": 103,
                "memory_mib": 9_000,
                "threads": 60,
            }
            row |= {
                "read_calls_mb_s": 7,
                "voluntary_switches_s": 120,
                "involuntary_switches_s": 2,
                "gpu": gpu,
            }
            row |= {"world_size": job.count, "numa_node": gpu * 2 // job.gpus, "age_s": round(state.age)}
            row |= {"cpus": f"{gpu * cores}-{gpu * cores + cores - 1}", "state": "R", "wchan": "0"}
            row |= state.of_ranks.get(at, {})
            values = tuple(float(row[name]) for name in PROCESS_COLUMNS)
            texts = (str(row[name]) for name in ("cpus", "state", "wchan"))
            named = int(row["gpu"]), pid_of(state, at), USER, "python", at, gpu
            found[job.names[node]].append(ProcessSample(*named, values, *texts))
        for node, process in state.processes:
            found[job.names[node]].append(process)
        return {name: tuple(listed) for name, listed in found.items()}

    def _ports(self, state: State, sent: Floats) -> dict[str, list[NamedRow]]:
        usual = dict.fromkeys(PORT_COLUMNS, 0.0) | {"state": 4, "phys_state": 5, "rate_gbit_s": 400}
        # Healthy fabrics make senders wait, too.
        usual["port_xmit_wait"] = round(1e6 * state.age)
        found: dict[str, list[NamedRow]] = {name: [] for name in self.job.names}
        for node, name in enumerate(self.job.names):
            share = sent[node] / max(1, len(self.job.ports))
            for port in self.job.ports:
                row = usual | {"rx_mb_s": share, "tx_mb_s": share} | state.ports.get((node, port), {})
                found[name].append((port, tuple(row[column] for column in PORT_COLUMNS)))
        return found

    def _mounts(self, state: State) -> dict[str, list[NamedRow]]:
        usual: dict[str, dict[str, float]] = {
            "/scratch/ada": {"free_mib": 4e8, "total_mib": 9e8, "read_ms": 1.5, "write_ms": 2.0},
            "/tmp": {"free_mib": 700_000, "total_mib": 900_000, "free_inodes": 5e7},
            "/dev/shm": {"free_mib": 480_000, "total_mib": 500_000, "free_inodes": 1e8},
        }
        return {
            name: [
                (mount, tuple((row | state.mounts.get((node, mount), {})).get(one) for one in MOUNT_COLUMNS))
                for mount, row in usual.items()
            ]
            for node, name in enumerate(self.job.names)
        }


def pid_of(state: State, at: int) -> int:
    """Return the process id of the rank on a GPU."""
    return 4000 + 10_000 * state.incarnation + at
