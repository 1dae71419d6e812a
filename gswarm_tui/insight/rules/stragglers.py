"""Rules about the GPU or node that all others wait for, and about stages that differ from the start."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME, PROCESS_COLUMNS
from gswarm_tui.fleet.findings import CANNOT_TELL, NOTE, WASTE, Evidence
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import COSTS, WORK, leads, slowdown, working
from gswarm_tui.insight.rule import APART, ODD_ONE, UNKNOWN, Match, Rule
from gswarm_tui.insight.window import Mask, Window

FOUR_MIN = 240.0
TOO_FAR = 0.6
"""A GPU that works while its peers hardly do isn't slow: it evaluates or saves, or the peers hang."""
SLOWER = 0.07
"""A loss of the job from which a straggler has an effect; a little less than what it costs."""
FROM_START = 0.12
"""A lead that was there from the start, when there is no slowdown to compare with, has to be larger."""
WAITING_PCT, FED_PCT, STARVED_POINTS = 90.0, 10.0, 7.0
"""The others wait at this utilisation; the one without input has that many points less, but isn't idle."""
ALIKE = 0.05
"""GPUs of one slot or node whose means differ by at most this share do the same."""
POWER_LEAD = 0.04
"""A GPU that waits for others draws about half its power, so that this is a loss of 8 %."""
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


def _early_lead(window: Window, signal: str) -> Floats:
    early = window.early(signal)
    lead: Floats = np.nan_to_num(1.0 - window.peers(early, window.settled) / early)
    return lead


