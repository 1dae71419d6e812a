"""Rules about GPUs and links that the job has and doesn't use."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gswarm_tui.fleet.findings import NOTE, WASTE
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.rule import APART, LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import by_node, found
from gswarm_tui.insight.rules.placement import shared
from gswarm_tui.insight.window import OWN_CPU, Mask, Window

IDLE_S, ENDED_S = 300.0, 900.0
"""A GPU is idle after the first time; one that had a process before, or a whole job, after the second."""
WORKING_PCT, IDLE_PCT = 30.0, 3.0
HELD_MIB = 1024
"""A GPU with this much memory in use counts as having a process where processes aren't listed."""
SPAN_S = 300.0
ACTIVE_PCT, TENSOR_PCT, DRAM_PCT = 80.0, 5.0, 50.0
LAUNCH_PCT, SM_PCT, POWER_SHARE, MEMORY_PCT = 90.0, 50.0, 0.5, 30.0
CORES_PCT, COMPILED_S = 300.0, 720.0
UNUSED_MB_S, PCIE_MB_S, NET_MB_S = 10.0, 1000.0, 500.0


def _idle(window: Window) -> Iterable[Match]:
    util, span, active = window.gpu("util_pct", IDLE_S), ENDED_S * window.scale, window.active
    if active.all():
        return
    taken = np.isin(np.arange(len(window.gpus)), window.listed.column)
    quiet = window.holds(util < IDLE_PCT, np.isfinite(util), IDLE_S) & ~active & ~taken
    quiet &= ~(window.mean("mem_used_mib", 60) >= HELD_MIB)
    if not quiet.any():
        return
    since, used = np.fmax(window.started_at, window.ran_at), np.isfinite(window.ran_at)
    if (window.mean("util_pct", IDLE_S)[active] >= WORKING_PCT).any():
        quiet &= window.now - since >= np.where(used, span, IDLE_S * window.scale)
    else:
        # Nobody works: the job has ended, waits, or has never begun.
        quiet &= not used.any() and window.now - window.started_at >= span
    ended = "rank_died", "gpu_lost", "memory_error", "program_error"
    quiet &= [not any(window.is_open(kind, at) for kind in ended) for at in range(len(quiet))]
    sharing = np.isin(window.node_at, window.node_at[shared(window)[0] > 1])
    listed = all(window.processes.get(name) is not None for name in window.nodes)
    texts = (
        "no process" if listed else "idle",
        "{util_pct:.0f} % busy, while others of the job work" if active.any() else "",
    )
    values = {"util_pct": window.mean("util_pct", IDLE_S)}
    yield from found(window, quiet & ~sharing, since, texts, values, lost=1.0)


def _all_of(window: Window, hit: Mask) -> Mask:
    """Return the active GPUs if something holds for all of them, else none."""
    active = window.active
    return active & bool(active.any() and hit[active].all())


def _steady(window: Window, signal: str) -> Floats:
    """Return a signal's mean over five minutes, NaN where the last minute differs from it."""
    mean, newest = window.mean(signal, SPAN_S), window.mean(signal, 60)
    return np.where(np.abs(newest - mean) <= 1 + 0.2 * mean, mean, np.nan)


def _tensor_unused(window: Window) -> Iterable[Match]:
    names = "sm_active_pct", "tensor_active_pct", "dram_active_pct"
    sm, tensor, dram = (_steady(window, name) for name in names)
    hit = _all_of(window, (sm >= ACTIVE_PCT) & (tensor < TENSOR_PCT) & ~(dram >= DRAM_PCT))
    texts = "tensor cores {tensor_active_pct:.0f} % active", "SMs {sm_active_pct:.0f} %"
    # Simulations have good reasons to compute in FP64 or FP32.
    python = any("python" in (one.command or "") for one in window.listed.samples if window.is_own(one))
    severity, values = "" if python else NOTE, {names[0]: sm, names[1]: tensor}
    yield from found(window, hit, SPAN_S, texts, values, lost=0.0, severity=severity)


