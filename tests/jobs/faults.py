"""What can happen to a modelled job: each is a function that changes the state of one tick."""

from __future__ import annotations

import json

import numpy as np

from gswarm_agent.frame import ERROR, INFO, WARNING, Note, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_agent.probes.gpus.nvidia_xid_catalogue import describe
from tests.jobs.model import CPUS, GPU_MIB, HOST_MIB, LIMIT_MIB, USER, Act, Fault, State, Value, pid_of

NCCL_TIMEOUT_S = 600.0
"""PyTorch ends all ranks when a collective has waited for so long."""
ALL = slice(None)


def at(state: State, fault: Fault) -> int:
    """Return the column of the fault's GPU."""
    return fault.node * state.job.gpus + fault.gpu


def here(state: State, fault: Fault) -> slice:
    """Return the columns of the fault's node."""
    return slice(fault.node * state.job.gpus, (fault.node + 1) * state.job.gpus)


# One GPU or node is slower


def marks_steps(state: State, fault: Fault) -> None:
    """Send a mark of each rank's steps every 30 s; one rank computes longer after ten minutes."""
    if state.age % 30 >= state.job.tick_s:
        return
    slow = at(state, fault)
    for rank in range(state.job.count):
        longer = 1 / (1 - fault.strength) if rank == slow and state.age > 600 else 1.0
        seconds, compute = 2.0 + (state.age > 600) * fault.strength, 1.1 * longer * (1 + rank % 3 / 50)
        values = {
            "step": round(state.age / 2),
            "steps": 15,
            "seconds": seconds,
            "compute": compute,
            "rank": rank,
        }
        note = Note("step", INFO, "step time", None, None, json.dumps(values))
        state.notes.append((rank // state.job.gpus, note))


def scheduler_busy(state: State, fault: Fault) -> None:
    """All workers of Dask wait for tasks most of the time, which the scheduler's marks say."""
    state.input_s += 3.0
    if state.age % 30 < state.job.tick_s:
        names, values = ("tasks", "work_s", "idle_pct"), (90_000, max(1, state.age - fault.start), 71.5)
        detail = json.dumps({f"dask_{name}": value for name, value in zip(names, values, strict=True)})
        state.notes.append((0, Note("mark", INFO, "dask tasks", None, None, detail)))


def slows(what: str = "clock", *, node: bool = False, **columns: Value) -> Act:
    """Return a fault that lowers the speed of a GPU, or of all of a node, and that shows in columns."""

    def act(state: State, fault: Fault) -> None:
        where = here(state, fault) if node else at(state, fault)
        getattr(state, what)[where] *= 1 - fault.strength
        state.gpus(where, **columns)

    return act


power_cap = slows(throttle_power_pct=(85, 99), clock_reasons=0x4, power_limit_now_w=520)
"""The power limit of one GPU is set lower."""
brake = slows(node=True, throttle_brake_pct=(60, 100), clock_reasons=0x88)
"""The power supply of a node asserts the brake of all its GPUs."""
locked = slows(clock_reasons=0x2)
"""Somebody locked the clocks of a GPU."""
slow_silicon = slows("silicon")
"""A GPU needs longer for the same work at the same clock."""
narrow_pcie = slows("silicon", pcie_width=4)
"""A GPU's PCIe link has fewer lanes: its copies take longer."""


def heat(state: State, fault: Fault) -> None:
    """A GPU gets hot within a minute, and then lowers its clock."""
    warm = min(1.0, (state.age - fault.start) / 40)
    state.gpus(at(state, fault), temp_c=round(70 + 19 * warm), temp_margin_c=round(17 - 17 * warm))
    if warm >= 1:
        slows(throttle_thermal_pct=(55, 85), clock_reasons=0x20)(state, fault)


def hot_at_no_cost(state: State, fault: Fault) -> None:
    """A GPU is hot and throttles now and then, by 1 %."""
    reasons = 0x20 if state.rng.uniform() < 0.15 else 0
    state.gpus(at(state, fault), temp_c=86, temp_margin_c=1, throttle_thermal_pct=15, clock_reasons=reasons)
    state.clock[at(state, fault)] *= 0.99


def capped_alike(state: State, fault: Fault) -> None:
    """The site caps the power of all GPUs."""
    state.clock *= 1 - fault.strength
    state.gpus(ALL, throttle_power_pct=(80, 99), clock_reasons=0x4, power_limit_now_w=500)


# A rank dies


def killed_rank(state: State, fault: Fault) -> None:
    """The process of a rank ends; the others wait for it until NCCL gives up."""
    state.alive[at(state, fault)] = False
    state.hung = True
    if state.age - fault.start > NCCL_TIMEOUT_S:
        state.alive[:] = False


def _note(state: State, fault: Fault, kind: str, severity: str, text: str, detail: str | None = None) -> None:
    state.notes.append((fault.node, Note(kind, severity, text, fault.gpu, None, detail)))


def _xid(state: State, fault: Fault, number: int) -> None:
    text, words = describe(number)
    _note(state, fault, "xid", ERROR, text, json.dumps(words))


def dies_with(xid: int) -> Act:
    """Return the fault in which a rank dies with an XID."""

    def act(state: State, fault: Fault) -> None:
        _xid(state, fault, xid)
        if xid == 79:
            state.lost.add(at(state, fault))
            _note(state, fault, "gpu_lost", ERROR, "doesn't answer: GPU is lost")
        if xid in (48, 94, 95):
            state.gpus(at(state, fault), ecc_uncorrected=2)
        killed_rank(state, fault)

    return act


def hang(state: State, fault: Fault) -> None:
    """A collective never ends: all ranks spin."""
    state.hung = True


def restart(state: State, fault: Fault) -> None:
    """All ranks end, and start again after 40 s; they load for two minutes."""
    state.incarnation += 1
    if state.age - fault.start < 40:
        state.alive[:] = False
    elif state.age - fault.start < 160:
        state.pause()


def rank_restarts(state: State, fault: Fault) -> None:
    """An elastic job replaces one rank."""
    state.alive[at(state, fault)] = False
    state.hung = True


# Links


def nvlink_down(state: State, fault: Fault) -> None:
    """Some NVLinks of a GPU go down: communication goes on more slowly."""
    _xid(state, fault, 74)
    _note(state, fault, "nvlink_degraded", WARNING, "16 of 18 NVLinks are up")
    state.gpus(at(state, fault), nvlink_errors=40 + round(state.age - fault.start))
    state.links *= 1 - fault.strength / 2


def replays(state: State, fault: Fault) -> None:
    """A PCIe link repeats packets: four a minute and lane."""
    state.gpus(at(state, fault), pcie_replays=round(16 * 4 / 60 * (state.age - fault.start)))


def port(per_s: float = 0, **columns: float) -> Act:
    """Return a fault of one InfiniBand port: columns have these values, or grow by so much a second."""

    def act(state: State, fault: Fault) -> None:
        grows = round(per_s * (state.age - fault.start)) if per_s else 1
        name = state.job.ports[fault.gpu % len(state.job.ports)]
        state.ports[fault.node, name] = {column: value * grows for column, value in columns.items()}
        state.links *= 1 - fault.strength
        state.hung = state.hung or (columns.get("state") == 1 and fault.strength > 0.25)

    return act


port_down = port(state=1, phys_state=3, rx_mb_s=0, tx_mb_s=0, link_downed=1)
"""A port goes down; NCCL goes on with the others, or not at all."""
port_errors = port(30, symbol_error=1, port_rcv_errors=1, new_errors=2)
"""A bad cable: error counters grow."""
port_unused = port(rx_mb_s=90, tx_mb_s=90)
"""A port carries hardly anything, while its siblings are busy."""
port_slow = port(rate_gbit_s=200)
"""A port comes up with half of its rate."""


def congested(state: State, fault: Fault) -> None:
    """Other jobs use the fabric: communication is slower for all."""
    state.links /= 1 + 10 * fault.strength


def sockets(state: State, fault: Fault) -> None:
    """NCCL uses TCP sockets although there is InfiniBand."""
    state.links *= 0.25
    state.hosts(ALL, ib_rx_mb_s=0, ib_tx_mb_s=0, net_rx_mb_s=(1900, 2300), net_tx_mb_s=(1900, 2300))


def nvlink_unused(state: State, fault: Fault) -> None:
    """NCCL uses PCIe although there are NVLinks."""
    state.links *= 0.4
    state.gpus(ALL, nvlink_tx_mb_s=0, nvlink_rx_mb_s=0, pcie_tx_mb_s=(9e3, 12e3), pcie_rx_mb_s=(9e3, 12e3))


# Input, storage and memory


def starves(by: float, ranks: dict[str, float | str], **hosts: Value) -> Act:
    """Return a fault that lets the GPUs of a node wait for their CPUs, and that shows in columns."""

    def act(state: State, fault: Fault) -> None:
        state.input_s[here(state, fault)] += by * fault.strength * state.rng.normal(1, 0.05, state.job.gpus)
        state.rank(here(state, fault), **ranks)
        state.hosts(fault.node, **hosts)

    return act


input_one = starves(1.6, {"cpu_pct": 180, "state": "D"}, psi_io_pct=(18, 35), cpu_iowait_pct=(6, 12))
"""The ranks of one node wait for their data."""
few_cores = starves(
    1.6, {"cpus": "0-1", "involuntary_switches_s": 900, "cpu_pct": 25}, psi_cpu_pct=65, job_psi_cpu_pct=65
)
"""All ranks of a node may use the same two cores."""
other_users = starves(
    1.0, {"cpu_pct": 55, "involuntary_switches_s": 700}, cpu_pct=(90, 99), load_1m=190, psi_cpu_pct=(35, 60)
)
"""Somebody else's programs use the CPUs of a node."""


def input_all(state: State, fault: Fault) -> None:
    """All ranks wait for data that their CPUs prepare: util is under 50 %."""
    state.input_s += state.rng.uniform(1.3, 1.7, state.job.count) * max(1.0, 4 * fault.strength)
    state.rank(ALL, cpu_pct=780)
    state.hosts(ALL, cpu_pct=(75, 90), psi_cpu_pct=12)


def storage(state: State, fault: Fault) -> None:
    """The file system doesn't answer: all ranks are blocked in reads."""
    state.pause()
    state.rank(ALL, state="D", wchan="nfs_wait_bit_killable", cpu_pct=2)
    state.hosts(ALL, psi_io_pct=(55, 90), job_psi_io_pct=(55, 90), cpu_busiest_pct=10)
    for node in range(state.job.nodes):
        state.mounts[node, "/scratch/ada"] = {"read_ms": 4000, "write_ms": 6000}


def disk_fills(state: State, fault: Fault) -> None:
    """/tmp of one node fills within four minutes."""
    free = max(0, round(60_000 * (1 - (state.age - fault.start) / 240)))
    state.mounts[fault.node, "/tmp"] = {"free_mib": free}


def _grown(state: State, fault: Fault, space: float) -> float:
    """Return how much of the space is used up, which ends after 15 to 20 minutes."""
    return min(0.995, (state.age - fault.start) / (900 + 300 * fault.strength)) * space


def gpu_memory(state: State, fault: Fault) -> None:
    """A rank's GPU memory grows until it is full."""
    grown = _grown(state, fault, GPU_MIB - 61_000)
    state.gpus(at(state, fault), mem_used_mib=61_000 + grown)
    state.rank(at(state, fault), gpu_memory_mib=round(60_500 + grown))


def host_memory(state: State, fault: Fault) -> None:
    """The job's memory on one node grows towards its limit."""
    usual = 12_000 * state.job.gpus
    used = usual + _grown(state, fault, LIMIT_MIB - usual)
    state.hosts(fault.node, job_memory_mib=used, memory_used_mib=45_000 + used)


def swap(state: State, fault: Fault) -> None:
    """One node swaps, and its ranks are slowed."""
    state.hosts(fault.node, swap_used_mib=200 * (state.age - fault.start), memory_used_mib=HOST_MIB - 9_000)
    starves(1.0, {}, psi_memory_pct=(20, 45), job_psi_memory_pct=(20, 45))(state, fault)


# Placement and use


def wrong_numa(state: State, fault: Fault) -> None:
    """The ranks of a node run on the CPUs of the other socket."""
    for gpu in range(state.job.gpus):
        numa = 1 - gpu * 2 // state.job.gpus
        cpus = f"{numa * CPUS // 2}-{numa * CPUS // 2 + CPUS // 2 - 1}"
        state.rank(here(state, fault).start + gpu, numa_node=numa, cpus=cpus)
    state.silicon[here(state, fault)] *= 1 - fault.strength / 4


def _process(state: State, fault: Fault, gpu: int, pid: int, mib: int, user: str, rank: int | None) -> None:
    row = {"gpu_memory_mib": mib, "sm_pct": 30, "cpu_pct": 100, "memory_mib": 4000, "threads": 20}
    values = tuple(row.get(name) for name in PROCESS_COLUMNS)
    process = ProcessSample(gpu, pid, user, "python", rank, None, values, None, "R", None)
    state.processes.append((fault.node, process))


def foreign(state: State, fault: Fault) -> None:
    """Another user's process runs on one of the job's GPUs."""
    _process(state, fault, fault.gpu, 777_000, 14_000, "bob", None)
    slow_silicon(state, fault)


def ghosts(state: State, fault: Fault) -> None:
    """The other ranks of a node have small contexts on GPU 0."""
    for rank in range(here(state, fault).start + 1, here(state, fault).stop):
        _process(state, fault, 0, pid_of(state, rank), 480, USER, rank)


def shared(state: State, fault: Fault) -> None:
    """All ranks of a node use the same GPU."""
    state.rank(here(state, fault), gpu=fault.gpu, gpu_memory_mib=9_000)
    state.silicon[here(state, fault)] /= state.job.gpus
    state.gpus(here(state, fault), util_pct=0, mem_util_pct=0, power_w=75, mem_used_mib=500)
    state.gpus(at(state, fault), util_pct=100, mem_util_pct=50, power_w=640, mem_used_mib=72_000)


def idle_gpu(state: State, fault: Fault) -> None:
    """The launcher started no rank on one of the granted GPUs."""
    state.alive[at(state, fault)] = False


def silent_node(state: State, fault: Fault) -> None:
    """A node sends no samples."""
    state.silent.add(fault.node)


# Near-misses


def evaluation_on_one(state: State, fault: Fault) -> None:
    """Rank 0 evaluates; the others wait at 0 % with Gloo (strength < 0.5), or spin with NCCL."""
    others = np.arange(state.job.count) > 0
    state.moves = 0.0
    if fault.strength < 0.5:
        state.pause(3, others)
    else:
        state.load[others] = 0.001


def validates(state: State, fault: Fault) -> None:
    """All ranks evaluate: less memory traffic and power, and nothing moves over the links."""
    state.load *= 0.45
    state.input_s += 0.4
    state.moves = 0.05


def recompiles(state: State, fault: Fault) -> None:
    """torch.compile compiles again: all GPUs are idle while CPUs work."""
    state.pause()


def no_requests(state: State, fault: Fault) -> None:
    """Nobody asks an inference server."""
    state.pause(2)


def warm_start(state: State, fault: Fault) -> None:
    """The data loaders are slow at first: all wait for some seconds of each minute."""
    if state.age % 60 < 6:
        state.pause(80)
