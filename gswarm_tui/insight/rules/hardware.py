"""Rules about hard facts of GPUs: lost ones, errors, links that are down or narrow, ranks that died."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME
from gswarm_tui.fleet.findings import FAULT, NOTE, WASTE, Evidence
from gswarm_tui.insight.effect import costs, slowdown
from gswarm_tui.insight.rule import APART, LOCAL, Match, Rule
from gswarm_tui.insight.rules.matches import BY_COST, Who, ago, evidence, matched, nodes_of
from gswarm_tui.insight.window import Mask, Window

LOST = {79, 119, 120, 122, 123}
"""XIDs of a GPU that fell off the bus, or whose system processor (GSP) or power unit (PMU) hangs."""
MEMORY = {48, 63, 64, 94, 95, 140, 171, 172}
"""XIDs of memory errors; 63 alone says that a row was remapped, which costs nothing."""
REMAPPED = 63
PROGRAM = (13, 31, 43, 45)
"""XIDs of program errors, the most specific first; the driver also reports 45 when a process is ended."""
CLEANED_UP = 45
NVLINK = {74, *range(144, 151)}
HELD_S, SURVIVED_S = 3600.0, 600.0
"""An XID counts for this time, for less if its process survives it; a lost GPU or link, until a restart."""
CASCADE_S = 120.0
"""XIDs and ended ranks that follow another fault within this time are its consequences."""
REPLAYS = (0.48, 0.96, 1.92)
"""PCIe replays a minute and lane that DCGM accepts, for Gen3, Gen4 and Gen5."""
SILENT_S = 60.0
"""A GPU without samples for this time counts as lost while other GPUs of its node have some."""
GONE_S = 120.0
"""A rank that restarts within this time isn't dead."""
NVLINK_ERRORS, ABOVE_PEERS = 100, 10
"""NVLink errors since the start that count, if they are also this many times those of the peers."""
COUNTERS = (
    ("ecc_uncorrected", 1, FAULT),
    ("remap_failed", 1, FAULT),
    ("remap_pending", 1, NOTE),
    ("ecc_corrected", 100, NOTE),
)
"""Counters of memory errors, with the growth from which they count; corrected ones against the peers."""
KINDS = {"xid", "gpu_lost", "gpu_back", "nvlink_degraded", "nvlink_restored"}
_CORE = ("util_pct", "power_w", "mem_used_mib")


class _Fact(NamedTuple):
    """An event about a GPU: the column, the time, the XID (0 for other kinds), kind and message."""

    at: int
    since: float
    xid: int
    kind: str
    message: str


def _facts(window: Window) -> list[_Fact]:
    """Return the newest events about the job's GPUs, oldest first, without those before a restart."""
    events = [event for event in window.events if event.kind in KINDS]
    columns = {(gpu.node, gpu.facts.index): at for at, gpu in enumerate(window.gpus)} if events else {}
    facts = []
    for event in sorted(events, key=lambda one: one.at):
        at = columns.get((event.node or "", -1 if event.gpu is None else event.gpu))
        number = re.search(r"XID (\d+)", event.message) if event.kind == "xid" else None
        xid, age = int(number[1]) if number else 0, (window.now - event.at) / window.scale
        if at is None or window.running_since[at] > event.at:
            continue
        lasts = not xid or xid in LOST | NVLINK
        if lasts or age <= (SURVIVED_S if window.active[at] else HELD_S):
            facts.append(_Fact(at, event.at, xid, event.kind, event.message.split(";")[0]))
    return facts


def _roots(facts: Iterable[_Fact]) -> dict[int, _Fact]:
    """Return the first fact of each GPU that ends a job by itself; a lost GPU before a memory error."""
    roots: dict[int, _Fact] = {}
    for fact in facts:
        if fact.kind == "gpu_back":
            roots.pop(fact.at, None)
        elif fact.kind == "gpu_lost" or fact.xid in LOST:
            if fact.at not in roots or roots[fact.at].xid in MEMORY:
                roots[fact.at] = fact
        elif fact.xid in MEMORY:
            roots.setdefault(fact.at, fact)
    return roots


def _of_fact(window: Window, fact: _Fact, severity: str = "") -> Match:
    shown = (Evidence("xid" if fact.xid else fact.kind, fact.xid or fact.message),)
    words = fact.message or fact.kind
    return matched(window, fact.at, fact.since, words, shown, severity=severity, lasts=False)


