"""What can happen to a modelled job: each is a function that changes the state of one tick."""

from __future__ import annotations

import json

import numpy as np

from gswarm_agent.frame import ERROR, WARNING, Note, ProcessSample
from gswarm_agent.metrics import PROCESS_COLUMNS
from gswarm_agent.probes.gpus.nvidia_xid_catalogue import describe
from tests.jobs.model import CPUS, GPU_MIB, HOST_MIB, Fault, State, pause, ports_of

NCCL_TIMEOUT_S = 600.0
"""PyTorch ends all ranks when a collective has waited for so long."""


def _here(state: State, fault: Fault) -> slice:
    """Return the columns of the fault's node."""
    return slice(fault.node * state.job.gpus, (fault.node + 1) * state.job.gpus)


def _age(state: State, fault: Fault) -> float:
    return state.age - fault.start


def note(
    state: State, fault: Fault, kind: str, severity: str, message: str, detail: str | None = None
) -> None:
    """Report an event about the fault's GPU."""
    state.notes.append((fault.node, Note(kind, severity, message, fault.gpu, None, detail)))


def _xid(state: State, fault: Fault, number: int) -> None:
    text, words = describe(number)
    note(state, fault, "xid", ERROR, text, json.dumps(words))


# One GPU is slower


def heat(state: State, fault: Fault) -> None:
    """A GPU overheats: it gets hot within a minute, and then lowers its clock."""
    at, warm = fault.at(state.job), min(1.0, _age(state, fault) / 40)
    state.gpu("temp_c")[at] = round(70 + 19 * warm)
    state.gpu("temp_margin_c")[at] = round(17 - 17 * warm)
    if warm >= 1:
        state.clock[at] *= 1 - fault.strength
        state.gpu("throttle_thermal_pct")[at] = state.rng.uniform(55, 85)
        state.gpu("clock_reasons")[at] = 0x20


def hot_at_no_cost(state: State, fault: Fault) -> None:
    """A GPU is hot and throttles now and then, by 1 %."""
    at = fault.at(state.job)
    state.gpu("temp_c")[at] = 86
    state.gpu("temp_margin_c")[at] = 1
    state.clock[at] *= 0.99
    state.gpu("throttle_thermal_pct")[at] = 15
    state.gpu("clock_reasons")[at] = 0x20 if state.rng.uniform() < 0.15 else 0


def power_cap(state: State, fault: Fault) -> None:
    """The power limit of one GPU is set lower."""
    at = fault.at(state.job)
    state.clock[at] *= 1 - fault.strength
    state.gpu("throttle_power_pct")[at] = state.rng.uniform(85, 99)
    state.gpu("clock_reasons")[at] = 0x4
    state.gpu("power_limit_now_w")[at] = round(700 * (1 - fault.strength) ** 1.8)


def capped_alike(state: State, fault: Fault) -> None:
    """The site caps the power of all GPUs."""
    state.clock *= 1 - fault.strength
    state.gpu("throttle_power_pct")[:] = state.rng.uniform(80, 99, len(state.clock))
    state.gpu("clock_reasons")[:] = 0x4
    state.gpu("power_limit_now_w")[:] = 500


def brake(state: State, fault: Fault) -> None:
    """The power supply of a node asserts the brake of all its GPUs."""
    here = _here(state, fault)
    state.clock[here] *= 1 - max(0.3, fault.strength)
    state.gpu("throttle_brake_pct")[here] = state.rng.uniform(60, 100)
    state.gpu("clock_reasons")[here] = 0x88


def locked(state: State, fault: Fault) -> None:
    """Somebody locked the application clocks of a GPU."""
    at = fault.at(state.job)
    state.clock[at] = 1 - fault.strength
    state.gpu("clock_reasons")[at] = 0x2
    state.gpu("app_sm_clock_mhz")[at] = round(1980 * (1 - fault.strength))


def slow_silicon(state: State, fault: Fault) -> None:
    """A GPU needs longer for the same work at the same clock."""
    state.silicon[fault.at(state.job)] *= 1 - fault.strength


def narrow_pcie(state: State, fault: Fault) -> None:
    """A GPU's PCIe link has fewer lanes: its copies take longer."""
    at = fault.at(state.job)
    state.gpu("pcie_width")[at] = 4
    state.silicon[at] *= 1 - fault.strength / 2


# Hard facts


