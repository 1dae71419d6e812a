"""Rules about what slows or stops all GPUs alike, so that they name no GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gswarm_agent.metrics import GPU_BY_NAME, HOST_BY_NAME
from gswarm_tui.common.quantities import rate
from gswarm_tui.fleet.findings import FAULT, WASTE, Evidence
from gswarm_tui.insight.ledger import BURST_MB_S, STARVED_PCT, waits_for_input, written
from gswarm_tui.insight.rule import ALIKE, APART, Match, Rule
from gswarm_tui.insight.rules.hardware import GONE_S
from gswarm_tui.insight.window import Window

SPINS_PCT, RESTS_PCT = 90.0, 5.0
"""A GPU whose rank waits in a collective is 95 to 100 % busy (marin#7344); noise lowers single steps."""
STUCK_S, RESTS_S = 60.0, 600.0
"""All GPUs have stopped for this long; the longer time if one rests while the others spin."""
STOPPED = {
    "power_w": (0.6, 50.0),
    "mem_util_pct": (0.2, 5.0),
    "tensor_active_pct": (0.1, 5.0),
    "nvlink_mb_s": (0.05, 50.0),
    "ib_mb_s": (0.05, 50.0),
}
"""Signals of work: the share of their highest minute below which work has stopped, and the least height
that says anything. A GPU that only spins draws 30 to 50 % of the power."""
STILL_DRAWN = 0.85
"""A share of the power that says nothing: work that draws little is near what spinning draws."""
FALLEN = 0.1
"""Loss of bytes from which the fabric counts as slow: packed sequences lose up to 4 % over 240 s."""
STALLED_PCT, BLOCKED_PCT, SLOW_MOUNT_MS = 20.0, 20.0, 100.0
"""GPUs this busy starve, while tasks wait for I/O for this share of the time or mounts take this long."""
MOVES_MB_S = 50.0
"""GPUs that exchange less than this don't train together."""
DIP, CHECKPOINT_SHARE = 0.5, 0.06
"""Share of its usual work below which a job is in a dip, and share of the time that is worth a finding."""
_STATISTIC_S, _HOUR_S = 240.0, 3600.0


def _match(
    window: Window,
    since: float,
    signal: str,
    evidence: Iterable[Evidence | None],
    lost: float,
    *details: str,
    contrast: str = "",
    nodes: tuple[str, ...] = (),
) -> Match:
    """Return a match that names no GPU; ``lost`` is the share of the job's work."""
    active = window.active
    nodes = nodes or tuple(window.nodes[at] for at in np.unique(window.node_at[active]).tolist())
    known, lost = tuple(one for one in evidence if one is not None), lost * float(active.sum())
    return Match(None, None, since, signal, known, contrast, details, lost, nodes)


def _evidence(signal: str, value: float, before: float | None = None) -> Evidence | None:
    """Return a signal's value as evidence, None if it isn't measured."""
    metric = GPU_BY_NAME.get(signal) or HOST_BY_NAME.get(signal)
    unit = metric.unit if metric is not None else "MB/s"
    return None if np.isnan(value) else Evidence(signal, round(value), before and round(before), unit)


def _mean(values: npt.NDArray[np.floating]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else np.nan


def _writes(window: Window, seconds: float) -> bool:
    """Return whether the job writes for most of the time; a checkpoint is a burst."""
    return bool((written(window, seconds) > BURST_MB_S).mean() > 0.5)


def _hang(window: Window) -> Iterable[Match]:
    # The others wait for a rank that has ended: it may restart, and if not, it is named itself.
    if (window.now - window.ran_at[~window.active] < GONE_S * window.scale).any():
        return
    steps_s = 3 * window.step_s / window.scale
    for seconds in (max(STUCK_S, steps_s), max(RESTS_S, steps_s)):
        util = window.gpu("util_pct", seconds)[:, window.active]
        measured = np.isfinite(util)
        spin = window.holds(util >= SPINS_PCT, measured, seconds)
        rest = window.holds(util <= RESTS_PCT, measured, seconds)
        known = int(measured.any(axis=0).sum())
        if known < 2 or spin.sum() < known / 2 or (spin | rest).sum() < known:
            return
        if not rest.any() or seconds >= RESTS_S:
            break
    evidence, since = _stopped(window, seconds)
    if len(evidence) < 2:
        return
    resting = [window.gpus[at] for at in np.flatnonzero(window.active)[rest][:2].tolist()]
    yield _match(
        window,
        min(since, window.now - seconds * window.scale),
        f"{known} GPUs busy without work",
        evidence,
        1.0,
        *(f"{gpu.node}:{gpu.facts.label} is idle" for gpu in resting),
        contrast=f"{evidence[0].value:,} {evidence[0].unit} instead of {evidence[0].peers:,}",
    )


def _stopped(window: Window, seconds: float) -> tuple[list[Evidence], float]:
    """Return the signals of work, none if one goes on, and since when they have stopped."""
    evidence: list[Evidence] = []
    since = window.now
    for signal, (share, least) in STOPPED.items():
        series, before = window.job(signal, _HOUR_S), window.highest(signal)
        found = _evidence(signal, _mean(window.job(signal, seconds)), before)
        if found is None or not before >= least:
            continue
        limit = max(share * before, 2.5 if found.unit == "%" else 0.0)
        # One GPU that works, as in an evaluation, hides in the mean of all.
        among = slice(None) if signal == "ib_mb_s" else window.active
        most = np.nanmax(window.mean(signal, seconds)[among], initial=0.0)
        if signal == "power_w" and limit < most <= STILL_DRAWN * before:
            continue
        if most > limit:
            return [], since
        moving = np.flatnonzero(series > limit)
        last = int(moving[-1]) if moving.size else -1
        since = min(since, window.now - (len(series) - 1 - last) * window.step_s)
        evidence.append(found)
    return evidence, since


def _fabric(window: Window) -> Iterable[Match]:
    signal = "mem_util_pct" if window.highest("mem_util_pct") >= 5 else "power_w"
    before, minutes = _before_and_now(window, "ib_mb_s")
    now = _mean(minutes)
    fallen = before >= MOVES_MB_S and now <= (1 - FALLEN) * before
    # A pause of a minute or two, as for an evaluation, takes nearly all bytes of some minutes only.
    if not fallen or not (0.4 * before <= minutes.min() and minutes.max() <= (1 - FALLEN / 2) * before):
        return
    # GPUs that compute more between two exchanges, or more slowly at lower clocks, move less, too.
    worked, works = _before_and_now(window, signal)
    clocked, clocks = _before_and_now(window, "sm_clock_mhz")
    waits = (window.mean("util_pct", _STATISTIC_S)[window.active] >= SPINS_PCT).all()
    if not waits or not _mean(works) <= 0.95 * worked or _mean(clocks) < 0.97 * clocked:
        return
    # In lock-step, a GPU that holds up all others waits least: then that one is the cause.
    odd = [
        (values / window.peers(values) - 1)[window.active]
        for values in (window.mean(name, _STATISTIC_S) for name in (signal, "sm_clock_mhz"))
    ]
    alone = np.nanmax(odd[0], initial=0.0) > 0.07 or np.nanmin(odd[1], initial=0.0) < -0.05
    if alone or _writes(window, _STATISTIC_S):
        return
    yield _match(
        window,
        window.now
        - int((window.job("ib_mb_s", 2 * _STATISTIC_S) < (before + now) / 2).sum()) * window.step_s,
        f"{rate(now)} between nodes",
        (_evidence("ib_mb_s", now, before), _evidence(signal, _mean(works), worked)),
        1 - _mean(works) / worked,
        "all GPUs wait alike",
        contrast=f"{rate(before)} before",
    )


def _before_and_now(window: Window, signal: str) -> tuple[float, npt.NDArray[np.float64]]:
    """Return what the job usually had in the hour before, and its means of the last four minutes."""
    steps = max(1, len(window.job(signal, 60)))
    series = window.job(signal, _HOUR_S)
    minutes = np.array([_mean(part) for part in series[len(series) % steps :].reshape(-1, steps)])
    before, now = minutes[:-5], minutes[-4:]
    # Starts and pauses are no work; while a finding is open, the part of the hour before it has to count.
    before = before[before >= 0.3 * np.nanmax(before, initial=0.0)]
    usual = 75 if ("fabric", None, None) in window.open else 50
    return (float(np.percentile(before, usual)) if len(before) >= 2 else np.nan), now


def _stalled(window: Window) -> list[str]:
    """Return the nodes whose GPUs have starved for a minute while their tasks wait for storage."""
    util = window.gpu("util_pct", STUCK_S)
    low = window.holds(util < STALLED_PCT, np.isfinite(util), STUCK_S) & window.active
    if not low.any() or _writes(window, STUCK_S):
        return []
    waits = np.fmax(_pressure(window, STUCK_S), window.mean("cpu_iowait_pct", STUCK_S)) >= BLOCKED_PCT
    blocked = np.array([one.state == "D" for one in window.listed.samples], dtype=bool)
    of_node = np.where(window.listed.own, window.node_at[window.listed.column], -1)
    found = []
    for at in np.unique(window.node_at[low]).tolist():
        name, stuck = window.nodes[at], blocked[of_node == at]
        slow = _slowest(window, name) >= SLOW_MOUNT_MS
        starved = low[window.active & (window.node_at == at)].all()
        if starved and (waits[at] or slow or (stuck.size and stuck.mean() >= 0.5)):
            found.append(name)
    return found


def _pressure(window: Window, seconds: float) -> npt.NDArray[np.float64]:
    return np.fmax(window.mean("psi_io_pct", seconds), window.mean("job_psi_io_pct", seconds))


def _slowest(window: Window, node: str) -> float:
    """Return the longest mean time of reads and writes of a node's network file systems, in ms."""
    mounts = window.mounts.get(node, {}).values()
    return max((one.get(way) or 0.0 for one in mounts for way in ("read_ms", "write_ms")), default=0.0)


def _storage(window: Window) -> Iterable[Match]:
    nodes = tuple(_stalled(window))
    if len(nodes) < 2 or not _has_run(window, 300.0):
        return
    util = window.mean("util_pct", STUCK_S)[window.active]
    slowest = max(_slowest(window, name) for name in nodes)
    yield _match(
        window,
        window.now - STUCK_S * window.scale,
        f"GPUs {_mean(util):.0f} % busy",
        (
            _evidence("util_pct", _mean(util)),
            _evidence("psi_io_pct", _mean(_pressure(window, STUCK_S))),
            Evidence("mount_ms", round(slowest), None, "ms") if slowest else None,
        ),
        # In lock-step the GPUs of all other nodes wait, too.
        1 - float(np.nanmin(util)) / 100,
        f"tasks of {len(nodes)} nodes wait for storage",
        nodes=nodes,
    )


def _has_run(window: Window, seconds: float) -> bool:
    """Return whether all ranks have run for a while: loading and compiling are no faults."""
    since = window.running_since[window.active]
    return bool(since.size and window.now - since.max() >= seconds * window.scale)


def _input(window: Window) -> Iterable[Match]:
    active = window.active
    util = window.mean("util_pct", _STATISTIC_S)[active]
    if not util.size or not (util < STARVED_PCT).all() or len(_stalled(window)) >= 2:
        return
    here = np.unique(window.node_at[active])
    busy, blocked, core = waits_for_input(window, _STATISTIC_S)
    parts = np.array_split(window.job("util_pct", _STATISTIC_S), 4)
    steady = blocked[here].all() or min(_mean(part) for part in parts if len(part)) >= RESTS_PCT
    fed = (busy | blocked)[here].all() and not _writes(window, _STATISTIC_S)
    if not fed or not steady or not _trains(window):
        return
    yield _match(
        window,
        window.now - _STATISTIC_S * window.scale,
        f"all GPUs {_mean(util):.0f} % busy",
        (
            _evidence("util_pct", _mean(util)),
            _evidence("cpu_busiest_pct", core),
            _evidence("cpu_iowait_pct", _mean(window.mean("cpu_iowait_pct", _STATISTIC_S)[here])),
        ),
        1 - _mean(util) / 100,
        "tasks wait for I/O" if blocked[here].any() else "CPUs busy",
    )


def _trains(window: Window) -> bool:
    """Return whether the GPUs exchange bytes; without a known exchange, whether the job is past its start."""
    exchange = [(window.highest(name), window.job(name, _STATISTIC_S)) for name in ("nvlink_mb_s", "ib_mb_s")]
    known = [_mean(now) >= max(MOVES_MB_S, 0.05 * high) for high, now in exchange if high >= MOVES_MB_S]
    return any(known) if known else _has_run(window, 300.0)


def _checkpoints(window: Window) -> Iterable[Match]:
    signal = "mem_util_pct" if window.highest("mem_util_pct") >= 5 else "power_w"
    work, writes = window.job(signal, _HOUR_S), written(window, _HOUR_S)
    burst = writes >= max(BURST_MB_S, 3 * float(np.nanmedian(np.nan_to_num(writes))))
    if not window.active.any() or not burst.any() or not np.isfinite(work).any():
        return
    usual = float(np.nanpercentile(work, 75))
    edges = np.flatnonzero(np.diff(np.concatenate(([0], work < DIP * usual, [0])).astype(np.int8)))
    dips = [(a, b) for a, b in edges.reshape(-1, 2).tolist() if burst[max(0, a - 1) : b + 2].any()]
    starts = np.array([a for a, _ in dips])
    if len(starts) < 3:
        return
    gaps = np.diff(starts)
    period = float(np.median(gaps))
    if (np.abs(gaps - period) <= 0.3 * period).mean() < 0.7 or len(work) - starts[-1] > 1.5 * period:
        return
    # The edges of a dip are parts of steps, so its loss counts from the step before to that after it.
    lost = np.clip(1 - work / usual, 0, 1)
    parts = [float(np.nansum(lost[max(0, a - 1) : b + 1])) for a, b in dips]
    # The median spares a dip that is longer for another reason, such as an evaluation.
    share = float(np.median(parts)) / period
    # One sample in half a minute doesn't tell how long a dip of one sample lasts.
    if share > CHECKPOINT_SHARE and (window.step_s <= 15 * window.scale or float(np.mean(parts)) >= 2):
        every_s, long_s = period * window.step_s, float(np.median(parts)) * window.step_s
        yield _match(
            window,
            window.now - (len(work) - int(starts[0])) * window.step_s,
            f"checkpoints of {long_s:.0f} s every {every_s:.0f} s",
            (
                Evidence("checkpoint_s", round(long_s), None, "s"),
                _evidence("written_mb_s", _mean(writes[burst])),
            ),
            share,
        )


RULES = (
    Rule(
        "hang",
        "All GPUs spin and none works",
        FAULT,
        ALIKE,
        ("util_pct", "mem_util_pct", "power_w"),
        "60 s",
        "all GPUs ≥ 90 % busy, while power, memory utilisation and traffic are far below their earlier peaks",
        "marin#7344, nccl#2428, DLRover (tensor ≤ 0.001)",
        "Find out where each rank waits: read the NCCL log, or run py-spy dump on a few ranks",
        "A rank that waits in a collective spins: the GPU looks busy, while nothing is computed or moved.",
        "Any GPU works, as in an evaluation. With idle GPUs among those that spin, for the first 10 min.",
        "A dead fabric looks the same. A job that never worked isn't recognised as hung.",
        _hang,
    ),
    Rule(
        "storage_stall",
        "Storage stalls several nodes",
        WASTE,
        ALIKE,
        ("util_pct", "psi_io_pct"),
        "60 s",
        "GPUs < 20 % busy on 2 nodes or more whose tasks wait for I/O",
        "our own threshold; pressure (PSI) of the kernel",
        "Tell the site which file system stalls, and copy the data to local disks; the GPUs are fine",
        "Ranks that wait for a shared file system feed no GPU.",
        "The job writes more than 50 MB/s, as in a checkpoint, or started less than 5 min ago.",
        "Local disks of several nodes that stall at the same time look like shared storage.",
        _storage,
    ),
    Rule(
        "input_bound",
        "All GPUs wait for input",
        WASTE,
        ALIKE,
        ("util_pct", "cpu_busiest_pct", "cpu_iowait_pct"),
        "4 min",
        "all GPUs < 50 % busy, with a core ≥ 95 % in more than 5 % of the time, or tasks that wait for I/O",
        "Kineto, TraceML (≥ 10 %)",
        "Give the data loader more workers and prefetch, or copy the data to local disks",
        "The GPUs compute faster than the processes on the CPU can feed them.",
        "The GPUs exchange no bytes, as in evaluation, or the job compiles.",
        "A server that polls for requests and gets few looks the same.",
        _input,
    ),
    Rule(
        "fabric",
        "The network between nodes slows all GPUs alike",
        WASTE,
        ALIKE,
        ("util_pct", "ib_mb_s", "mem_util_pct"),
        "4 min",
        "bytes between nodes fell by 10 % or more, and work by 5 %, alike on all GPUs at the same clocks",
        "Minder; Greyhound (10 %)",
        "Ask the site about the fabric, or run on fewer switches: nothing in the job explains the loss",
        "Jobs share switches. Where these are congested, all ranks wait for data.",
        "One GPU waits less than the others, or clocks fell: that is then the cause.",
        "A job that begins a phase with less work and fewer bytes at full utilisation looks the same.",
        _fabric,
    ),
    Rule(
        "checkpoint",
        "Checkpoints take much of the time",
        WASTE,
        APART,
        ("mem_util_pct", "disk_write_mb_s", "processes"),
        "1 h",
        "at least 3 regular pauses with writes, below half of the usual work, that take over 6 % of the time",
        "Meta RSC (Daly-Young interval); 6 % is our own threshold",
        "Write checkpoints asynchronously, or less often",
        "While all ranks write a checkpoint, no GPU works.",
        "The GPUs work on while the job writes, or checkpoints take less than 6 %.",
        "An evaluation that regularly writes as much looks the same.",
        _checkpoints,
    ),
)