def _launch_bound(window: Window) -> Iterable[Match]:
    util, sm, power = (_steady(window, name) for name in ("util_pct", "sm_active_pct", "power_w"))
    facts = np.array([gpu.facts.power_limit_w for gpu in window.gpus], dtype=np.float64)
    limit = np.where(np.isfinite(window.value("power_limit_now_w")), window.value("power_limit_now_w"), facts)
    hit = (util >= LAUNCH_PCT) & (sm < SM_PCT) & (power < POWER_SHARE * limit)
    if not _all_of(window, hit).any():
        return
    # Ranks that wait for others look alike: they hardly read their memory, or did more before.
    memory = window.mean("mem_util_pct", SPAN_S)
    hit &= ~(memory < 5) & ~(memory >= MEMORY_PCT) & ~(window.mean("dram_active_pct", SPAN_S) >= DRAM_PCT)
    for signal, now in (("power_w", power), ("sm_active_pct", sm)):
        before = window.job(signal, 3600)
        hit &= now >= 0.8 * np.percentile(before[np.isfinite(before)], 75)
    busy_cpu = window.mean(OWN_CPU, SPAN_S) >= 90
    values = {"util_pct": util, "sm_active_pct": sm, "power_w": power}
    texts = "SMs {sm_active_pct:.0f} % active", "{util_pct:.0f} % busy at {power_w:.0f} W"
    yield from found(window, _all_of(window, hit & busy_cpu), SPAN_S, texts, values, lost=0.0)


def _cpu_instead(window: Window) -> Iterable[Match]:
    util, cpu = window.gpu("util_pct", SPAN_S), window.gpu(OWN_CPU, SPAN_S)
    hit = window.active & (window.now - window.running_since >= COMPILED_S * window.scale)
    # A model that was on the GPU at first hasn't moved to the CPU: this is a phase of other work.
    hit &= ~(window.early("util_pct") >= WORKING_PCT)
    hit &= window.holds((util < 1) & (cpu >= CORES_PCT), np.isfinite(util + cpu), SPAN_S)
    values = {"util_pct": window.mean("util_pct", SPAN_S), OWN_CPU: window.mean(OWN_CPU, SPAN_S)}
    texts = "CPU {own_cpu_pct:.0f} %", "GPU {util_pct:.0f} %"
    yield from found(window, hit, SPAN_S, texts, values, lost=1.0)


def _world(window: Window) -> Floats:
    """Return the number of ranks that the processes on each GPU belong to, 0 if unknown."""
    listed, world = window.listed, np.zeros(len(window.gpus))
    np.maximum.at(world, listed.column, np.nan_to_num(listed.number("world_size")) * listed.own)
    return world


def _nvlink_unused(window: Window) -> Iterable[Match]:
    nvlink, pcie, util = (window.mean(name, 240) for name in ("nvlink_mb_s", "pcie_mb_s", "util_pct"))
    busy = window.active & (util >= 20)
    hit = busy & (nvlink < UNUSED_MB_S) & (pcie >= PCIE_MB_S)
    if not hit.any():
        return
    # A GPU without NVLink has no such counters, so that its rate is unknown and not 0.
    hit &= (by_node(window, hit) >= 2) & (by_node(window, busy & ~hit) == 0)
    values = {"nvlink_mb_s": nvlink, "pcie_mb_s": pcie}
    texts = "NVLink {nvlink_mb_s:.0f} MB/s", "PCIe {pcie_mb_s:,.0f} MB/s"
    # Servers that don't know of each other have no use for NVLink.
    severity = "" if (_world(window)[hit] > 1).any() else NOTE
    yield from found(window, hit, 240.0, texts, values, by="node", lost=0.0, severity=severity)


def _sockets(window: Window) -> Iterable[Match]:
    ib, net = window.mean("ib_mb_s", 120), window.mean("net_mb_s", 120)
    busy = window.active & (window.mean("util_pct", 120) >= 20)
    works = np.bincount(window.node_at, busy, minlength=len(ib)) > 0
    hit = works & (ib < UNUSED_MB_S) & (net >= NET_MB_S)
    if hit.sum() < 2 or 2 * hit.sum() < works.sum():
        return
    for at in np.flatnonzero(hit).tolist():
        ports = window.ports.get(window.nodes[at])
        hit[at] = ports is None or any(port.get("state") == 4 for name, port in ports.items() if "/" in name)
        # A network that brings much more than it takes serves a file system.
        network = [port for name, port in (ports or {}).items() if "/" not in name]
        taken, sent = (sum(port.get(way) or 0 for port in network) for way in ("rx_mb_s", "tx_mb_s"))
        hit[at] &= taken <= 5 * sent
    by_gpu = hit[window.node_at] & window.active
    values = {"ib_mb_s": ib[window.node_at], "net_mb_s": net[window.node_at]}
    texts = "InfiniBand {ib_mb_s:.0f} MB/s", "{net_mb_s:,.0f} MB/s through sockets"
    spans = (_world(window) > np.bincount(window.node_at).max()).any()
    severity = "" if spans else NOTE
    yield from found(window, by_gpu, 120.0, texts, values, by="node", lost=0.0, severity=severity)