def lost_gpu(state: State, fault: Fault) -> None:
    """A GPU falls off the bus; its rank dies soon, and the others wait until NCCL gives up."""
    at = fault.at(state.job)
    _xid(state, fault, 79)
    if _age(state, fault) > 5:
        note(state, fault, "gpu_lost", ERROR, "doesn't answer: GPU is lost")
    state.lost.add(at)
    _dies(state, fault)


def memory_error(state: State, fault: Fault) -> None:
    """An uncorrectable memory error: the driver reports it and ends the process."""
    _xid(state, fault, 94 if fault.strength < 0.2 else 48)
    state.gpu("ecc_uncorrected")[fault.at(state.job)] = 2
    _dies(state, fault)


def program_error(state: State, fault: Fault) -> None:
    """The program of one rank accesses memory that isn't its own, and dies."""
    _xid(state, fault, 31)
    _dies(state, fault)


def nvlink_down(state: State, fault: Fault) -> None:
    """Some NVLinks of a GPU go down: communication goes on more slowly."""
    _xid(state, fault, 74)
    if _age(state, fault) > 10:
        note(state, fault, "nvlink_degraded", WARNING, "16 of 18 NVLinks are up")
    state.gpu("nvlink_errors")[fault.at(state.job)] = 40 + _age(state, fault)
    state.links *= 1 - fault.strength / 2


def killed_rank(state: State, fault: Fault) -> None:
    """The process of a rank ends without a trace on its GPU."""
    _dies(state, fault)


def _dies(state: State, fault: Fault) -> None:
    state.alive[fault.at(state.job)] = False
    state.hung = True
    if _age(state, fault) > NCCL_TIMEOUT_S:
        state.alive[:] = False


def hang(state: State, fault: Fault) -> None:
    """A collective never ends: all ranks spin."""
    state.hung = True


def restart(state: State, fault: Fault) -> None:
    """All ranks end, and start again after 40 s; they load for two minutes."""
    state.incarnation += 1
    if _age(state, fault) < 40:
        state.alive[:] = False
    elif _age(state, fault) < 160:
        pause(state)


def rank_restarts(state: State, fault: Fault) -> None:
    """An elastic job replaces one rank within 30 s."""
    if _age(state, fault) < 30:
        state.alive[fault.at(state.job)] = False
        state.hung = True


# Links


def _port(state: State, fault: Fault) -> tuple[int, str]:
    return fault.node, f"mlx5_{fault.gpu % max(1, ports_of(state.job))}/1"


def port_down(state: State, fault: Fault) -> None:
    """An InfiniBand port goes down; NCCL goes on with the others, or not at all."""
    state.ports[_port(state, fault)] = {
        "state": 1,
        "phys_state": 3,
        "rx_mb_s": 0,
        "tx_mb_s": 0,
        "link_downed": 1,
    }
    state.links *= 0.75
    state.hung = state.hung or fault.strength > 0.25


def port_errors(state: State, fault: Fault) -> None:
    """A bad cable: errors of the port grow by 30 a second."""
    grown = round(30 * _age(state, fault))
    state.ports[_port(state, fault)] = {
        "symbol_error": grown,
        "port_rcv_errors": grown,
        "new_errors": 2 * grown,
    }
    state.links *= 1 - fault.strength / 2


def port_slow(state: State, fault: Fault) -> None:
    """A port comes up with half of its rate."""
    state.ports[_port(state, fault)] = {"rate_gbit_s": 200}
    state.links *= 1 - fault.strength


def congested(state: State, fault: Fault) -> None:
    """Other jobs use the fabric: communication is slower for all."""
    state.links *= 1 / (1 + 6 * fault.strength)


def sockets(state: State, fault: Fault) -> None:
    """NCCL doesn't use InfiniBand but TCP sockets."""
    state.links *= 0.25
    state.host("ib_rx_mb_s")[:] = state.host("ib_tx_mb_s")[:] = 0.001
    state.host("net_rx_mb_s")[:] = state.host("net_tx_mb_s")[:] = state.rng.uniform(
        1900, 2300, state.job.nodes
    )


def nvlink_unused(state: State, fault: Fault) -> None:
    """NCCL uses PCIe although there are NVLinks."""
    state.links *= 0.4
    state.gpu("nvlink_tx_mb_s")[:] = state.gpu("nvlink_rx_mb_s")[:] = 0
    for name in ("pcie_tx_mb_s", "pcie_rx_mb_s"):
        state.gpu(name)[:] = state.rng.uniform(9_000, 12_000, len(state.clock))