def _slow_gpu(window: Window) -> Iterable[Match]:
    settled = _training(window)
    if settled is None:
        return
    signal, lead = leads(window, FOUR_MIN)
    # While the slow one draws its usual power, those that wait for it draw less, though not by as much.
    least, usual, by_power = COSTS - 0.005, np.ones(len(lead)), not (lead >= COSTS - 0.005).any()
    if by_power:
        signal, least, usual = "power_w", POWER_LEAD, window.early("power_w")
        power = window.mean(signal, FOUR_MIN) / usual
        lead = 1.0 - window.peers(power, settled) / power
        clock, util = window.mean("sm_clock_mhz", FOUR_MIN), window.mean("util_pct", FOUR_MIN)
        # A GPU also draws less while its clock is held down or its input is late. Few samples are noisy.
        other = (clock < 0.95 * window.peers(clock, settled)) | (util < window.peers(util, settled) - 4)
        few = settled.sum() < 4 or len(window.gpu(signal, FOUR_MIN)) < 24
        if few or not (lead >= least).any() or (settled & other).any():
            return
    early, since = _early_lead(window, signal), window.now - FOUR_MIN * window.scale
    # What GPUs did from the start, as the stages of a pipeline do, is not what slows the job now.
    gained = lead - np.maximum(0.0, early)
    new = lead >= least if by_power else gained >= least
    ahead = new if new.any() else lead >= least
    if ahead.sum() > max(1, int(settled.sum()) // MOST):
        return
    # Where work is uneven from step to step, as with experts or packed sequences, the leader changes.
    minutes = _minutes(window, signal) / usual
    shares = np.array([1.0 - window.peers(one, settled) / np.where(one > 0, one, np.nan) for one in minutes])
    ahead &= (shares >= least / 3).all(axis=0) & ~(np.median(shares, axis=0) > TOO_FAR)
    slower = slowdown(window, since)
    busy = window.mean(signal, FOUR_MIN)
    peers = window.peers(busy, settled)
    comparable = len(window.nodes) >= 4 or window.pp > 1
    spinning = window.peers(window.mean("util_pct", FOUR_MIN), settled)
    clock = window.mean("sm_clock_mhz", FOUR_MIN)
    clocks = window.peers(clock, settled)
    for at in np.flatnonzero(ahead).tolist():
        always = not new[at]
        # Stages without replicas can't be told from a slow GPU, and servers differ by their requests.
        if always and not (comparable and lead[at] >= FROM_START and spinning[at] >= WAITING_PCT):
            continue
        costs = slower >= SLOWER if slower is not None else not by_power
        if not (always or costs or window.is_open("slow_gpu", at)):
            continue
        others = int(settled.sum()) - 1
        unit = "W" if by_power else "%"
        evidence = [Evidence(signal, round(float(busy[at]), 1), round(float(peers[at]), 1), unit)]
        if np.isfinite(clock[at]):
            evidence.append(
                Evidence("sm_clock_mhz", round(float(clock[at])), round(float(clocks[at])), "MHz")
            )
        yield Match(
            window.gpus[at].node,
            at,
            window.started_at if always else since,
            f"waits least: {GPU_BY_NAME[signal].label} {busy[at]:.0f} {unit}",
            tuple(evidence),
            f"the other {others} at {peers[at]:.0f} {unit}",
            ("from the start",) if always else (),
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
    since = window.now - FOUR_MIN * window.scale
    slower = slowdown(window, since)
    for node in np.unique(window.node_at[low]).tolist():
        here = window.node_at == node
        mine: list[int] = np.flatnonzero(low & here).tolist()
        single = len(mine) == 1 and int((settled & here).sum()) > 1
        cost = float(np.median(1.0 - util[mine] / peers[mine]))
        host = _host_evidence(window, node, mine)
        at_once = bool(always[mine].all())
        index = window.gpus[mine[0]].facts.index if single else None
        known = ("input_straggler", window.nodes[node], index) in window.open
        if at_once:
            # Stages of a pipeline also differ from the start; only what the host shows tells them apart.
            if not host:
                continue
        # If the job loses far more than the GPU idles, it isn't this GPU's input that it waits for.
        elif slower is None or not SLOWER - SLOWER * known <= slower <= 2 * cost + 0.2:
            continue
        others = int(settled.sum()) - len(mine)
        yield Match(
            window.nodes[node],
            mine[0] if single else None,
            window.started_at if at_once else since,
            f"GPU busy {np.median(util[mine]):.0f} %",
            (
                Evidence(
                    "util_pct",
                    round(float(np.median(util[mine]))),
                    round(float(np.median(peers[mine]))),
                    "%",
                ),
                *host,
            ),
            f"the other {others} wait at {np.median(peers[mine]):.0f} %",
            tuple(f"{_label(one.metric)} {one.value} {one.unit}".strip() for one in host[:1]),
            lost=cost * others,
        )


def _host_evidence(window: Window, node: int, columns: list[int]) -> list[Evidence]:
    """Return what shows that a node or a rank waits for data or for its CPUs, unlike the others."""
    found = []
    for signal, above in (("job_psi_io_pct", 5), ("psi_io_pct", 5), ("cpu_iowait_pct", 5)):
        values = window.mean(signal, FOUR_MIN)
        others = np.delete(values, node)
        usual = float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0
        if values[node] >= usual + above:
            found.append(Evidence(signal, round(float(values[node])), round(usual), "%"))
    cpu_at = PROCESS_COLUMNS.index("cpu_pct")
    for at in columns:
        for one in window.own_processes(at):
            if one.state == "D":
                found.append(Evidence("state", f"D in {one.wchan}" if one.wchan else "D"))
            elif (one.row[cpu_at] or 0) >= 95:
                found.append(Evidence("cpu_pct", round(one.row[cpu_at] or 0), None, "%"))
    return found


def _label(metric: str) -> str:
    return HOST_BY_NAME[metric].label if metric in HOST_BY_NAME else f"process {metric}"


def _uneven(window: Window) -> Iterable[Match]:
    settled = _training(window)
    if settled is None or settled.sum() < 2:
        return
    for signal in (*WORK[:1], "util_pct"):
        mean, early = window.mean(signal, FOUR_MIN), window.early(signal)
        usable = settled & np.isfinite(mean) & np.isfinite(early) & (mean >= early / 2) & (early >= 5)
        if 2 * usable.sum() <= settled.sum() or np.ptp(mean[usable]) < COSTS * mean[usable].max():
            continue
        for by, place in (("slot", window.slot), ("node", window.node_at)):
            # The GPUs of one group follow each other.
            ordered = np.flatnonzero(usable)[np.argsort(place[usable], kind="stable")]
            _, starts, sizes = np.unique(place[ordered], return_index=True, return_counts=True)
            if len(starts) < 2 or (len(window.nodes) > 1 and sizes.max() < 2):
                continue
            middles = [_medians(of[ordered], starts, sizes) for of in (mean, early)]
            spread = np.maximum.reduceat(mean[ordered], starts) - np.minimum.reduceat(mean[ordered], starts)
            alike = bool((spread <= ALIKE * np.add.reduceat(mean[ordered], starts) / sizes).all())
            lost = [1.0 - middle.min() / middle.max() for middle in middles]
            most = int(middles[0].argmax())
            if not (alike and min(lost) >= COSTS and middles[1][most] >= 0.97 * middles[1].max()):
                continue
            nodes = tuple(dict.fromkeys(window.gpus[at].node for at in np.flatnonzero(usable).tolist()))
            name = (
                f"slot {window.slot[ordered[starts[most]]]}"
                if by == "slot"
                else window.nodes[window.node_at[ordered[starts[most]]]]
            )
            yield Match(
                None,
                None,
                window.started_at,
                f"{name} is busiest at {middles[0].max():.0f} %",
                (
                    Evidence(
                        signal,
                        round(float(middles[0].max())),
                        round(float(np.median(middles[0]))),
                        "%",
                    ),
                ),
                f"the least busy {by} at {middles[0].min():.0f} %",
                ("so since the start",),
                nodes=nodes,
            )
            return


def _medians(values: Floats, starts: npt.NDArray[np.intp], sizes: npt.NDArray[np.intp]) -> Floats:
    """Return the median of each group of values that follow each other."""
    order = np.lexsort((values, np.repeat(np.arange(len(starts)), sizes)))
    middle: Floats = (values[order[starts + (sizes - 1) // 2]] + values[order[starts + sizes // 2]]) / 2
    return middle


def _starting(window: Window) -> Iterable[Match]:
    active = window.active
    waiting = active & ~window.settled
    if not active.any() or not window.starting or not waiting.any():
        return
    nodes = tuple(dict.fromkeys(window.gpus[at].node for at in np.flatnonzero(waiting).tolist()))
    since = float(np.median(window.running_since[active]))
    count, of = int(waiting.sum()), int(active.sum())
    yield Match(
        None,
        None,
        since,
        "starting",
        (Evidence("gpus_not_busy", count, of),),
        f"{count} of {of} GPUs not yet busy for a minute",
        nodes=nodes,
    )


def _cannot_tell(window: Window) -> Iterable[Match]:
    if _training(window) is None:
        return
    since = window.now - FOUR_MIN * window.scale
    slower = slowdown(window, since)
    if slower is None or slower < 0.1 or not _steadily_slower(window):
        return
    nodes = tuple(dict.fromkeys(gpu.node for gpu in window.gpus))
    yield Match(
        None,
        None,
        since,
        f"slower by {100 * slower:.0f} %",
        (Evidence("bytes_or_steps", round(100 * (1 - slower)), 100, "%"),),
        "",
        ("cannot tell which rank",),
        nodes=nodes,
    )


def _steadily_slower(window: Window) -> bool:
    """Return whether each of the last four minutes was slower than usual, and nearly all GPUs were busy.

    Sequences of different lengths make single minutes slow; in an evaluation most GPUs rest.
    """
    busy = window.gpu("util_pct", FOUR_MIN)[:, window.active] >= 20
    for signal in ("nvlink_mb_s", "ib_mb_s", "mem_util_pct", "power_w"):
        usual = float(np.median(np.nan_to_num(window.job(signal, 3600))))
        if usual > 1:
            parts = np.array_split(np.nan_to_num(window.job(signal, FOUR_MIN)), 4)
            return bool(busy.mean() >= 0.9 and max(float(part.mean()) for part in parts) < 0.95 * usual)
    return False


RULES = (
    Rule(
        "slow_gpu",
        "One GPU is slower than its peers, and nothing holds its clock down",
        WASTE,
        ODD_ONE,
        ("util_pct", "mem_util_pct"),
        "4 min",
        "works for 9 % more of the time than its peers in each of 4 minutes, and the job got 7 % slower",
        "Minder (4 min), PRISM (equal GPUs differ by up to 14 % in one GEMM), MegaScale (0.5 % of machines)",
        "Leave {node} out and see whether the job gets faster; run a GEMM benchmark on {gpu}",
        "In lock-step, all GPUs wait for the slowest, which waits least and so is busier than the others.",
        "The busiest GPU changes, as with experts or packed sequences, or the job is no slower.",
        "A rank with more work, as the last stage of a pipeline, looks the same: use diagnose --roles pp=N.",
        _slow_gpu,
    ),
    Rule(
        "input_straggler",
        "One node or rank waits for input, and the others wait for it",
        WASTE,
        ODD_ONE,
        ("util_pct", "processes"),
        "4 min",
        "utilisation 7 points below the peers', which spin at 90 % or more, and the job got 7 % slower",
        "TraceML, TraceLens issue 599; the thresholds are our own",
        "Check data, disk and CPUs of {gpu}: try more loader workers or a local copy, or leave {node} out",
        "GPUs that wait in a collective look busy. The one that they wait for doesn't.",
        "All GPUs idle alike, the job is no slower, or the GPU does nothing at all, as while it compiles.",
        "A rank that does other work on the CPU, such as logging, looks the same.",
        _input_straggler,
    ),
    Rule(
        "uneven_stages",
        "Some ranks have had less to do since the start, alike on all nodes",
        NOTE,
        APART,
        ("util_pct", "mem_util_pct"),
        "4 min",
        "slots or nodes whose means differ by 9 % since the start, while the GPUs within each are alike",
        "ByteDance's what-if analysis (arXiv 2505.05713): imbalance is more frequent than bad hardware",
        "Distribute the layers differently or use more microbatches; diagnose --roles pp=N compares stages",
        "Pipeline stages with fewer layers wait for the others. No GPU is at fault.",
        "The difference began later, or a single GPU differs.",
        "A node that was slow from the start looks like a stage that has more work.",
        _uneven,
    ),
    Rule(
        "starting",
        "The job is starting",
        NOTE,
        APART,
        ("util_pct", "processes"),
        "at once",
        "a GPU with a process hasn't been 20 % busy for 60 s yet, for at most 10 min",
        "Aegis, DLRover (first steps take minutes)",
        "Wait: the rules for slow jobs begin once all GPUs have been busy",
        "Loading, compiling and the first steps take minutes and look like faults.",
        "All GPUs with a process have been busy for a minute.",
        "A rank that never starts looks the same for 10 min.",
        _starting,
        early=True,
    ),
    Rule(
        CANNOT_TELL,
        "Something is slow, and the samples don't say which rank",
        NOTE,
        UNKNOWN,
        ("util_pct",),
        "4 min",
        "10 % fewer bytes or steps than in the better minutes of the last hour; no other rule names a cause",
        "Greyhound (changes of 10 % or more)",
        "Send marks with a value named step, or dump the stacks of a few ranks with py-spy",
        "A slowdown is worth knowing even if no cause is named.",
        "Another rule names the cause, or the job starts, evaluates or saves a checkpoint.",
        "A new phase of training with other batch sizes moves fewer bytes, too.",
        _cannot_tell,
    ),
)