def _mute(window: Window) -> Mask:
    """Return the GPUs that give no samples while others on their node do, and that did work."""
    now = np.isfinite([window.gpu(name, window.step_s / window.scale)[-1] for name in _CORE]).any(axis=0)
    mute: Mask = ~now & np.isfinite(window.ran_at)
    if mute.any():
        mute &= np.isin(window.node_at, window.node_at[now])
        mute &= ~np.isfinite([window.gpu(name, SILENT_S) for name in _CORE]).any(axis=(0, 1))
    return mute


def _gpu_lost(window: Window) -> Iterable[Match]:
    roots = _roots(_facts(window))
    for at, fact in roots.items():
        if fact.xid not in MEMORY:
            yield _of_fact(window, fact, FAULT if np.isfinite(window.ran_at[at]) else NOTE)
    for at in set(np.flatnonzero(_mute(window)).tolist()) - set(roots):
        yield matched(window, at, ago(window, SILENT_S), "no samples", evidence("samples", 0))


def _memory_error(window: Window) -> Iterable[Match]:
    roots = _roots(_facts(window))
    uncorrected = window.growth("ecc_uncorrected")
    for at, fact in roots.items():
        if fact.xid in MEMORY:
            # A row that was remapped costs nothing by itself, and often comes with another XID.
            lives = window.active[at] and not costs(window, fact.since) and not uncorrected[at] > 0
            yield _of_fact(window, fact, NOTE if fact.xid == REMAPPED and lives else FAULT)
    named = set(roots)
    for counter, least, severity in COUNTERS:
        for at, match in _errors(window, counter, least, severity):
            if at not in named:
                named.add(at)
                yield match


def _errors(window: Window, counter: str, least: int, severity: str) -> Iterable[tuple[int, Match]]:
    """Return the GPUs whose counter of errors has grown, with matches; of many errors against the peers."""
    grown = window.growth(counter)
    if not (grown >= least).any():
        return
    peers = window.peers(grown)
    hit = (grown >= least) & ((least == 1) | (grown > ABOVE_PEERS * peers))
    for at in np.flatnonzero(hit).tolist():
        words = f"{GPU_BY_NAME[counter].label}: {grown[at]:,.0f} more since the start"
        shown = evidence(counter, grown[at], peers[at])
        yield at, matched(window, at, window.now, words, shown, severity=severity, lasts=False)


def _program_error(window: Window) -> Iterable[Match]:
    facts = _facts(window)
    failed = [one for one in facts if one.xid in PROGRAM]
    # Ending a job ends the processes on all of its GPUs.
    several = len({one.at for one in failed}) > 1 or np.isfinite(window.ran_at).sum() == 1
    if not failed or (several and all(one.xid == CLEANED_UP for one in failed)):
        return
    begin, cascade = failed[0].since, CASCADE_S * window.scale
    roots = [one.since for one in facts if one.xid in LOST | MEMORY or one.kind == "gpu_lost"]
    if not any(-5 <= begin - root <= cascade for root in roots):
        # Clocks of nodes differ by some ms, and a cleaned-up process follows its fault at once.
        early = [one for one in failed if one.since - begin <= 2 * window.scale]
        yield _of_fact(window, min(early, key=lambda one: (PROGRAM.index(one.xid), one.since)))


def _nvlink(window: Window) -> Iterable[Match]:
    down: dict[int, _Fact] = {}
    for fact in _facts(window):
        if fact.kind == "nvlink_restored":
            down.pop(fact.at, None)
        elif fact.kind == "nvlink_degraded" or fact.xid in NVLINK:
            down.setdefault(fact.at, fact)
    for fact in down.values():
        yield _of_fact(window, fact)
    for at, match in _errors(window, "nvlink_errors", NVLINK_ERRORS, BY_COST):
        if at not in down and window.active[at]:
            yield match