# Input and storage


def input_one(state: State, fault: Fault) -> None:
    """The ranks of one node wait for their data, which one core prepares."""
    here = _here(state, fault)
    state.input_s[here] += fault.strength * 1.6 * state.rng.normal(1, 0.05, state.job.gpus)
    for at in range(here.start, here.stop):
        state.rank(at, cpu_pct=180, state="D" if state.rng.uniform() < 0.4 else "R", wchan="folio_wait_bit")
    state.host("psi_io_pct")[fault.node] = state.rng.uniform(18, 35)
    state.host("cpu_iowait_pct")[fault.node] = state.rng.uniform(6, 12)


def input_all(state: State, fault: Fault) -> None:
    """All ranks wait for data that their CPUs prepare: util under 50 %."""
    state.input_s += state.rng.uniform(1.3, 1.7, len(state.clock)) * max(1.0, 4 * fault.strength)
    for at in range(len(state.clock)):
        state.rank(at, cpu_pct=780, state="R")
    state.host("cpu_pct")[:] = state.rng.uniform(75, 90, state.job.nodes)
    state.host("psi_cpu_pct")[:] = 12


def storage(state: State, fault: Fault) -> None:
    """The file system doesn't answer: all ranks are blocked in reads."""
    pause(state, cpu=2.0)
    for at in range(len(state.clock)):
        state.rank(at, state="D", wchan="nfs_wait_bit_killable", cpu_pct=2)
    state.host("psi_io_pct")[:] = state.rng.uniform(55, 90, state.job.nodes)
    state.host("job_psi_io_pct")[:] = state.rng.uniform(55, 90, state.job.nodes)
    state.host("cpu_busiest_pct")[:] = 10
    for node in range(state.job.nodes):
        state.mounts[node, "/scratch/ada"] = {"read_ms": 4000, "write_ms": 6000}


def disk_fills(state: State, fault: Fault) -> None:
    """/tmp of one node fills within ten minutes."""
    free = max(0.0, 60_000 * (1 - _age(state, fault) / 240))
    state.mounts[fault.node, "/tmp"] = {"free_mib": round(free)}


# Memory


def gpu_memory(state: State, fault: Fault) -> None:
    """A rank's GPU memory grows until it is full, after 15 to 20 minutes."""
    at = fault.at(state.job)
    grown = (GPU_MIB - 61_000) * _age(state, fault) / (900 + 300 * fault.strength)
    state.gpu("mem_used_mib")[at] = min(GPU_MIB - 200, 61_000 + grown)
    state.rank(at, gpu_memory_mib=round(min(GPU_MIB - 700, 60_500 + grown)))


def host_memory(state: State, fault: Fault) -> None:
    """The job's memory on one node grows towards its limit."""
    usual = 12_000.0 * state.job.gpus
    grown = (900_000 - usual) * _age(state, fault) / (900 + 300 * fault.strength)
    state.host("job_memory_mib")[fault.node] = min(899_000, usual + grown)
    state.host("memory_used_mib")[fault.node] = min(HOST_MIB - 10_000, 45_000 + usual + grown)


def swap(state: State, fault: Fault) -> None:
    """One node swaps, and its ranks are slowed."""
    state.host("swap_used_mib")[fault.node] = 200 * _age(state, fault)
    state.host("psi_memory_pct")[fault.node] = state.rng.uniform(20, 45)
    state.host("job_psi_memory_pct")[fault.node] = state.rng.uniform(20, 45)
    state.host("memory_used_mib")[fault.node] = HOST_MIB - 9_000
    state.input_s[_here(state, fault)] += fault.strength


# Placement and use


def few_cores(state: State, fault: Fault) -> None:
    """All ranks of a node may use the same two cores."""
    here = _here(state, fault)
    for at in range(here.start, here.stop):
        state.rank(at, cpus="0-1", involuntary_switches_s=900, cpu_pct=200 / state.job.gpus, numa_node=0)
    state.host("psi_cpu_pct")[fault.node] = state.host("job_psi_cpu_pct")[fault.node] = 65
    state.input_s[here] += 1.6 * fault.strength


