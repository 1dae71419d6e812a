"""Rules about memory and disks that run out."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gswarm_tui.common.quantities import mebibytes, used_of
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE
from gswarm_tui.fleet.history import Floats, Singles
from gswarm_tui.insight.rule import APART, LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import BY_COST, ago, evidence, matched, pressure
from gswarm_tui.insight.window import Window

TREND_S = 300.0
"""Growth is measured over this time, in a straight line."""
STRAIGHT = 0.9
"""The least R² of growth (Kineto's and our own threshold)."""
LEFT_S = 1800.0
"""Memory or space that lasts longer than this isn't a fault yet."""
LEAST_GROWTH = 0.005
"""The least growth in ``TREND_S``, as a share of the whole: less is noise."""
SETTLED_S = 120.0
"""A process fills its caches first: growth before this age says nothing."""
FULL, FULL_MIB, FEW_FILES = 0.01, 1024, 1000
"""A file system is full with less than this share and this much free, or with fewer free inodes."""
SWAPPED_MIB, PRESSURE_PCT = 128, 10.0


def growth(values: Floats | Singles) -> Floats:
    """Return the growth a step of series that grow in a straight line, 0 of others: (steps, rows) -> (rows).

    Each third grows, too: what levels off, as a cache, isn't a straight line.
    """
    count = len(values)
    if count < 4 or values.shape[1] == 0:
        return np.zeros(values.shape[1])
    values = values.astype(np.float64)
    for step in range(1, count):
        values[step] = np.where(np.isnan(values[step]), values[step - 1], values[step])
    at = np.arange(count) - (count - 1) / 2
    slope = at @ (values - values[0]) / (at @ at)
    spread = ((values - values.mean(axis=0)) ** 2).sum(axis=0)
    straight = slope**2 * (at @ at) >= STRAIGHT * spread
    edges = np.linspace(0, count - 1, 4).round().astype(np.intp)
    thirds = np.diff(values[edges], axis=0) / np.diff(edges)[:, np.newaxis]
    grows: Floats = np.where(straight & (thirds > 0.5 * slope).all(axis=0) & (slope > 0), slope, 0.0)
    return grows


def _left(window: Window, room: Floats, grows: Floats, step_s: float) -> Floats:
    """Return the seconds until room is used up, infinite where nothing grows."""
    left: Floats = np.where(grows > 0, np.maximum(room, 0) / grows * step_s / window.scale, np.inf)
    return left


def _minutes(seconds: float) -> str:
    return f"full in {max(1, math.ceil(seconds / 60))} min"


def _gpu_memory(window: Window) -> Iterable[Match]:
    used = window.gpu("mem_used_mib", TREND_S)
    total = np.array([gpu.facts.memory_total_mib or np.nan for gpu in window.gpus])
    if len(used) < 4 or not (used[-1] - used[0] > LEAST_GROWTH * total).any():
        return
    grows = growth(used)
    left = _left(window, total - used[-1], grows, window.step_s)
    settled = window.now - window.running_since >= (TREND_S + SETTLED_S) * window.scale
    soon = (left <= LEFT_S) & (grows * (len(used) - 1) > LEAST_GROWTH * total) & settled & window.active
    peers = window.peers(used[-1].astype(np.float64))
    for at in np.flatnonzero(soon).tolist():
        now, faster = float(used[-1, at]), round(grows[at] * 60 / window.step_s * window.scale)
        signal = f"memory {mebibytes(now)}, growing by {mebibytes(faster)} a minute"
        shown = *evidence("mem_used_mib", now, peers[at]), *evidence("memory_total_mib", total[at])
        yield matched(window, at, ago(window, TREND_S), signal, shown, _minutes(left[at]), lost=0.0)


def _host_memory(window: Window) -> Iterable[Match]:
    kills = window.host("job_oom_kills", 600)
    least, most = np.fmin.reduce(kills, axis=0), np.fmax.reduce(kills, axis=0)
    killed = np.flatnonzero(most > least).tolist()
    for at in killed:
        since = window.now - (len(kills) - 1 - int(np.argmax(kills[:, at] > least[at]))) * window.step_s
        count = float(most[at] - least[at])
        signal = f"the kernel killed processes for lack of memory, {count:.0f} times"
        yield matched(
            window, window.nodes[at], since, signal, evidence("job_oom_kills", count, 0), lasts=False
        )
    used, job = window.host("memory_used_mib", TREND_S), window.host("job_memory_mib", TREND_S)
    limit = window.host("job_memory_limit_mib", TREND_S)[-1].astype(np.float64)
    infos = [window.infos.get(node) for node in window.nodes]
    total = np.array([info.hello.host.memory_total_mib if info else None for info in infos], np.float64)
    total = np.where(np.isnan(total), limit, total)
    if len(used) < 4 or not (used[-1] - used[0] > LEAST_GROWTH * total).any():
        return
    # The job's memory has its page cache in it, which needn't fit: what the node can't free counts.
    grows = growth(used)
    in_job = (growth(job) > 0.5 * grows) & (limit < total)
    now, whole = np.where(in_job, np.fmin(job[-1], used[-1]), used[-1]), np.where(in_job, limit, total)
    left = _left(window, whole - now, grows, window.step_s)
    began = np.full(len(window.nodes), np.inf)
    np.minimum.at(began, window.node_at, np.where(window.active, window.running_since, np.inf))
    soon = (left <= LEFT_S) & (window.now - began >= (TREND_S + SETTLED_S) * window.scale)
    soon[killed] = False
    for at in np.flatnonzero(soon & (grows * (len(used) - 1) > LEAST_GROWTH * total)).tolist():
        signal = f"host memory {used_of(float(now[at]), float(whole[at]))}"
        shown = evidence("job_memory_mib" if in_job[at] else "memory_used_mib", now[at])
        since = ago(window, TREND_S)
        yield matched(window, window.nodes[at], since, signal, shown, _minutes(left[at]), lost=0.0)


def _swap(window: Window) -> Iterable[Match]:
    swap = window.host("swap_used_mib", 600)
    grown = swap[-1] - np.fmin.reduce(swap, axis=0)
    if not (grown >= SWAPPED_MIB).any():
        return
    pressed = pressure(window, "memory", 60)
    # Without measured pressure, much more has to be swapped out.
    held = np.where(np.isnan(pressed), grown >= 8 * SWAPPED_MIB, pressed >= PRESSURE_PCT)
    for at in np.flatnonzero((grown >= SWAPPED_MIB) & held).tolist():
        waits, known = float(pressed[at]), bool(np.isfinite(pressed[at]))
        yield matched(
            *(window, window.nodes[at], ago(window, 60)),
            f"{mebibytes(round(float(grown[at])))} swapped out",
            (*evidence("swap_used_mib", swap[-1, at]), *evidence("psi_memory_pct", waits)),
            *([f"tasks wait for memory {waits:.0f} % of the time"] if known else []),
            severity=WASTE if known else BY_COST,
        )


def _disk(window: Window) -> Iterable[Match]:
    rows = window.mount_rows
    free, total, files = (rows.now(column) for column in ("free_mib", "total_mib", "free_inodes"))
    minutes = rows.minutes("free_mib", 30)
    left = _left(window, free, growth(-minutes[-round(TREND_S / 60) - 1 :]), 60 * window.scale)
    full = (free <= np.minimum(FULL * total, FULL_MIB)) & (total > 0)
    # A file system that was full before the job isn't the job's fault, and is only a note.
    fell = np.fmax(rows.first("free_mib"), np.fmax.reduce(minutes, axis=0)) - free > FULL * total
    few = (files < FEW_FILES) & (np.fmax.reduce(rows.minutes("free_inodes", 30), axis=0) > 2 * FEW_FILES)
    hits: dict[str, list[int]] = {}
    for at in np.flatnonzero((full | few | (left <= LEFT_S)) & rows.listed).tolist():
        hits.setdefault(rows.keys[at][1], []).append(at)
    for name, places in hits.items():
        # No node is at fault if most nodes see the same file system fill up.
        everywhere = len(places) > 1 and len(places) > len(window.nodes) / 2
        nodes = tuple(rows.keys[at][0] for at in places)
        for at in places[:1] if everywhere else places:
            words = "is full" if full[at] else "has few free inodes" if few[at] else _minutes(left[at])
            yield matched(
                *(window, nodes if everywhere else rows.keys[at][0], window.now, f"{name} {words}"),
                evidence("free_mib", free[at]),
                lost=0.0,
                severity=FAULT if fell[at] or not full[at] else NOTE,
            )


# fmt: off
RULES = (
    Rule("gpu_memory", "A GPU's memory runs out", FAULT, APART, ("mem_used_mib",), "5 min",
         "grows in a straight line (R² > 0.9), by 0.5 % of the whole in 5 min, and is full within 30 min",
         "TraceML (memory creep); the numbers are our own",
         "Find what grows: tensors kept with their graph, or longer sequences; "
         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation",
         "A program that can't allocate memory ends.",
         "Memory is full but no longer grows, as PyTorch's cache keeps what it once had.",
         "A cache that stops growing by itself.", _gpu_memory),
    Rule("host_memory", "A node's memory runs out", FAULT, LOCAL, ("memory_used_mib",),
         "5 min; kills at once",
         "the kernel killed a process of the job, or memory grows in a straight line (R² > 0.9), by 0.5 % of "
         "the whole in 5 min, and reaches the job's limit or the node's memory within 30 min",
         "ClusterCockpit (0.9 of the limit); the numbers are our own",
         "Request more memory, or start fewer data loader workers: each copies the dataset's objects",
         "The kernel ends a process when the job's limit is reached, and the other ranks wait for it.",
         "Only the page cache grows, or the growth levels off.",
         "A dataset that is read into memory once, and fits.", _host_memory, True),
    Rule("swap", "A node swaps", WASTE, LOCAL, ("swap_used_mib", "psi_memory_pct"), "60 s",
         "swap grew by 128 MiB in 10 min while tasks wait for memory for over 10 % of the time; by 1 GiB if "
         "that isn't measured", "our own thresholds; pressure as in the kernel's documentation of PSI",
         "Request more memory, or start fewer data loader workers",
         "Memory that is swapped out is a thousand times slower, and all ranks wait for the node.",
         "Old pages are swapped out, and nothing waits for them.",
         "Another job on the node fills its memory.", _swap),
    Rule("disk_full", "A file system is full", FAULT, LOCAL, ("mounts",), "at once; growth: 5 min",
         "less than 1 % and 1 GiB free, fewer than 1,000 free inodes, or full within 30 min at this rate",
         "BLOOM's chronicles; the numbers are our own",
         "Remove files or write elsewhere: TMPDIR for temporary files, another file system for checkpoints",
         "The next checkpoint or temporary file fails, and the program ends.",
         "If the file system was full before the job, it is a note.",
         "Files that will be removed in time, such as old checkpoints.", _disk, True),
)
# fmt: on
