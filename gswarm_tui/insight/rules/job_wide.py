"""Rules about what slows or stops all GPUs alike, so that they name no GPU."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gswarm_tui.common.quantities import held, rate
from gswarm_tui.fleet.events import DASK_TASKS, json_object
from gswarm_tui.fleet.findings import FAULT, WASTE, Evidence
from gswarm_tui.insight.ledger import BURST_MB_S, SPINS_PCT, STARVED_PCT, waits_for_input, written
from gswarm_tui.insight.rows import Listing
from gswarm_tui.insight.rule import ALIKE, APART, Match, Rule
from gswarm_tui.insight.rules.hardware import GONE_S
from gswarm_tui.insight.rules.matches import ALL, ago, by_node, evidence, matched, nodes_of, pressure
from gswarm_tui.insight.window import Window

RESTS_PCT = 5.0
"""A GPU that does nothing is at most this busy."""
STUCK_S, RESTS_S = 60.0, 600.0
"""All GPUs have stopped for this long; the longer time if one rests while the others spin."""
STOPPED = {
    "power_w": (0.6, 50.0), "mem_util_pct": (0.2, 5.0), "tensor_active_pct": (0.1, 5.0),
    "nvlink_mb_s": (0.05, 50.0), "ib_mb_s": (0.05, 50.0),
}  # fmt: skip
"""Signals of work: the share of their highest minute below which work has stopped, and the least height
that says anything. A GPU that only spins draws 30 to 50 % of the power."""
FALLEN = 0.1
"""Loss of bytes from which the fabric counts as slow: packed sequences lose up to 4 % over 240 s."""
STALLED_PCT, BLOCKED_PCT, SLOW_MOUNT_MS = 20.0, 20.0, 100.0
"""GPUs this busy starve, while tasks wait for I/O for this share of the time or mounts take this long."""
SCHEDULER_PCT = 30.0
"""Share of their time that threads of Dask's workers have no task, from which it is a finding."""
MOVES_MB_S = 50.0
"""GPUs that exchange less than this don't train together."""
DIP, CHECKPOINT_SHARE = 0.5, 0.06
"""Share of its usual work below which a job is in a dip, and share of the time that is worth a finding."""
_STATISTIC_S, _HOUR_S = 240.0, 3600.0


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
        if not rest.any():
            break
    shown, since = _stopped(window, seconds)
    if len(shown) < 2:
        return
    resting = [window.gpus[at] for at in np.flatnonzero(window.active)[rest][:2].tolist()]
    yield matched(
        *(window, ALL, min(since, ago(window, seconds)), f"{known} GPUs busy without work", shown),
        *(f"{gpu.node}:{gpu.facts.label} is idle" for gpu in resting),
        contrast=f"{shown[0].value:,} {shown[0].unit} instead of {shown[0].peers:,}",
        lost=float(window.active.sum()),
    )


def _stopped(window: Window, seconds: float) -> tuple[tuple[Evidence, ...], float]:
    """Return the signals of work, none if one goes on, and since when they have stopped."""
    shown, since = tuple[Evidence, ...](), window.now
    for signal, (share, least) in STOPPED.items():
        series, before = window.job(signal, _HOUR_S), window.highest(signal)
        now = _mean(window.job(signal, seconds))
        if np.isnan(now) or not before >= least:
            continue
        limit = max(share * before, 2.5 if signal.endswith("_pct") else 0.0)
        # One GPU that works, as in an evaluation, hides in the mean of all.
        among = slice(None) if signal == "ib_mb_s" else window.active
        most = np.nanmax(window.mean(signal, seconds)[among], initial=0.0)
        if most > limit:
            # Work that draws little is near what spinning draws.
            if signal == "power_w":
                continue
            return (), since
        moving = np.flatnonzero(series > limit)
        last = int(moving[-1]) if moving.size else -1
        since = min(since, window.now - (len(series) - 1 - last) * window.step_s)
        shown += evidence(signal, now, before)
    return shown, since