def _pcie(window: Window) -> Iterable[Match]:
    since, util = ago(window, 60), window.gpu("util_pct", 60)
    for signal, most, unit in zip(("pcie_gen", "pcie_width"), window.pcie_most.T, ("Gen", "x"), strict=True):
        values = window.gpu(signal, 60)
        if not ((values[-1] < most) | (values[-1] < np.nanmax(values[-1], initial=0))).any():
            continue
        # Where all links are alike, the machine was built so. Without peers a GPU's own maximum counts.
        peers = window.peers(window.mean(signal, 60))
        usual = np.fmin(peers, most) if window.active.sum() > 1 else most
        low = window.holds((values < usual - 0.5) & (util >= 20), np.isfinite(values + util), 60)
        for at in np.flatnonzero(low & window.active).tolist():
            shown = evidence(signal, values[-1, at], usual[at])
            words = f"PCIe {unit}{values[-1, at]:.0f} instead of {unit}{usual[at]:.0f}"
            yield matched(window, at, since, words, shown, severity=BY_COST)
    replays = window.gpu("pcie_replays", 300)
    if (replays[-1] > replays[0]).any():
        minutes = len(replays) * window.step_s / window.scale / 60
        rate = (replays[-1] - replays[0]) / minutes / window.mean("pcie_width", 300)
        gen = window.mean("pcie_gen", 300)
        limit = np.select([gen < 3.5, gen < 4.5], REPLAYS[:2], REPLAYS[2])
        for at in np.flatnonzero((rate > limit) & (rate > 2 * window.peers(rate)) & window.active).tolist():
            shown = evidence("pcie_replays", rate[at], limit[at], "1/min/lane")
            words = f"{rate[at]:.1f} PCIe replays per minute and lane"
            yield matched(window, at, since, words, shown, severity=BY_COST)


def _rank_died(window: Window) -> Iterable[Match]:
    ended_at = np.where(window.active, np.nan, window.ran_at)
    gone = (window.now - ended_at >= GONE_S * window.scale) & ~_mute(window)
    if not gone.any() or not window.active.any():
        return
    ended = float(ended_at[gone].min())
    # Ranks that started after it belong to the restarted job, which doesn't miss the old one.
    waits = window.active & (window.running_since < ended)
    busy = window.mean("util_pct", 30)[waits] >= 90
    if gone.sum() > waits.sum() or busy.sum() < 0.9 * waits.sum():
        return
    # What the job did before is kept for an hour; later, GPUs that move nothing at all still wait.
    slower = slowdown(window, ended)
    moves_nothing = (window.mean("mem_util_pct", 60)[waits] < 5.0).all()
    if not (moves_nothing if slower is None else slower >= 0.5):
        return
    # The first to end is the cause, unless a fault with a name of its own explains it.
    first = gone & (ended_at <= ended)
    nodes, columns = nodes_of(window, first), np.flatnonzero(first).tolist()
    facts = {
        window.gpus[one.at].node for one in _facts(window) if one.since > ended - CASCADE_S * window.scale
    }
    kills = window.host("job_oom_kills", HELD_S)
    killed = np.fmax.reduce(kills, axis=0) > np.fmin.reduce(kills, axis=0)
    if any(node in facts or killed[window.nodes.index(node)] for node in nodes):
        return
    words, details = f"{len(columns)} processes are gone", list[str]()
    who: Who = nodes[0] if len(nodes) == 1 else nodes
    if len(columns) == 1:
        who, words = columns[0], "the process is gone"
        last = window.last_process.get((nodes[0], window.gpus[columns[0]].row))
        details = [] if last is None else [f"pid {last.pid}"]
    shown, contrast = evidence("processes", 0, len(columns)), f"the other {waits.sum()} GPUs wait"
    lost = float(waits.sum())
    yield matched(window, who, ended, words, shown, *details, contrast=contrast, lost=lost)


def _blind(window: Window) -> Iterable[Match]:
    seconds = max(15.0, 3 * window.step_s / window.scale)
    steps, hosts = window.gpu("util_pct", seconds), window.host("cpu_pct", seconds)
    seen: Mask = np.asarray(np.isfinite(hosts).any(axis=0))
    seen[window.node_at[np.isfinite(steps).any(axis=0)]] = True
    if seen.all() or not seen.any() or window.now - window.started_at < 60 * window.scale:
        return
    names = tuple(window.nodes[at] for at in np.flatnonzero(~seen).tolist())
    who, since = names[0] if len(names) == 1 else names, window.now - window.step_s * len(steps)
    shown, contrast = evidence("samples", 0), "no rule sees what happens there"
    yield matched(window, who, since, "no samples", shown, contrast=contrast, lost=0.0)