def wrong_numa(state: State, fault: Fault) -> None:
    """The ranks of a node run on the CPUs of the other socket."""
    here, gpus = _here(state, fault), state.job.gpus
    for at in range(here.start, here.stop):
        numa = 1 - (at - here.start) * 2 // gpus
        state.rank(at, numa_node=numa, cpus=f"{numa * CPUS // 2}-{numa * CPUS // 2 + CPUS // 2 - 1}")
    state.silicon[here] *= 1 - fault.strength / 4


def other_users(state: State, fault: Fault) -> None:
    """Somebody else's programs use the CPUs of a node."""
    here = _here(state, fault)
    state.host("cpu_pct")[fault.node] = state.rng.uniform(90, 99)
    state.host("load_1m")[fault.node] = 190
    state.host("psi_cpu_pct")[fault.node] = state.rng.uniform(35, 60)
    for at in range(here.start, here.stop):
        state.rank(at, cpu_pct=55, involuntary_switches_s=700)
    state.input_s[here] += fault.strength


def _process(
    fault: Fault, gpu: int, pid: int, mib: int, user: str, rank: int | None
) -> tuple[int, ProcessSample]:
    row = {
        "gpu_memory_mib": mib,
        "sm_pct": 30,
        "cpu_pct": 100,
        "memory_mib": 4000,
        "threads": 20,
        "age_s": 60,
    }
    values = tuple(row.get(name) for name in PROCESS_COLUMNS)
    return fault.node, ProcessSample(gpu, pid, user, "python", rank, None, values, None, "R", None)


def foreign(state: State, fault: Fault) -> None:
    """Another user's process runs on one of the job's GPUs."""
    state.processes.append(_process(fault, fault.gpu, 777_000, 14_000, "bob", None))
    state.silicon[fault.at(state.job)] *= 1 - fault.strength


def ghosts(state: State, fault: Fault) -> None:
    """The other ranks of a node have small contexts on GPU 0."""
    for gpu in range(1, state.job.gpus):
        pid = 4000 + 10_000 * state.incarnation + 100 * fault.node + gpu
        rank = fault.node * state.job.gpus + gpu
        state.processes.append(_process(fault, 0, pid, 480, "ada", rank))


def shared(state: State, fault: Fault) -> None:
    """All ranks of a node use the same GPU."""
    here = _here(state, fault)
    for at in range(here.start, here.stop):
        state.rank(at, gpu=fault.gpu, gpu_memory_mib=9_000)
    state.silicon[here] /= state.job.gpus
    for name, idle in (("util_pct", 0), ("mem_util_pct", 0), ("power_w", 75), ("mem_used_mib", 500)):
        others = np.arange(state.job.gpus) != fault.gpu
        state.gpu(name)[here][others] = idle
    state.gpu("power_w")[fault.at(state.job)] = 640
    state.gpu("mem_util_pct")[fault.at(state.job)] = 50


def idle_gpus(state: State, fault: Fault) -> None:
    """The launcher started no rank on one of the granted GPUs."""
    state.alive[fault.at(state.job)] = False


def cpu_instead(state: State, fault: Fault) -> None:
    """The ranks compute on CPUs, and hold GPU memory."""
    pause(state)
    for at in range(len(state.clock)):
        state.rank(at, cpu_pct=1150)


def silent_node(state: State, fault: Fault) -> None:
    """A node sends no samples."""
    state.silent.add(fault.node)


# Near-misses


def evaluation_on_one(state: State, fault: Fault) -> None:
    """Rank 0 evaluates, the others wait: at 0 % with Gloo (strength < 0.5), or spinning with NCCL."""
    others = np.arange(len(state.clock)) != 0
    if fault.strength < 0.5:
        pause(state, cpu=3.0, which=others)
    else:
        state.load[others] = 0.001


def recompiles(state: State, fault: Fault) -> None:
    """torch.compile compiles again: all GPUs are idle while CPUs work."""
    pause(state, cpu=100.0)


def validates(state: State, fault: Fault) -> None:
    """All ranks evaluate: less memory traffic, less power, no gradients over the links."""
    state.clock *= 1.0
    state.load *= 0.45
    state.input_s += 0.4


def no_requests(state: State, fault: Fault) -> None:
    """Nobody asks an inference server."""
    state.paused[:] = True
    for at in range(len(state.clock)):
        state.rank(at, cpu_pct=2, sm_pct=0, state="S")


def warm_start(state: State, fault: Fault) -> None:
    """The data loaders are slow at first: some seconds of waiting in each minute."""
    if state.age % 60 < 6:
        pause(state, cpu=80.0)
