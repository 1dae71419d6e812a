"""Rules about the GPU or node that all others wait for, and about stages that differ from the start."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME, PROCESS_COLUMNS
from gswarm_tui.fleet.findings import CANNOT_TELL, NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, leads, slowdown, working
from gswarm_tui.insight.rule import APART, ODD_ONE, UNKNOWN, Match, Rule
from gswarm_tui.insight.rules.matches import ALL, Who, ago, evidence, matched, nodes_of
from gswarm_tui.insight.window import Mask, Window

FOUR_MIN = 240.0
TOO_FAR = 0.6
"""A GPU that works while its peers hardly do isn't slow: it evaluates or saves, or the peers hang."""
LEAD = COSTS - 0.005
"""A share of work more than the peers' that makes a GPU slow; it overestimates the loss a little."""
SLOWER = 0.07
"""A loss of the job from which a straggler has an effect; a little less than what it costs."""
FROM_START = 0.12
"""A lead that was there from the start, when there is no slowdown to compare with, has to be larger."""
WAITING_PCT, FED_PCT, STARVED_POINTS = 90.0, 10.0, 7.0
"""The others wait at this utilisation; the one without input has that many points less, but isn't idle."""
ALIKE = 0.04
"""GPUs of one slot or node do the same if they differ from their mean by at most this share."""
EXCHANGE_MB_S = 50.0
"""GPUs that never exchanged as much as this don't train together."""
MOST = 8
"""At most one GPU in this many is an odd one out; more are a pattern."""


def _minutes(window: Window, signal: str) -> Floats:
    """Return a signal's means in each of the last four minutes without dips: (4, GPUs)."""
    values = window.gpu(signal, FOUR_MIN).astype(np.float64)
    values = np.where(working(window, len(values), len(values))[:, np.newaxis], values, np.nan)
    known = np.isfinite(values)
    parts = np.array_split(np.arange(len(values)), 4)
    sums = np.array([np.where(known[part], values[part], 0.0).sum(axis=0) for part in parts])
    counts = np.array([known[part].sum(axis=0) for part in parts])
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def _training(window: Window) -> Mask | None:
    """Return the GPUs to compare, None while there is nothing to compare or most of them are idle."""
    settled = window.settled
    if window.starting or not window.covers(FOUR_MIN) or settled.sum() < 2:
        return None
    util = window.mean("util_pct", FOUR_MIN)[settled]
    return None if np.isfinite(util).any() and np.nanmedian(util) < 50 else settled