_EXCLUDE = "Leave {node} out and tell the site"
# fmt: off
RULES = (
    Rule("gpu_lost", "A GPU is lost", FAULT, LOCAL, ("events",), "at once; without an event 60 s",
         "XID 79, 119, 120, 122 or 123, NVML reports it as lost, or only other GPUs of the node have samples",
         "NVIDIA's XID catalogue; arXiv 2503.11901 (Delta)",
         _EXCLUDE + ": the GPU needs a reset or the node a reboot",
         "The rank on the lost GPU can't go on, and all others wait for it until a timeout ends the job.",
         "The GPU answers again, or has a new process.", "A driver that is reset on purpose looks the same.",
         _gpu_lost, True),
    Rule("memory_error", "A GPU has memory errors", FAULT, LOCAL, ("events", "ecc_uncorrected"), "at once",
         "XID 48, 63, 64, 94, 95, 140, 171 or 172, or new uncorrected errors or failed remappings; a note: "
         "XID 63 or a pending remapping alone, 100 corrected errors that are 10 times those of the peers",
         "NVIDIA's XID catalogue and its guide to GPU memory error management; 100 and 10 are our own",
         _EXCLUDE + ": the GPU needs a reset; restart the job from its last checkpoint",
         "An uncorrected error ends the program whose memory it hit.",
         "The GPU has a new process. Errors from before the recording don't count.",
         "With ECC switched off, the GPU counts no errors.", _memory_error, True),
    Rule("program_error", "A program failed on a GPU", WASTE, LOCAL, ("events",), "at once",
         "XID 13, 31, 43 or 45, the first in time; those after a lost GPU or a memory error don't count",
         "NVIDIA's XID catalogue; Fire-Flyer, Titan",
         "Run the program under compute-sanitizer; if other jobs fail on {node}, too, suspect the hardware",
         "A kernel read or wrote invalid addresses. XIDs that follow on other GPUs are consequences.",
         "XID 45 on several GPUs at once: somebody ended the job.",
         "Faulty memory can also make addresses wrong.", _program_error, True),
    Rule("nvlink_degraded", "NVLinks of a GPU are down or slow", WASTE, LOCAL, ("events", "nvlink_errors"),
         "at once",
         "links down or slower than others, XID 74 or 144 to 150, or 100 errors and 10 times those of peers",
         "NVIDIA's XID catalogue; 100 and 10 are our own", _EXCLUDE + " to check the GPU and its board",
         "All-reduce uses all links: with fewer, the job goes on, but more slowly.",
         "The links are up again, or the GPU has a new process.",
         "Errors that are corrected in time cost nothing.", _nvlink, True),
    Rule("pcie_degraded", "A GPU's PCIe link is narrow or repeats packets", WASTE, LOCAL,
         ("pcie_gen", "pcie_width"), "60 s; replays 5 min",
         "an older generation or fewer lanes than the peers and than the GPU can have, while busy; or more "
         "replays per minute and lane than 0.48 (Gen3), 0.96 (Gen4) or 1.92 (Gen5), and twice the peers'",
         "DCGM; Imbue (25 % of new hosts)", _EXCLUDE + " to reseat the GPU",
         "Batches reach the GPU, and gradients the network, more slowly than elsewhere.",
         "All links are alike, or the GPU is idle. While the job is no slower, it is a note.",
         "A machine whose slots differ in width by design.", _pcie),
    Rule("rank_died", "A rank has died, and the others wait", FAULT, LOCAL, ("processes", "util_pct"),
         "2 min",
         "the process of a GPU is gone for 2 min, while at least half of the GPUs are busy and nothing moves",
         "PyTorch (a collective waits 10 min for a rank); 2 min is our own threshold",
         "Read the log of that rank, and end the job: it won't go on by itself",
         "In lock-step, the other ranks spin in a collective until a timeout.",
         "All processes end, or the rank restarts in time, or the others go on working.",
         "A program that lets some ranks end early, while others compute on without memory traffic.",
         _rank_died, True),
    Rule("blind", "A node sends no samples", NOTE, APART, (), "three intervals, at least 15 s",
         "no sample of GPUs or host, while other nodes send some",
         "Omnistat, nvrx-watch (missing samples must not look healthy)",
         "Check with gswarm-tui doctor whether {nodes} can be reached",
         "No rule sees what happens on this node.", "No node sends samples.",
         "The agent was stopped, and the node is well.", _blind, True),
)
# fmt: on