def _fabric(window: Window) -> Iterable[Match]:
    signal = "mem_util_pct" if window.highest("mem_util_pct") >= 5 else "power_w"
    before, minutes, noise = _before_and_now(window, "ib_mb_s")
    now = _mean(minutes)
    fallen = before >= MOVES_MB_S and now <= before - max(FALLEN * before, noise)
    # A pause of a minute or two, as for an evaluation, takes nearly all bytes of some minutes only.
    if not fallen or not (0.4 * before <= minutes.min() and minutes.max() <= (1 - FALLEN / 2) * before):
        return
    # GPUs that compute more between two exchanges, or more slowly at lower clocks, move less, too.
    worked, works, _ = _before_and_now(window, signal)
    clocked, clocks, _ = _before_and_now(window, "sm_clock_mhz")
    waits = (window.mean("util_pct", _STATISTIC_S)[window.active] >= SPINS_PCT).all()
    if not waits or not _mean(works) <= 0.95 * worked or _mean(clocks) < 0.97 * clocked:
        return
    # In lock-step, a GPU that holds up all others waits least: then that one is the cause.
    ahead, slower = (
        (window.mean(name, _STATISTIC_S) / window.peers_of(name, _STATISTIC_S) - 1)[window.active]
        for name in (signal, "sm_clock_mhz")
    )
    alone = np.nanmax(ahead, initial=0.0) > 0.07 or np.nanmin(slower, initial=0.0) < -0.05
    if alone or _writes(window, _STATISTIC_S):
        return
    since = window.now - (window.job("ib_mb_s", 2 * _STATISTIC_S) < (before + now) / 2).sum() * window.step_s
    shown = *evidence("ib_mb_s", now, before), *evidence(signal, _mean(works), worked)
    words, contrast = f"{rate(now)} between nodes", f"{rate(before)} before"
    lost = (1 - _mean(works) / worked) * float(window.active.sum())
    detail = "all GPUs wait alike"
    yield matched(window, ALL, float(since), words, shown, detail, contrast=contrast, lost=lost)


def _before_and_now(window: Window, signal: str) -> tuple[float, npt.NDArray[np.float64], float]:
    """Return what the job usually had in the hour before, its means of the last four minutes, and the noise.

    The mean of four minutes seldom differs by more than the noise: by four standard deviations, estimated
    from the median deviation of single minutes.
    """
    steps = max(1, len(window.job(signal, 60)))
    # What the job did before a restart may be another configuration.
    series = window.job(signal, _HOUR_S)[-max(steps, window.started_steps) :]
    minutes = np.array([_mean(part) for part in series[len(series) % steps :].reshape(-1, steps)])
    before, now = minutes[:-5], minutes[-4:]
    # Starts and pauses are no work; while a finding is open, the part of the hour before it has to count.
    before = before[before >= 0.3 * np.nanmax(before, initial=0.0)]
    if len(before) < 2:
        return np.nan, now, np.nan
    if ("fabric", None, None) in window.open:
        return float(np.percentile(before, 75)), now, 0.0
    usual = float(np.median(before))
    # The median deviation of few minutes is mostly too small.
    deviation = float(np.median(np.abs(before - usual))) * (1 + 4 / len(before))
    return usual, now, 2 * 1.48 * deviation


def _storage(window: Window) -> Iterable[Match]:
    util = window.gpu("util_pct", STUCK_S)
    low = window.holds(util < STALLED_PCT, np.isfinite(util), STUCK_S) & window.active
    if not low.any() or _writes(window, STUCK_S) or not _has_run(window):
        return
    waits = np.fmax(pressure(window, "io", STUCK_S), window.mean("cpu_iowait_pct", STUCK_S)) >= BLOCKED_PCT
    own, node = window.listed.own, window.node_at[window.listed.column]
    blocked = own & np.array([one.state == "D" for one in window.listed.samples], dtype=bool)
    stuck, all_own = (np.bincount(node, of, len(window.nodes)) for of in (blocked, own))
    waits |= 2 * stuck >= np.maximum(1, all_own)
    slowest = np.array([_mount_ms(window.mounts.get(name, {})) for name in window.nodes])
    waits |= slowest >= SLOW_MOUNT_MS
    # A node counts if all of its GPUs starve; in lock-step the GPUs of all other nodes wait, too.
    starve = window.active & waits[window.node_at] & (by_node(window, window.active & ~low) == 0)
    nodes, means = nodes_of(window, starve), window.mean("util_pct", STUCK_S)[window.active]
    if len(nodes) >= 2:
        shown = evidence("util_pct", _mean(means))
        shown += evidence("psi_io_pct", _mean(pressure(window, "io", STUCK_S)))
        shown += evidence("mount_ms", slowest.max() or np.nan)
        words = f"GPUs {_mean(means):.0f} % busy", shown, f"tasks of {len(nodes)} nodes wait for storage"
        lost = (1 - float(np.nanmin(means)) / 100) * len(means)
        yield matched(window, nodes, ago(window, STUCK_S), *words, lost=lost)