def _slow_gpu(window: Window) -> Iterable[Match]:
    settled = _training(window)
    if settled is None:
        return
    signal, lead = leads(window, FOUR_MIN)
    if not (lead >= LEAD).any():
        return
    # What GPUs did from the start, as the stages of a pipeline do, is not what slows the job now.
    early = window.early(signal)
    before = np.nan_to_num(1.0 - window.peers(early, settled) / early)
    new = lead - np.maximum(0.0, before) >= LEAD
    ahead = new if new.any() else lead >= LEAD
    if ahead.sum() > max(1, int(settled.sum()) // MOST):
        return
    # Where work is uneven from step to step, as with experts or packed sequences, the leader changes.
    minutes = _minutes(window, signal)
    shares = np.array([1.0 - window.peers(one, settled) / np.where(one > 0, one, np.nan) for one in minutes])
    ahead &= (shares >= LEAD / 3).all(axis=0) & ~(np.median(shares, axis=0) > TOO_FAR)
    slower, spinning = slowdown(window, ago(window, FOUR_MIN)), window.peers_of("util_pct", FOUR_MIN)
    # Stages without replicas can't be told from a slow GPU, and servers differ by their requests.
    comparable = (len(window.nodes) >= 4) & (lead >= FROM_START) & (spinning >= WAITING_PCT)
    others, costs = int(settled.sum()) - 1, slower is None or slower >= SLOWER
    for at in np.flatnonzero(ahead & (new | comparable)).tolist():
        always = not new[at]
        if not (always or costs or window.is_open("slow_gpu", at)):
            continue
        (busy, peers), clocks = (
            (float(window.mean(name, FOUR_MIN)[at]), float(window.peers_of(name, FOUR_MIN)[at]))
            for name in (signal, "sm_clock_mhz")
        )
        yield matched(
            *(window, at, window.started_at if always else ago(window, FOUR_MIN)),
            f"waits least: {GPU_BY_NAME[signal].label} {busy:.0f} %",
            (*evidence(signal, busy, peers), *evidence("sm_clock_mhz", *clocks)),
            *(["from the start"] if always else []),
            contrast=f"the other {others} at {peers:.0f} %",
            # The lead overestimates the loss: nobody computes while all communicate.
            lost=(slower if slower is not None and slower >= SLOWER else float(lead[at])) * others,
        )


def _input_straggler(window: Window) -> Iterable[Match]:
    settled = _training(window)
    if settled is None:
        return
    minutes = _minutes(window, "util_pct")
    util = minutes.mean(axis=0)
    peers = window.peers(util, settled)
    low = settled & (peers >= WAITING_PCT) & (util <= peers - STARVED_POINTS)
    if not low.any() or 2 * low.sum() > settled.sum():
        return
    # A rank that compiles, restarts or is stuck does nothing at all for a while.
    low &= (minutes <= peers - STARVED_POINTS / 3).all(axis=0) & (minutes >= FED_PCT).all(axis=0)
    early = window.early("util_pct")
    always = early <= window.peers(early, settled) - STARVED_POINTS / 2
    since = ago(window, FOUR_MIN)
    slower = slowdown(window, since)
    exchange = max(window.highest("nvlink_mb_s"), window.highest("ib_mb_s"), key=np.nan_to_num)
    for node in np.unique(window.node_at[low]).tolist():
        mine = np.flatnonzero(low & (window.node_at == node)).tolist()
        single = len(mine) == 1 and int(settled[window.node_at == node].sum()) > 1
        who: Who = mine[0] if single else window.nodes[node]
        busy, theirs = float(np.median(util[mine])), float(np.median(peers[mine]))
        cost, others = 1.0 - busy / theirs, int(settled.sum()) - len(mine)
        host, at_once = _host_evidence(window, node, mine), bool(always[mine].all())
        known = any(one[:2] == ("input_straggler", window.nodes[node]) for one in window.open)
        if at_once:
            # Stages of a pipeline also differ from the start; only what the host shows tells them apart.
            # GPUs that exchange nothing don't wait for each other.
            if not host or exchange < EXCHANGE_MB_S:
                continue
        # If the job loses far more than the GPU idles, it isn't this GPU's input that it waits for.
        elif slower is None or not SLOWER - SLOWER * known <= slower <= 2 * cost + 0.2:
            continue
        yield matched(
            *(window, who, window.started_at if at_once else since, f"GPU busy {busy:.0f} %"),
            (*evidence("util_pct", busy, theirs), *host),
            *(f"{_label(one.metric)} {one.value} {one.unit}".strip() for one in host[:1]),
            contrast=f"the other {others} wait at {theirs:.0f} %",
            lost=cost * others,
        )


def _host_evidence(window: Window, node: int, columns: list[int]) -> list[Evidence]:
    """Return what shows that a node or a rank waits for data or for its CPUs, unlike the others."""
    shown: list[Evidence] = []
    for signal in ("job_psi_io_pct", "psi_io_pct", "cpu_iowait_pct"):
        values = window.mean(signal, FOUR_MIN)
        others = np.delete(values, node)
        usual = float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0
        if values[node] >= usual + 5:
            shown += evidence(signal, values[node], usual)
    cpu_at = PROCESS_COLUMNS.index("cpu_pct")
    for one in (one for at in columns for one in window.own_processes(at)):
        if one.state == "D":
            shown.append(Evidence("state", f"D in {one.wchan}" if one.wchan else "D"))
        elif (one.row[cpu_at] or 0) >= 95:
            shown += evidence("cpu_pct", one.row[cpu_at] or 0)
    return shown


def _label(metric: str) -> str:
    return HOST_BY_NAME[metric].label if metric in HOST_BY_NAME else f"process {metric}"


def _uneven(window: Window) -> Iterable[Match]:
    settled = _training(window)
    if settled is None:
        return
    for signal in ("mem_util_pct", "util_pct"):
        mean, early = window.mean(signal, FOUR_MIN), window.early(signal)
        usable = settled & np.isfinite(mean) & np.isfinite(early) & (mean >= early / 2) & (early >= 5)
        if 2 * usable.sum() <= settled.sum() or np.ptp(mean[usable]) < COSTS * mean[usable].max():
            continue
        for by, place in (("slot", window.slot), ("node", window.node_at)):
            groups, member, sizes = np.unique(place[usable], return_inverse=True, return_counts=True)
            if len(groups) < 2 or (len(window.nodes) > 1 and sizes.max() < 2):
                continue
            now, first = (np.bincount(member, of[usable]) / sizes for of in (mean, early))
            alike = (np.abs(mean[usable] - now[member]) <= ALIKE * now[member]).all()
            most, lost = int(now.argmax()), min(1.0 - of.min() / of.max() for of in (now, first))
            if not alike or lost < COSTS or first[most] < 0.97 * first.max():
                continue
            name = f"slot {groups[most]}" if by == "slot" else window.nodes[groups[most]]
            shown = evidence(signal, now.max(), float(np.median(now)))
            contrast = f"the least busy {by} at {now.min():.0f} %"
            words = f"{name} is busiest at {now.max():.0f} %", shown, "so since the start"
            yield matched(
                window, nodes_of(window, usable), window.started_at, *words, contrast=contrast, lost=0.0
            )
            return


def _starting(window: Window) -> Iterable[Match]:
    active = window.active
    waiting = active & ~window.settled
    if not window.starting or not waiting.any():
        return
    since, count, of = float(np.median(window.running_since[active])), int(waiting.sum()), int(active.sum())
    shown, contrast = evidence("gpus_not_busy", count, of), f"{count} of {of} GPUs not yet busy for a minute"
    yield matched(window, nodes_of(window, waiting), since, "starting", shown, contrast=contrast, lost=0.0)


def _cannot_tell(window: Window) -> Iterable[Match]:
    since = ago(window, FOUR_MIN)
    if _training(window) is None:
        return
    slower, busy = slowdown(window, since) or 0.0, window.gpu("util_pct", FOUR_MIN)[:, window.active] >= 20
    # Sequences of different lengths make single minutes slow; in an evaluation most GPUs rest.
    if slower < 0.1 or busy.mean() < 0.9 or not _each_minute_slower(window):
        return
    shown = evidence("bytes_or_steps", 100 * (1 - slower), 100, "%")
    words = f"slower by {100 * slower:.0f} %", shown, "cannot tell which rank"
    yield matched(window, ALL, since, *words, lost=0.0)


def _each_minute_slower(window: Window) -> bool:
    """Return whether less moved in each of the last four minutes than usually."""
    for signal in ("nvlink_mb_s", "ib_mb_s", "mem_util_pct", "power_w"):
        usual = float(np.median(np.nan_to_num(window.job(signal, 3600))))
        if usual > 1:
            parts = np.array_split(np.nan_to_num(window.job(signal, FOUR_MIN)), 4)
            return max(float(part.mean()) for part in parts) < 0.95 * usual
    return False


# fmt: off
RULES = (
    Rule("slow_gpu", "One GPU is slower than its peers, and nothing holds its clock down", WASTE, ODD_ONE,
         ("util_pct", "mem_util_pct"), "4 min",
         "works for 9 % more of the time than its peers in each of 4 minutes, and the job got 7 % slower",
         "Minder (4 min), PRISM (equal GPUs differ by up to 14 % in one GEMM), MegaScale (0.5 % of machines)",
         "Leave {node} out and see whether the job gets faster; run a GEMM benchmark on {gpu}",
         "In lock-step, all GPUs wait for the slowest, which waits least and so is busier than the others.",
         "The busiest GPU changes, as with experts or packed sequences, or the job is no slower.",
         "A rank with more work, as the last stage of a pipeline, looks the same.",
         _slow_gpu),
    Rule("input_straggler", "One node or rank waits for input, and the others wait for it", WASTE, ODD_ONE,
         ("util_pct", "processes"), "4 min",
         "utilisation 7 points below the peers', which spin at 90 % or more, and the job got 7 % slower",
         "TraceML, TraceLens issue 599; the thresholds are our own",
         "Check data, disk and CPUs of {gpu}: try more loader workers or a local copy, or leave {node} out",
         "GPUs that wait in a collective look busy. The one that they wait for doesn't.",
         "All GPUs idle alike, the job is no slower, or the GPU does nothing at all, as while it compiles.",
         "A rank that does other work on the CPU, such as logging, looks the same.", _input_straggler),
    Rule("uneven_stages", "Some ranks have had less to do since the start, alike on all nodes", NOTE, APART,
         ("util_pct", "mem_util_pct"), "4 min",
         "slots or nodes whose means differ by 9 % since the start, while the GPUs within each are alike",
         "ByteDance's what-if analysis (arXiv 2505.05713): imbalance is more frequent than bad hardware",
         "Distribute the layers differently, or use more microbatches",
         "Pipeline stages with fewer layers wait for the others. No GPU is at fault.",
         "The difference began later, or a single GPU differs.",
         "A node that was slow from the start looks like a stage that has more work.", _uneven),
    Rule("starting", "The job is starting", NOTE, APART, ("util_pct", "processes"), "at once",
         "a GPU with a process hasn't been 20 % busy for 60 s yet, for at most 10 min",
         "Aegis, DLRover (first steps take minutes)",
         "Wait: the rules for slow jobs begin once all GPUs have been busy",
         "Loading, compiling and the first steps take minutes and look like faults.",
         "All GPUs with a process have been busy for a minute.",
         "A rank that never starts looks the same for 10 min.", _starting, True),
    Rule(CANNOT_TELL, "Something is slow, and the samples don't say which rank", NOTE, UNKNOWN, ("util_pct",),
         "4 min",
         "10 % fewer bytes or steps than in the better minutes of the last hour; no other rule names a cause",
         "Greyhound (changes of 10 % or more)",
         "Ask the job which rank is behind: press A, or run gswarm-tui who; send marks of steps",
         "A slowdown is worth knowing even if no cause is named.",
         "Another rule names the cause, or the job starts, evaluates or saves a checkpoint.",
         "A new phase of training with other batch sizes moves fewer bytes, too.", _cannot_tell),
)
# fmt: on