# fmt: off
RULES = (
    Rule("idle_gpus", "Granted GPUs do nothing", WASTE, APART, ("util_pct",), "5 min",
         "no process and under 3 % busy while others are over 30 %; 15 min if it had a process before",
         "jobstats", "Ask for fewer GPUs (#SBATCH --gres), or let the launcher start a rank on {gpu}",
         "A granted GPU that isn't used is kept from other jobs, and is paid for.",
         "The GPU has a process, even one that only waits; or the job has ended, or none of its GPUs works.",
         "Where Slurm doesn't report which GPUs belong to the job, all GPUs of the node count.", _idle, True),
    Rule("tensor_unused", "Tensor cores are unused", WASTE, APART, ("sm_active_pct", "tensor_active_pct"),
         "5 min", "SMs at 80 % or more, tensor cores under 5 %, DRAM under 50 %, on all GPUs", "our own",
         "Use TF32 or BF16: torch.set_float32_matmul_precision('high'), or autocast",
         "Matrix multiplications in plain FP32 take several times as long as on tensor cores.",
         "If the program isn't Python, it is a note, as simulations may need FP64 or FP32.",
         "Python programs that multiply no matrices.", _tensor_unused),
    Rule("launch_bound", "Kernels are too small", WASTE, APART, ("sm_active_pct", "power_w", "processes"),
         "5 min", "GPUs 90 % busy, SMs under 50 %, power under half of the limit, each rank on a full core",
         "KempnerPulse; NVIDIA (SMs under 50 % are likely ineffective)",
         "Try a larger batch, CUDA graphs or torch.compile",
         "A GPU that runs many tiny kernels counts as busy, but computes little.",
         "A GPU hardly uses its memory, or did more before: it then waits for others.",
         "Jobs that wait for the network from the start.", _launch_bound),
    Rule("cpu_instead", "The CPU computes what the GPU should", WASTE, LOCAL, ("util_pct", "processes"),
         "5 min", "a rank uses three cores or more, but not its GPU, 12 min after the start", "jobstats",
         "Check that model and data of the ranks on {nodes} are on the GPU (.to('cuda'))",
         "A model that stays in host memory runs on the CPU, many times slower.",
         "The rank uses fewer cores, as while it waits or compiles.",
         "Long preparation of data in the rank's process.", _cpu_instead),
    Rule("nvlink_unused", "GPUs exchange data over PCIe, although they have NVLink", WASTE, LOCAL,
         ("nvlink_mb_s", "pcie_mb_s"), "4 min",
         "NVLink under 10 MB/s and PCIe over 1 GB/s on all busy GPUs of a node, at least two", "our own",
         "Check NCCL_P2P_DISABLE, and that the container on {nodes} sees all GPUs and NVSwitches",
         "NVLink is ten times as fast as PCIe.", "If no process has a WORLD_SIZE above 1, it is a note.",
         "Ranks that exchange nothing, but read much input.", _nvlink_unused),
    Rule("sockets", "NCCL uses sockets, although there is InfiniBand", WASTE, LOCAL, ("ib_mb_s", "net_mb_s"),
         "2 min", "InfiniBand under 10 MB/s, network over 500 MB/s, nodes with active ports", "our own",
         "Check NCCL_IB_HCA, NCCL_IB_DISABLE and /dev/infiniband in containers (NCCL_DEBUG=INFO)",
         "TCP is several times slower than InfiniBand and takes CPU time.",
         "If the world size fits on one node, it is a note.",
         "Jobs that read and write data over the network and exchange nothing.", _sockets),
)
# fmt: on