def _mount_ms(mounts: Listing) -> float:
    """Return the longest mean time of reads and writes of a node's network file systems, in ms."""
    times = (one.get(way) or 0.0 for one in mounts.values() for way in ("read_ms", "write_ms"))
    return max(times, default=0.0)


def _has_run(window: Window) -> bool:
    """Return whether all ranks have run for five minutes: loading and compiling are no faults."""
    since = window.running_since[window.active]
    return bool(since.size and since.max() <= ago(window, 300))


def _input(window: Window) -> Iterable[Match]:
    active = window.active
    util = window.mean("util_pct", _STATISTIC_S)[active]
    if not util.size or not (util < STARVED_PCT).all():
        return
    here = np.unique(window.node_at[active])
    busy, blocked, core = waits_for_input(window, _STATISTIC_S)
    parts = np.array_split(window.job("util_pct", _STATISTIC_S), 4)
    steady = blocked[here].all() or min(_mean(part) for part in parts if len(part)) >= RESTS_PCT
    fed = (busy | blocked)[here].all() and not _writes(window, _STATISTIC_S)
    if not fed or not steady or not _trains(window):
        return
    waits = _mean(window.mean("cpu_iowait_pct", _STATISTIC_S)[here])
    numbers = {"util_pct": _mean(util), "cpu_busiest_pct": core, "cpu_iowait_pct": waits}
    shown = [one for signal, value in numbers.items() for one in evidence(signal, value)]
    words, lost = f"{_mean(util):.0f} % busy", (1 - _mean(util) / 100) * len(util)
    detail = "tasks wait for I/O" if blocked[here].any() else "CPUs busy"
    yield matched(window, ALL, ago(window, _STATISTIC_S), words, shown, detail, lost=lost)


def _scheduler(window: Window) -> Iterable[Match]:
    event = next((one for one in reversed(window.events) if one.message == DASK_TASKS), None)
    util = window.mean("util_pct", STUCK_S)[window.active]
    if event is None or event.at < ago(window, STUCK_S) or not (util.size and util.mean() < STARVED_PCT):
        return
    values = json_object(event.detail)
    idle, work_s, tasks = (values.get(f"dask_{name}") for name in ("idle_pct", "work_s", "tasks"))
    if not isinstance(idle, int | float) or not isinstance(work_s, int | float) or not 0 < work_s < 1e6:
        return
    if SCHEDULER_PCT <= idle <= 100:
        words = f"Dask's workers {idle:.0f} % without a task", evidence("dask_idle_pct", idle)
        detail = f"{tasks:,} tasks in {held(work_s)}" if isinstance(tasks, int) else ""
        since, lost = max(window.started_at, event.at - work_s), idle / 100 * len(util)
        contrast = f"GPUs {_mean(util):.0f} % busy"
        yield matched(window, ALL, since, *words, detail, contrast=contrast, lost=lost, lasts=False)


def _trains(window: Window) -> bool:
    """Return whether the GPUs exchange bytes; without a known exchange, whether the job is past its start."""
    exchange = [(window.highest(name), window.job(name, _STATISTIC_S)) for name in ("nvlink_mb_s", "ib_mb_s")]
    known = [_mean(now) >= max(MOVES_MB_S, 0.05 * high) for high, now in exchange if high >= MOVES_MB_S]
    return any(known) if known else _has_run(window)


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
    long = float(np.median(parts))
    # One sample in half a minute doesn't tell how long a dip of one sample lasts.
    exact = window.step_s <= 15 * window.scale or float(np.mean(parts)) >= 2
    if long / period > CHECKPOINT_SHARE and exact:
        since, long_s = window.now - (len(work) - int(starts[0])) * window.step_s, long * window.step_s
        signal = f"checkpoints of {long_s:.0f} s every {period * window.step_s:.0f} s"
        shown = evidence("checkpoint_s", long_s) + evidence("written_mb_s", _mean(writes[burst]))
        yield matched(window, ALL, since, signal, shown, lost=long / period * float(window.active.sum()))


