"""What the agents of a fleet would measure of one training job, tick by tick.

A job works in lock-step: each step takes as long as its slowest rank. Faults change the causes (clocks,
waiting for input, links, processes), and ``_measure`` derives the metrics from them. A rank that waits for
others spins in NCCL's kernels: NVML says util 100 %, but power, memory and tensor activity are low.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from gswarm_agent.frame import GpuFacts, GpuLink, Hello, HostFacts, NamedRow, Note, ProcessSample
from gswarm_agent.metrics import GPU_COLUMNS, HOST_COLUMNS, MOUNT_COLUMNS, PORT_COLUMNS, PROCESS_COLUMNS

Floats = npt.NDArray[np.float64]
T0 = 1_800_000_000.0
USER = "ada"
GPU_MIB, HOST_MIB, CPUS = 81_559, 1_031_000, 96
IDLE_W, SPIN_W = 75.0, 240.0


@dataclass(frozen=True)
class Kind:
    """What a kind of job does in its healthy state.

    ``compute`` is the share of a step in which a rank computes, the rest is communication. Rates are MB/s of
    each GPU over NVLink, and of each node over InfiniBand.
    """

    compute: float
    mem: float
    watts: float
    tensor: float
    nvlink: float
    ib: float


KINDS = {
    "ddp": Kind(0.85, 48, 640, 38, 55_000, 18_000),
    "fsdp": Kind(0.65, 40, 560, 30, 120_000, 38_000),
    "pipeline": Kind(0.75, 42, 570, 33, 30_000, 6_000),
    "moe": Kind(0.7, 44, 560, 27, 90_000, 30_000),
    "packed": Kind(0.8, 46, 610, 36, 60_000, 19_000),
    "inference": Kind(0.9, 55, 450, 12, 20_000, 0),
}


@dataclass(frozen=True)
class Fault:
    """Something that happens to a job at ``start`` (seconds after the recording's): ``act`` is called each
    tick from then on with the state and this fault. ``kind`` is the finding expected, "" if none is.
    """

    act: Callable[[State, Fault], None]
    start: float
    kind: str = ""
    node: int = 0
    gpu: int = 0
    strength: float = 0.2
    names_node: bool = True
    names_gpu: bool = True
    lasts: float = math.inf

    def at(self, job: Job) -> int:
        """Return the column of its GPU."""
        return self.node * job.gpus + self.gpu


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
    def names(self) -> list[str]:
        """The nodes' names."""
        return [f"gpu{at + 1:02d}" for at in range(self.nodes)]

    def with_faults(self, *faults: Fault) -> Job:
        """Return the same job with these faults."""
        return replace(self, faults=(*self.faults, *faults))

    def hellos(self) -> dict[str, Hello]:
        """Return how the agents introduce the nodes."""
        return {
            name: Hello(
                agent_version="0.1.0",
                life=f"life-{name}",
                interval_ms=round(1000 * self.tick_s),
                simulated=False,
                host=HostFacts(
                    *(name, f"boot-{name}", "5.14.0", "Xeon", CPUS, HOST_MIB), driver_version="570.86.15"
                ),
                gpus=tuple(
                    GpuFacts(
                        *(at, f"GPU-{name}-{at}", "NVIDIA H100 80GB HBM3", f"0000:{at + 1:02x}:00.0", at),
                        *(GPU_MIB, 700.0, 1980, 2619),
                        numa_node=at * 2 // self.gpus,
                    )
                    for at in range(self.gpus)
                ),
                capabilities={},
                gpu_columns=GPU_COLUMNS,
                host_columns=HOST_COLUMNS,
                process_columns=PROCESS_COLUMNS,
                links=tuple(
                    link
                    for at in range(self.gpus)
                    for link in (
                        GpuLink(at, "host", "PCIe", 16, "5", 63.0),
                        *((GpuLink(at, "NVSwitch", "NV18", 18, "4", 450.0),) if self.gpus > 1 else ()),
                    )
                ),
            )
            for name in self.names
        }


@dataclass
class Tick:
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

    Arrays have one value for each GPU: ``clock`` and ``silicon`` are speeds (1 is usual), ``load`` the work
    of a step, ``input_s`` the time for which a step waits for data, as a share of a usual step, ``spins``
    the share of that time in which a kernel runs, ``alive`` whether it has a rank. ``links`` is the
    speed of communication. ``pins`` replace measured values; see ``gpu`` and ``host``. ``silent`` nodes send
    nothing, ``lost`` GPUs don't answer.
    """

    job: Job
    age: float
    rng: np.random.Generator
    clock: Floats
    silicon: Floats
    load: Floats
    input_s: Floats
    alive: npt.NDArray[np.bool_]
    links: float = 1.0
    hung: bool = False
    paused: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    incarnation: int = 0
    pins: dict[str, Floats] = field(default_factory=dict)
    processes: list[tuple[int, ProcessSample]] = field(default_factory=list)
    ranks: dict[int, dict[str, float | str | None]] = field(default_factory=dict)
    ports: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    mounts: dict[tuple[int, str], dict[str, float]] = field(default_factory=dict)
    notes: list[tuple[int, Note]] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    def gpu(self, column: str) -> Floats:
        """Return the replaced values of a GPU column, to be set."""
        return self.pins.setdefault(column, np.full(self.job.nodes * self.job.gpus, np.nan))

    def host(self, column: str) -> Floats:
        """Return the replaced values of a host column, to be set."""
        return self.pins.setdefault(f"host.{column}", np.full(self.job.nodes, np.nan))

    def rank(self, at: int, **values: float | str | None) -> None:
        """Replace fields and columns of the process of a rank."""
        self.ranks.setdefault(at, {}).update(values)


def ticks(job: Job) -> Iterator[Tick]:
    """Return what is measured of a job, tick by tick."""
    return _Run(job).ticks()


class _Run:
    """One run of a job: what its GPUs are like, and how far it has come."""

    def __init__(self, job: Job) -> None:
        self.job, self.rng = job, np.random.default_rng(job.seed)
        self.count = job.nodes * job.gpus
        self.usual = KINDS[job.kind]
        # Equal GPUs differ: clocks and power under one power limit by 1 to 2 %.
        self.own_clock = self.rng.normal(1.0, 0.008, self.count)
        self.own_watts = self.rng.normal(1.0, 0.02, self.count)
        self.own_temp = self.rng.normal(58, 4, self.count)
        self.capped = self.rng.uniform(5, 30)
        self.position = 0.0
        self.packed = self.rng.uniform(0, 6.28)
        self.told: set[int] = set()
        self.energy = np.full(self.count, 1e9)
        if job.kind == "pipeline":
            stage = np.arange(self.count) * job.stages // self.count
            self.stage_load = np.linspace(1.0, 0.8, job.stages)[stage]
        else:
            self.stage_load = np.ones(self.count)

    def ticks(self) -> Iterator[Tick]:
        age = 0.0
        while age + self.job.tick_s <= self.job.seconds + 1e-6:
            age += self.job.tick_s
            yield self._measure(self._state(age))

    def _state(self, age: float) -> State:
        job, count = self.job, self.count
        state = State(
            *(job, age, self.rng, self.own_clock.copy(), np.ones(count), self.stage_load.copy()),
            *(np.zeros(count), np.full(count, age < job.ends_at)),
            paused=np.zeros(count, dtype=bool),
        )
        if job.kind == "moe":
            state.load = state.load * np.maximum(
                0.6, self.rng.normal(1.0, 0.25 / math.sqrt(job.tick_s), count)
            )
        if job.kind == "packed":
            # The mean over 60 s varies by up to 19 %, that over 240 s by 4 %.
            state.load = state.load * (
                1 + 0.13 * math.sin(age / 13.0 + self.packed) + self.rng.normal(0, 0.05)
            )
        if job.kind == "inference":
            state.load = state.load * self.rng.uniform(0.6, 1.0, count)
        self._plan(state)
        for fault in job.faults:
            if fault.start <= age < fault.start + fault.lasts:
                fault.act(state, fault)
        return state

    def _plan(self, state: State) -> None:
        """Compile at first, then write checkpoints."""
        job, age = self.job, state.age
        since = (age - job.compile_s) % job.checkpoint_every if age > job.compile_s else math.inf
        writes = since < job.checkpoint_s and age > job.checkpoint_every
        if age <= job.compile_s:
            pause(state, cpu=100.0)
        elif writes:
            if not job.asynchronous:
                pause(state, cpu=60.0)
            state.host("disk_write_mb_s")[:] = 1800 if not job.asynchronous else 700
            state.host("psi_io_pct")[:] = 8
            for at in range(self.count):
                state.rank(at, write_calls_mb_s=1800 / job.gpus, write_mb_s=1800 / job.gpus)

    def _measure(self, state: State) -> Tick:
        """Derive the metrics."""
        job, usual, alive = self.job, self.usual, state.alive
        working = alive & ~state.paused
        compute = usual.compute * state.load / (state.clock * state.silicon)
        communicates = (1 - usual.compute) / max(1e-6, state.links)
        needs = compute + state.input_s
        slowest = float(np.max(needs[working], initial=1e-6))
        takes = (
            needs + communicates if job.kind == "inference" else np.full(self.count, slowest + communicates)
        )
        if state.hung or not working.any():
            busy, waits_input, rate = np.zeros(self.count), np.zeros(self.count), np.zeros(self.count)
        else:
            busy, waits_input = compute / takes, state.input_s / takes
            if job.kind == "inference":
                busy, waits_input = busy * state.load, 1 - state.load
            part = self._burst(float(communicates / takes.mean()), float(takes[working].mean()))
            rate = part / takes
            busy = np.clip(busy * (1 - part * communicates / takes) / (1 - communicates / takes), 0, 1)
        busy, waits_input = np.where(working, busy, 0), np.where(working, waits_input, 0)
        rate = np.where(working, rate, 0)
        spins = np.where(working, np.clip(1 - busy - waits_input, 0, 1), 0)
        noise = self._noise
        steady = 1 - waits_input
        util = np.where(
            working,
            job.spinning * spins / np.maximum(1e-9, busy + spins) * steady
            + 99.5 * busy / np.maximum(1e-9, busy + spins) * steady,
            0,
        )
        blips = np.abs(self.rng.normal(0, 1.2 * job.noise, self.count)) * np.sqrt(1 / job.tick_s)
        relative = state.clock
        watts = (
            np.where(alive, IDLE_W + 35, IDLE_W)
            + busy * (usual.watts - 110) * relative**1.5
            + spins * (SPIN_W - 110)
        )
        moved = usual.nvlink * rate if job.gpus > 1 else np.full(self.count, np.nan)
        power = watts * self.own_watts * noise(0.025)
        held = 9_000 + 52_000 * (self.stage_load if job.kind == "pipeline" else 1)
        ones = np.ones(self.count)
        gpus = {
            "util_pct": np.clip(np.where(working, util - blips, 0), 0, 100).round(),
            "mem_util_pct": np.clip(
                usual.mem * busy / usual.compute * noise(0.03) + 1.5 * spins, 0, 100
            ).round(),
            "mem_used_mib": np.where(alive, held, 500.0) + 0 * ones,
            "power_w": power,
            "power_instant_w": power * noise(0.04),
            "temp_c": (self.own_temp - 25 * (1 - watts / usual.watts)).round(),
            "mem_temp_c": (self.own_temp + 8).round(),
            "sm_clock_mhz": np.minimum(1980, 1900 * state.clock * noise(0.004)).round(),
            "mem_clock_mhz": 2619 * ones,
            "pcie_tx_mb_s": np.where(working, 150 + 350 * rate, 0) * noise(0.1),
            "pcie_rx_mb_s": np.where(working, 250 + 700 * rate, 0) * noise(0.1),
            "nvlink_tx_mb_s": moved / 2 * noise(0.01),
            "nvlink_rx_mb_s": moved / 2 * noise(0.01),
            "energy_mj": self._energy(power),
            # Big matrix products run at the power limit: a cap that all have alike is normal.
            "clock_reasons": np.where(busy * self.capped / 30 > self.rng.uniform(0, 1, self.count), 4, 0)
            + 0 * ones,
            "throttle_power_pct": self.capped * busy * noise(0.1),
            "throttle_thermal_pct": 0 * ones,
            "throttle_brake_pct": 0 * ones,
            "sm_active_pct": (82 * busy + 14 * spins) * noise(0.02),
            "sm_occupancy_pct": (30 * busy + 4 * spins) * noise(0.02),
            "tensor_active_pct": usual.tensor * busy / usual.compute * noise(0.02),
            "dram_active_pct": 0.9 * usual.mem * busy / usual.compute * noise(0.02),
            "ecc_corrected": 0 * ones,
            "ecc_uncorrected": 0 * ones,
            "pstate": 0 * ones,
            "power_limit_now_w": 700 * ones,
            "temp_margin_c": (87 - self.own_temp + 25 * (1 - watts / usual.watts)).round(),
            "app_sm_clock_mhz": 1980 * ones,
            "app_mem_clock_mhz": 2619 * ones,
            "pcie_gen": 5 * ones,
            "pcie_width": 16 * ones,
            **dict.fromkeys(("pcie_replays", "remapped_correctable", "remapped_uncorrectable"), 0 * ones),
            **dict.fromkeys(("remap_pending", "remap_failed", "recovery_action"), 0 * ones),
            **dict.fromkeys(("nvlink_errors", "nvlink_recoveries"), 0 * ones),
            "fabric_state": 3 * ones,
        }
        sent = (
            usual.ib * rate.reshape(job.nodes, job.gpus).mean(axis=1)
            if job.nodes > 1
            else np.zeros(job.nodes)
        )
        hosts = self._hosts(state, sent)
        for values, prefix in ((gpus, ""), (hosts, "host.")):
            for name in values:
                if (pin := state.pins.get(prefix + name)) is not None:
                    values[name] = np.where(np.isnan(pin), values[name], pin)
        gone = np.zeros((job.nodes, job.gpus), dtype=bool)
        gone[list(state.silent)] = True
        gone_gpus = gone.ravel()
        gone_gpus[list(state.lost)] = True
        for values, unknown in (
            (gpus, gone_gpus),
            (hosts, np.isin(np.arange(job.nodes), list(state.silent))),
        ):
            for name in values:
                values[name] = np.where(unknown | (name in job.missing), np.nan, values[name])
        return Tick(
            state.age,
            gpus,
            hosts,
            None if "processes" in job.missing else self._processes(state, working),
            {} if "ports" in job.missing else self._ports(state, hosts["ib_rx_mb_s"]),
            {} if "mounts" in job.missing else self._mounts(state),
            self._notes(state),
        )

    def _burst(self, share: float, takes: float) -> float:
        """Return how much of a tick is communication against the usual."""
        job = self.job
        before, self.position = self.position, self.position + job.tick_s / (job.step_s * takes)
        if job.step_s <= job.tick_s:
            return 1.0
        places = np.linspace(before, self.position, 16, endpoint=False) % 1
        return float(np.mean(places > 1 - share)) / share

    def _noise(self, of: float) -> Floats:
        return self.rng.normal(1.0, of * self.job.noise / math.sqrt(self.job.tick_s), self.count)

    def _energy(self, watts: Floats) -> Floats:
        self.energy = self.energy + watts * self.job.tick_s * 1000
        return self.energy.round()

    def _hosts(self, state: State, sent: Floats) -> dict[str, Floats]:
        job, ones = self.job, np.ones(self.job.nodes)
        ranks = state.alive.reshape(job.nodes, job.gpus).sum(axis=1)
        wobble = self.rng.normal(1.0, 0.05, job.nodes)
        return {
            "cpu_pct": (1.5 + 2.2 * ranks) * wobble,
            "cpu_user_pct": (1.0 + 1.9 * ranks) * wobble,
            "cpu_system_pct": 0.5 * ones,
            "cpu_iowait_pct": 0.2 * ones,
            "cpu_busiest_pct": np.where(ranks > 0, 100, 9) * ones,
            "load_1m": (0.8 + 2.5 * ranks) * wobble,
            "memory_used_mib": 45_000 + 12_000.0 * ranks,
            "swap_used_mib": 0 * ones,
            "disk_read_mb_s": np.abs(3 * wobble),
            "disk_write_mb_s": np.abs(1.5 * wobble),
            "net_rx_mb_s": np.where(ranks > 0, 60, 0.1) * wobble,
            "net_tx_mb_s": np.where(ranks > 0, 6, 0.1) * wobble,
            "ib_rx_mb_s": sent * wobble**0.2,
            "ib_tx_mb_s": sent * wobble**0.2,
            "psi_cpu_pct": np.abs(0.4 * wobble),
            "psi_memory_pct": 0 * ones,
            "psi_io_pct": np.abs(0.5 * wobble),
            "job_memory_mib": 12_000.0 * ranks,
            "job_memory_limit_mib": 900_000 * ones,
            "job_oom_kills": 0 * ones,
            "job_psi_cpu_pct": np.abs(0.3 * wobble),
            "job_psi_memory_pct": 0 * ones,
            "job_psi_io_pct": np.abs(0.4 * wobble),
        }

    def _processes(
        self, state: State, working: npt.NDArray[np.bool_]
    ) -> dict[str, tuple[ProcessSample, ...]]:
        job = self.job
        found: dict[str, list[ProcessSample]] = {name: [] for name in job.names}
        per = CPUS // job.gpus
        for at in range(self.count):
            node, gpu = divmod(at, job.gpus)
            if not state.alive[at] or node in state.silent:
                continue
            row: dict[str, float | str | None] = {
                "gpu_memory_mib": 60_500,
                "sm_pct": 95 if working[at] else 0,
                "cpu_pct": 103,
                "memory_mib": 9_000,
                **dict.fromkeys(("read_mb_s", "write_mb_s", "write_calls_mb_s"), 0),
                "read_calls_mb_s": 7,
                "voluntary_switches_s": 120,
                "involuntary_switches_s": 2,
                "world_size": self.count,
                "threads": 60,
                "numa_node": gpu * 2 // job.gpus,
                "age_s": round(state.age),
                "cpus": f"{gpu * per}-{gpu * per + per - 1}",
                "state": "R",
                "wchan": None,
                "gpu": gpu,
            }
            row.update(state.ranks.get(at, {}))
            found[job.names[node]].append(
                ProcessSample(
                    *(
                        int(row["gpu"] or 0),
                        4000 + 10_000 * state.incarnation + 100 * node + gpu,
                        USER,
                        "python",
                    ),
                    *(at, gpu),
                    tuple(_number(row[name]) for name in PROCESS_COLUMNS),
                    *(_text(row[name]) for name in ("cpus", "state", "wchan")),
                )
            )
        for node, process in state.processes:
            found[job.names[node]].append(process)
        return {name: tuple(listed) for name, listed in found.items()}

    def _ports(self, state: State, sent: Floats) -> dict[str, list[NamedRow]]:
        zeros = dict.fromkeys(PORT_COLUMNS, 0.0)
        found: dict[str, list[NamedRow]] = {}
        for node, name in enumerate(self.job.names):
            rows: list[NamedRow] = []
            count = ports_of(self.job)
            for port in (f"mlx5_{at}/1" for at in range(count)):
                share = float(np.nan_to_num(sent[node])) / count
                row = zeros | {"state": 4, "phys_state": 5, "rate_gbit_s": 400, "numa_node": 0}
                row |= {"rx_mb_s": share, "tx_mb_s": share, "port_xmit_wait": 1e6 * state.age}
                row |= state.ports.get((node, port), {})
                rows.append((port, tuple(row[column] for column in PORT_COLUMNS)))
            found[name] = rows
        return found

    def _mounts(self, state: State) -> dict[str, list[NamedRow]]:
        usual: Mapping[str, dict[str, float]] = {
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

    def _notes(self, state: State) -> dict[str, list[Note]]:
        """Return the notes of faults, each once: they are put at each tick after the start."""
        found: dict[str, list[Note]] = {}
        for node, note in state.notes:
            if hash((node, note)) not in self.told:
                self.told.add(hash((node, note)))
                found.setdefault(self.job.names[node], []).append(note)
        return found


def ports_of(job: Job) -> int:
    """Return how many InfiniBand ports a node has."""
    return min(4, job.gpus) if job.nodes > 1 else 0


def pause(state: State, cpu: float = 100.0, which: npt.NDArray[np.bool_] | None = None) -> None:
    """Let GPUs do nothing while their processes work on CPUs."""
    chosen = np.ones(len(state.paused), dtype=bool) if which is None else which
    state.paused |= chosen
    for at in np.flatnonzero(chosen & state.alive).tolist():
        state.rank(at, cpu_pct=cpu * 1.2, sm_pct=0)


def _number(value: float | str | None) -> float | None:
    return value if isinstance(value, float | int) else None


def _text(value: float | str | None) -> str | None:
    return value if isinstance(value, str) else None
