"""Rules about where ranks run: their CPUs, their GPUs, and who else is on the node."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from gswarm_tui.common.quantities import mebibytes, plural, watts
from gswarm_tui.fleet.findings import NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.rule import APART, LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import by_node, evidence, found, matched, pressure
from gswarm_tui.insight.window import OWN_CPU, Mask, Window

SETTLED_S = 120.0
"""Ranks count from this age on: while a job starts, they may be anywhere for a moment."""
CORES_EACH, PRESSED_PCT, PREEMPTED_S = 2.0, 20.0, 100.0
"""Fewer cores a rank are few if tasks wait for a CPU this often, or the rank is preempted this often."""
LOAD, TAKEN_PCT = 1.2, 20.0
GHOST_MIB = 150, 1500
"""Memory of a CUDA context without data; 300 to 600 MiB are usual."""
FOREIGN_MIB, FOREIGN_PCT = 500, 10
ALIKE_SHARE = 2 / 3
"""A trait is usual if this share of the nodes has it."""


def ranks(window: Window) -> Mask:
    """Return which of the listed processes are settled ranks, each on the GPU where it has most memory."""
    listed = window.listed
    memory, node = np.nan_to_num(listed.number("gpu_memory_mib")), window.node_at[listed.column]
    order = np.lexsort((-memory, listed.pids, node))
    most = np.ones(len(order), dtype=bool)
    most[order[1:]] = (np.diff(listed.pids[order]) != 0) | (np.diff(node[order]) != 0)
    old = window.now - window.running_since[listed.column] >= SETTLED_S * window.scale
    settled: Mask = most & listed.own & old
    return settled


def cores_each(masks: Sequence[str | None]) -> tuple[float, ...]:
    """Return how many cores each rank of a node has, if ranks share those of the same mask."""
    used, each = Counter(masks), list[float]()
    for mask in masks:
        # The agent cuts lists at 256 characters, so that the end of a longer one isn't known.
        ranges = re.findall(r"(\d+)(?:-(\d+))?", mask) if mask and len(mask) < 256 else ()
        each.append(sum(int(high or low) - int(low) + 1 for low, high in ranges) / used[mask] or np.nan)
    return tuple(each)


def _few(window: Window) -> Floats:
    """Return the cores of ranks that have too few and wait for them, by GPU; NaN for all others."""
    listed, few = window.listed, np.full(len(window.gpus), np.nan)
    node = window.node_at[listed.column]
    waits = pressure(window, "cpu", 60)[node] >= PRESSED_PCT
    waits |= listed.number("involuntary_switches_s") >= PREEMPTED_S
    if not waits.any():
        return few
    chosen = ranks(window)
    for at in np.unique(node[waits & chosen]).tolist():
        here = np.flatnonzero(chosen & (node == at))
        each = np.array(cores_each([listed.samples[one].cpus for one in here.tolist()]))
        odd = (each < CORES_EACH) & waits[here]
        few[listed.column[here[odd]]] = each[odd]
    return few


def _few_cores(window: Window) -> Iterable[Match]:
    cores, util = _few(window), window.mean("util_pct", 60)
    hit, texts = np.isfinite(cores), ("{cores:.1f} cores per rank", "GPUs busy {util_pct:.0f} %")
    # A GPU that is busy all the time has enough with few cores.
    severity, values = WASTE if (util[hit] < 90).any() else "", {"cores": cores, "util_pct": util}
    # Ranks keep the cores that they start with, which aren't why the job gets slower later.
    yield from found(window, hit, window.running_since, texts, values, severity=severity)


def _numa(window: Window) -> Iterable[Match]:
    listed, of_gpu = window.listed, np.array([gpu.facts.numa_node for gpu in window.gpus], dtype=np.float64)
    theirs, wanted = listed.number("numa_node"), of_gpu[listed.column]
    wrong = (theirs >= 0) & (wanted >= 0) & (theirs != wanted)
    if not wrong.any():
        return
    wrong &= ranks(window)
    of_rank = np.full(len(window.gpus), np.nan)
    of_rank[listed.column[wrong]] = theirs[wrong]
    # Where ranks share a GPU, that is the reason.
    of_rank[shared(window)[0] > 1] = np.nan
    values, signal = (
        {"numa_node": of_rank, "numa_node_of_gpu": of_gpu},
        "CPUs of another socket than the GPU's",
    )
    yield from found(window, np.isfinite(of_rank), window.running_since, (signal, ""), values)


def _other_users(window: Window) -> Iterable[Match]:
    # The culprit is the one node on which the CPU rose, tasks wait for it, and the ranks get less of it.
    count, waits = len(window.nodes), pressure(window, "cpu", 60)
    if not (waits >= PRESSED_PCT).any():
        return
    cpu, cpu_long = window.mean("cpu_pct", 60), window.mean("cpu_pct", 600)
    own, own_long = (
        np.bincount(window.node_at, np.nan_to_num(window.mean(OWN_CPU, seconds)), minlength=count)
        for seconds in (60, 600)
    )
    if count >= 3 and np.isfinite(cpu).any():
        before, own_before = np.full(count, np.nanmedian(cpu)), np.full(count, np.median(own))
    else:
        # With one or two nodes, the minutes before are the measure.
        before, own_before = (10 * cpu_long - cpu) / 9, (10 * own_long - own) / 9
    taken = (cpu - before >= TAKEN_PCT) & (own < 0.9 * own_before) & (waits >= PRESSED_PCT)
    texts = "CPUs {cpu_pct:.0f} % busy with other processes", "tasks wait {psi_cpu_pct:.0f} % of the time"
    values = {"cpu_pct": cpu[window.node_at], "psi_cpu_pct": waits[window.node_at]}
    if taken.sum() == 1:
        yield from found(window, taken[window.node_at], 60.0, texts, values, by="node")


def _oversubscribed(window: Window) -> Iterable[Match]:
    hosts = [info.hello.host if (info := window.infos.get(name)) else None for name in window.nodes]
    cpus = np.array([host.cpus if host else None for host in hosts], dtype=np.float64)
    load = window.host("load_1m", 60)
    high = window.holds(load > LOAD * cpus, np.isfinite(load), 60) & ~(window.mean("cpu_pct", 60) < 80)
    if not high.any() or any(_other_users(window)):
        return
    chosen = ranks(window)
    of_ranks = np.nan_to_num(window.listed.number("threads")[chosen])
    threads = np.bincount(window.node_at[window.listed.column[chosen]], of_ranks, minlength=len(cpus))
    high &= threads > LOAD * cpus
    values = {"load_1m": window.mean("load_1m", 60), "threads": threads, "cpus": cpus}
    texts = "load {load_1m:,.0f}", "{threads:,.0f} threads of ranks on {cpus:.0f} CPUs"
    by_gpu = {name: of_nodes[window.node_at] for name, of_nodes in values.items()}
    # Where ranks have too few cores, that is the reason, even if it costs nothing.
    hit = high[window.node_at] & np.isnan(_few(window))
    yield from found(window, hit, 60.0, texts, by_gpu, by="node", severity=WASTE)


def _foreign(window: Window) -> Iterable[Match]:
    listed = window.listed
    memory, sm = listed.number("gpu_memory_mib"), listed.number("sm_pct")
    alien = ~listed.own & window.active[listed.column]
    for at in np.flatnonzero(alien & ((memory >= FOREIGN_MIB) | (sm >= FOREIGN_PCT))).tolist():
        column, one = int(listed.column[at]), listed.samples[at]
        # Only the owner of a process can read its rank, so that one with a rank is the job's after all.
        if one.rank is not None:
            continue
        mib, busy = float(np.nan_to_num(memory[at])), min(100.0, float(np.nan_to_num(sm[at])))
        signal = f"process {one.pid} of {one.user} with {mebibytes(mib)}"
        shown = *evidence("gpu_memory_mib", mib), *evidence("sm_pct", busy)
        yield matched(window, column, window.now - window.step_s, signal, shown, lost=busy / 100)


def shared(window: Window) -> tuple[Floats, Floats]:
    """Return the ranks on GPUs that several share, and how many GPUs of the node have none; NaN elsewhere."""
    listed, count = window.listed, len(window.gpus)
    if np.bincount(listed.column, minlength=1).max() < 2:
        return np.full(count, np.nan), np.full(count, np.nan)
    chosen = ranks(window)
    who = np.array([one.pid if one.rank is None else -1 - one.rank for one in listed.samples], dtype=np.int64)
    pairs = np.unique(np.stack((listed.column, who))[:, chosen], axis=1)
    on_gpu = np.bincount(pairs[0], minlength=count).astype(np.float64)
    # Without known ranks, a few processes on one GPU may be meant; as many as there are GPUs aren't.
    nameless = np.bincount(pairs[0], pairs[1] >= 0, minlength=count) > 0
    free = by_node(window, ~np.isin(np.arange(count), listed.column))
    size = by_node(window, np.ones(count))
    hit = (on_gpu > 1) & (free > 0) & (~nameless | (on_gpu >= size))
    return np.where(hit, on_gpu, np.nan), np.where(hit, free, np.nan)


def _shared_gpu(window: Window) -> Iterable[Match]:
    on_gpu, free = shared(window)
    texts = "{ranks:.0f} ranks on one GPU", "{gpus_without:.0f} GPUs of the node have none"
    lost, values = np.minimum(on_gpu - 1, free), {"ranks": on_gpu, "gpus_without": free}
    yield from found(window, on_gpu > 1, window.running_since, texts, values, by="gpu", lost=lost)


def _ghosts(window: Window) -> Iterable[Match]:
    listed, count = window.listed, len(window.gpus)
    if np.bincount(listed.column, minlength=1).max() < 2:
        return
    chosen = ranks(window)
    memory, node = listed.number("gpu_memory_mib"), window.node_at[listed.column].tolist()
    pids = list(zip(node, listed.pids.tolist(), strict=True))
    contexts = Counter(pids)
    # A process with contexts on more than two GPUs uses all that it sees, as JAX does.
    ghost = np.array([contexts[pid] == 2 for pid in pids], dtype=bool) & listed.own & ~chosen
    ghost &= (memory >= GHOST_MIB[0]) & (memory <= GHOST_MIB[1])
    small = np.bincount(listed.column[ghost], minlength=count)
    has_rank = np.bincount(listed.column[chosen], minlength=count) > 0
    mib = np.bincount(listed.column[ghost], memory[ghost], minlength=count)
    hit = has_rank & (small > 0) & (small >= np.minimum(2, by_node(window, has_rank) - 1))
    values = {"contexts": small, "gpu_memory_mib": mib}
    texts = "contexts of {contexts:.0f} other ranks", "{gpu_memory_mib:,.0f} MiB unused"
    yield from found(window, hit, window.running_since, texts, values, by="gpu", lost=0.0)


def _traits(window: Window, name: str, rates: list[float] | None) -> dict[str, object]:
    """Return what should be alike on all nodes, None where unknown."""
    hello, mounts = window.infos[name].hello, window.mounts.get(name)
    host, gpus = hello.host, [gpu for gpu in hello.gpus if gpu.parent_index is None]
    return {
        "driver": host.driver_version, "kernel": host.kernel, "CPU": host.cpu_model, "CPUs": host.cpus,
        "memory": host.memory_total_mib and f"{round(host.memory_total_mib / 1024, -1):,.0f} GiB",
        "number of GPUs": len(gpus), "GPUs": ", ".join(sorted({gpu.name for gpu in gpus})),
        "GPU memory": mebibytes(min((gpu.memory_total_mib or 0 for gpu in gpus), default=None)),
        "power limit": watts(min((gpu.power_limit_w or 0 for gpu in gpus), default=None)),
        "port rates": None if rates is None else ", ".join(f"{rate:.0f} Gbit/s" for rate in sorted(rates)),
        "mounts": None if mounts is None else ", ".join(sorted(mounts)),
    }  # fmt: skip


def _each_minute(window: Window) -> bool:
    """Return whether a minute is over: traits of nodes change rarely, and comparing them takes long."""
    return window.steps % max(1, round(60 * window.scale / window.step_s)) == 0


def _odd_node(window: Window) -> Iterable[Match]:
    if len(window.infos) < 3 or not _each_minute(window):
        return
    rates: dict[str, list[float]] = {name: [] for name in window.ports}
    # The rates at first are compared: another rule names ports that go down later.
    for (name, _), rate in zip(window.port_rows.keys, window.port_rows.first("rate_gbit_s"), strict=True):
        rates.setdefault(name, []).append(rate)
    traits = {name: _traits(window, name, rates.get(name)) for name in window.infos}
    differs: dict[str, list[Evidence]] = {}
    for trait in next(iter(traits.values())):
        values = {name: value for name, one in traits.items() if (value := one[trait]) is not None}
        usual, count = Counter(values.values()).most_common(1)[0] if values else (None, 0)
        if count >= max(2, ALIKE_SHARE * len(values)):
            for name in (name for name, value in values.items() if value != usual):
                differs.setdefault(name, []).append(Evidence(trait, f"{values[name]}", f"{usual}"))
    for name, shown in differs.items():
        signal, *details = (f"{one.metric} {one.value or 'none'}, others {one.peers}" for one in shown)
        yield matched(window, name, window.started_at, signal, shown, *details, lost=0.0, lasts=False)


def _fragmented(window: Window) -> Iterable[Match]:
    if not _each_minute(window):
        return
    granted, count = Counter(gpu.node for gpu in window.gpus), len(window.gpus)
    whole = {name: window.infos[name].hello.gpus for name in granted}
    sizes = {name: sum(gpu.parent_index is None for gpu in gpus) for name, gpus in whole.items()}
    needed = max(1, -(-count // max(sizes.values(), default=1)))
    if len(granted) >= 2 * needed and all(granted[name] < sizes[name] for name in granted):
        signal, contrast = f"{count} GPUs on {len(granted)} nodes", f"{plural(needed, 'node')} would do"
        shown, since = evidence("nodes", len(granted), needed), window.started_at
        yield matched(window, tuple(granted), since, signal, shown, contrast=contrast, lost=0.0, lasts=False)


# fmt: off
RULES = (
    Rule("few_cores", "Ranks have too few cores", WASTE, LOCAL, ("processes", "psi_cpu_pct"), "60 s",
         "under 2 cores per rank, and tasks wait for a CPU 20 % of the time, or 100 preemptions a second",
         "ClusterCockpit; the numbers are our own",
         "Ask for more cores on {nodes} (#SBATCH --cpus-per-task), and check --cpu-bind",
         "Ranks that share cores launch kernels and prepare data in turn, so that their GPUs wait.",
         "While the GPUs are busy for 90 % of the time, and no other GPU waits for them, it is a note.",
         "Data loaders bound to other cores than their rank aren't counted.", _few_cores),
    Rule("numa", "Ranks run on the wrong socket", WASTE, LOCAL, ("processes",), "2 min",
         "the CPUs of a rank and its GPU are on different NUMA nodes", "hwloc",
         "Bind ranks to the CPUs beside their GPUs (srun --gpu-bind=closest, or numactl)",
         "Copies between host and GPU cross the link between sockets.",
         "The ranks aren't bound to one NUMA node. If they hold up the job by less than 9 %, it is a note.",
         "Jobs that copy little lose nothing.", _numa),
    Rule("other_users", "Other processes take the CPUs", WASTE, LOCAL,
         ("cpu_pct", "psi_cpu_pct", "processes"), "60 s",
         "CPU of one node 20 points above the others, tasks wait 20 % of the time, the ranks' CPU 10 % lower",
         "Greyhound; the numbers are our own",
         "Check what else runs on {node}; ask for whole nodes (#SBATCH --exclusive)",
         "Other processes take CPU time from the ranks of one node, and all other ranks wait for these.",
         "With one or two nodes, for the first ten minutes. While the job is no slower, it is a note.",
         "Data loaders of the job itself count as other processes.", _other_users),
    Rule("oversubscribed", "More threads than cores", WASTE, LOCAL, ("load_1m", "processes"), "60 s",
         "load and the ranks' threads over 1.2 times the CPUs, with 80 % of CPU time used", "ClusterCockpit",
         "Set OMP_NUM_THREADS and the number of data loaders to fit the cores of {nodes}",
         "Threads that outnumber cores interrupt each other, and those that feed the GPUs.",
         "Another rule explains it: other_users or few_cores.",
         "On a shared node, threads of other jobs count too.", _oversubscribed),
    Rule("foreign_process", "Somebody else uses a GPU of the job", WASTE, LOCAL, ("processes",), "at once",
         "another user's process on a rank's GPU, with 500 MiB or 10 % of the time", "nvidia-smi pmon",
         "Tell the site that {gpu} should belong to this job alone",
         "GPUs share their time between processes, and the others wait for the slower rank.",
         "The process has a rank that can be read: it belongs to the job, under another user.",
         "A daemon that serves the job under another user, such as an MPS server.", _foreign, True),
    Rule("shared_gpu", "Several ranks share a GPU while others are free", WASTE, LOCAL, ("processes",),
         "2 min", "two ranks or more on one GPU, and a GPU of the node without a process", "PyTorch's notes",
         "Choose the GPU by local rank: torch.cuda.set_device(LOCAL_RANK), or --gpus-per-task=1",
         "Ranks that don't choose a GPU all take the first one.",
         "Each GPU has a process, or ranks aren't known and there are fewer processes than GPUs.",
         "Inference servers with ranks that share a GPU on purpose.", _shared_gpu, True),
    Rule("ghosts", "Ranks hold memory on a GPU that they don't use", WASTE, APART, ("processes",), "2 min",
         "contexts of 150 to 1,500 MiB, of processes that have their data on another GPU", "PyTorch's forum",
         "Set CUDA_VISIBLE_DEVICES or torch.cuda.set_device before the first CUDA call",
         "Each context takes hundreds of MiB, so this GPU runs out of memory before the others.",
         "A process has contexts on more than two GPUs, as JAX does: it uses all of them.",
         "Ranks that copy through a buffer on another GPU on purpose.", _ghosts, True),
    Rule("odd_node", "A node differs from the others", NOTE, APART, (), "at once",
         "a driver, kernel, CPU, GPU, limit, port or mount unlike that of two thirds of the nodes", "NCCL",
         "Tell the site, and remember it if {node} is slow",
         "A node with another driver or fewer ports may be the slow one.",
         "There are fewer than three nodes, or less than two thirds of them are alike.",
         "Sites that mix nodes on purpose.", _odd_node, True),
    Rule("fragmented", "The GPUs are spread over many nodes", NOTE, APART, (), "at once",
         "twice as many nodes as would hold the GPUs", "jobstats",
         "Ask for whole nodes (#SBATCH --nodes, --gpus-per-node)",
         "GPUs on one node exchange data over NVLink, those of several over the network.",
         "Slurm doesn't report which GPUs belong to the job, or hides the others.",
         "Jobs whose GPUs don't exchange data.", _fragmented, True),
)
# fmt: on