# fmt: off
RULES = (
    Rule("hang", "All GPUs spin and none works", FAULT, ALIKE, ("util_pct", "mem_util_pct", "power_w"),
         "60 s",
         "all GPUs ≥ 90 % busy, but power, memory utilisation and traffic are far below their earlier peaks",
         "marin#7344, nccl#2428, DLRover (tensor ≤ 0.001)",
         "Ask the job which rank is behind: press A, or run gswarm-tui who",
         "A rank that waits in a collective spins: the GPU looks busy, while nothing is computed or moved.",
         "Any GPU works, as in an evaluation. With idle GPUs among those that spin, for the first 10 min.",
         "A dead fabric looks the same. A job that never worked isn't recognised as hung.", _hang),
    Rule("storage_stall", "Storage stalls several nodes", WASTE, ALIKE, ("util_pct", "psi_io_pct"), "60 s",
         "GPUs < 20 % busy on 2 nodes or more whose tasks wait for I/O, or whose mounts take 100 ms",
         "our own threshold; pressure (PSI) of the kernel",
         "Tell the site which file system stalls, and copy the data to local disks; the GPUs are fine",
         "Ranks that wait for a shared file system feed no GPU.",
         "The job writes more than 50 MB/s, as in a checkpoint, or started less than 5 min ago.",
         "Local disks of several nodes that stall at the same time look like shared storage.", _storage),
    Rule("scheduler_waits", "GPUs idle while Dask's scheduler hands out tasks", WASTE, ALIKE,
         ("util_pct", "events"), "60 s",
         "workers without a task for 30 % of the time in which tasks are unfinished, GPUs < 50 % busy",
         "our own",
         "Make fewer and larger tasks: larger chunks, fewer partitions, several steps in one function",
         "The scheduler needs up to a millisecond for each task; workers that finish sooner wait for it.",
         "The scheduler doesn't run with --preload gswarm_tui.runs.dask_marks.",
         "Work that can't be divided, such as a last step on one worker, looks the same.", _scheduler, True),
    Rule("input_bound", "All GPUs wait for input", WASTE, ALIKE,
         ("util_pct", "cpu_busiest_pct", "cpu_iowait_pct"), "4 min",
         "all GPUs < 50 % busy, with a core ≥ 95 % in more than 5 % of the time, or tasks that wait for I/O",
         "Kineto, TraceML (≥ 10 %)",
         "Give the data loader more workers and prefetch, or copy the data to local disks",
         "The GPUs compute faster than the processes on the CPU can feed them.",
         "The GPUs exchange no bytes, as in evaluation, or the job compiles.",
         "A server that polls for requests and gets few looks the same.", _input),
    Rule("fabric", "The network between nodes slows all GPUs alike", WASTE, ALIKE,
         ("util_pct", "ib_mb_s", "mem_util_pct"), "4 min",
         "bytes between nodes fell by 10 % or more, and work by 5 %, alike on all GPUs at the same clocks",
         "Minder; Greyhound (10 %)",
         "Ask the site about the fabric, or run on fewer switches: nothing in the job explains the loss",
         "Jobs share switches. Where these are congested, all ranks wait for data.",
         "One GPU waits less than the others, or clocks fell: that is then the cause.",
         "A job that begins a phase with less work and fewer bytes at full utilisation looks the same.",
         _fabric),
    Rule("checkpoint", "Checkpoints take much of the time", WASTE, APART,
         ("mem_util_pct", "disk_write_mb_s", "processes"), "1 h",
         "3 or more regular pauses with writes, below half of the usual work, that take over 6 % of the time",
         "Meta RSC (Daly-Young interval); 6 % is our own threshold",
         "Write checkpoints asynchronously, or less often",
         "While all ranks write a checkpoint, no GPU works.",
         "The GPUs work on while the job writes, or checkpoints take less than 6 %.",
         "An evaluation that regularly writes as much looks the same.", _checkpoints),
)
# fmt: on
