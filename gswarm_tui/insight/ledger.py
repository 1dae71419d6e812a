"""The ledger: GPU-hours by cause, which add up to 100 %."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.findings import Finding
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.effect import behind_peers
from gswarm_tui.insight.window import OWN_CPU, WRITTEN, Mask, Window

CAUSES = (
    *("working", "waiting", "input", "checkpoint", "starting"),
    *("throttled", "hung", "idle", "unexplained"),
)
"""Causes of a GPU's time. "waiting" is for other GPUs; "unexplained" includes time without samples."""
WORKING, WAITING, INPUT, CHECKPOINT, STARTING, THROTTLED, HUNG, IDLE, UNEXPLAINED = range(len(CAUSES))
IDLE_PCT, STARTING_PCT, STARVED_PCT = 5.0, 20.0, 50.0
"""GPU utilisation below which it does nothing, hasn't started, and waits for something outside the GPU."""
SPINS_PCT = 90.0
"""A GPU that spins in a collective is at least this busy (marin#7344)."""
CORE_PCT, BLOCKED_PCT = 95.0, 10.0
"""A core counts as busy, and a node as waiting for I/O, from this share of the time on (Kineto's rule)."""
SPIN_POWER = 0.35
"""Share of its usual power that a GPU draws while it only waits for others."""
UNEVEN = 0.3
"""Loss that is normal between steps of one job; a smaller one counts only while a finding explains it."""
BURST_MB_S = 50.0
"""Least write rate of all nodes together that counts as a checkpoint."""
LEVEL_S = 600.0
"""The usual level of a GPU's work is the 90th percentile of its busy steps of this time."""


class Ledger:
    """GPU-seconds of the job by cause so far.

    A step of a GPU is divided: the share of its usual work that it does is working, the rest has a cause.
    """

    def __init__(self) -> None:
        self.seconds = np.zeros(len(CAUSES))
        self.now: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._levels = np.empty((2, 0))

    def add(self, window: Window, findings: Collection[Finding], *, starting: bool) -> None:
        """Add the window's newest step; ``findings`` are those that slow the job now."""
        count = len(window.gpus)
        if self._levels.shape[1] != count:
            self._levels = np.full((2, count), np.nan)
        if not findings and window.steps % max(1, round(60 * window.scale / window.step_s)) == 0:
            self._levels = _levels(window, self._levels)
        cause, lost = causes(window, findings, self._levels, starting=starting)
        self.now = np.where(lost >= (0.05 if findings else UNEVEN), cause, WORKING).astype(np.uint8)
        self.seconds += np.bincount(cause, lost, len(CAUSES)) * window.step_s
        self.seconds[WORKING] += (count - lost.sum()) * window.step_s

    def totals(self) -> dict[str, float]:
        """Return the GPU-seconds of each cause."""
        return dict(zip(CAUSES, self.seconds.tolist(), strict=True))


def _levels(window: Window, known: Floats) -> Floats:
    """Return the usual memory utilisation and power of each GPU while it is busy, (2, GPUs)."""
    busy = window.gpu("util_pct", LEVEL_S) >= STARVED_PCT
    found = []
    for signal, before in zip(("mem_util_pct", "power_w"), known, strict=True):
        values = np.where(busy, window.gpu(signal, LEVEL_S), np.nan)
        counts = np.isfinite(values).sum(axis=0)
        # NaN is sorted to the end.
        place = np.maximum(0, np.ceil(0.9 * counts).astype(np.intp) - 1)
        level = np.take_along_axis(np.sort(values, axis=0), place[np.newaxis], axis=0)[0]
        found.append(np.where(counts >= min(6, len(values)), level, before))
    return np.array(found)


def causes(
    window: Window, findings: Collection[Finding], levels: Floats, *, starting: bool
) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return for each GPU's newest step the cause of what it didn't work, and the share that it didn't."""
    step_s = window.step_s / window.scale
    util, memory, power, clock = (
        window.gpu(name, step_s)[-1].astype(float)
        for name in ("util_pct", "mem_util_pct", "power_w", "sm_clock_mhz")
    )
    active, low, unknown = window.active, util < STARVED_PCT, np.isnan(util)
    with np.errstate(invalid="ignore", divide="ignore"):
        by_power = (power / levels[1] - SPIN_POWER) / (1 - SPIN_POWER)
        work = np.where(np.isfinite(memory) & (levels[0] >= 5), memory / levels[0], by_power)
        lost = np.clip(1 - np.where(np.isnan(work), 1.0, work), 0.0, 1.0)
        lost = np.where(bool(findings) | (lost >= UNEVEN), lost, 0.0)
    # A single GPU has nobody to wait for.
    cause = np.full(len(util), WAITING if active.sum() > 1 else UNEXPLAINED, dtype=np.intp)
    culprits = {(one.node, one.gpu) for one in findings if one.gpu is not None}
    for column, gpu in enumerate(window.gpus) if culprits else ():
        if (gpu.node, gpu.facts.index) in culprits:
            others = np.arange(len(lost)) != column
            lost = np.maximum(lost, np.where(others, behind_peers(window, column) or 0.0, 0.0))
    # A GPU that does little, and doesn't spin for others, is fed too little, or is between two phases.
    if (active & low).any():
        busy, blocked, _ = waits_for_input(window, step_s)
        feeds = blocked[window.node_at] | (window.gpu(OWN_CPU, step_s)[-1] >= 90)
        waits = np.isfinite(levels).any(axis=0) & (active & ~low & (lost < 0.5)).any()
        slowly = busy[window.node_at] & (util >= IDLE_PCT)
        cause = np.where(low, np.select([feeds, waits, slowly], [INPUT, WAITING, INPUT], IDLE), cause)
    lost = np.where(low, np.where(util < IDLE_PCT, 1.0, 1 - util / 100), lost)
    names = [f"{how}_{what}_pct" for how in ("throttle", "reason") for what in ("thermal", "brake", "power")]
    held = np.any([window.gpu(name, step_s)[-1] > 10 for name in names], axis=0)
    usual = np.nanmedian(clock[active]) if np.isfinite(clock[active]).any() else np.nan
    throttled = active & held & (clock < 0.9 * usual)
    cause, lost = np.where(throttled, THROTTLED, cause), np.where(throttled, 1 - clock / usual, lost)
    writes = np.nan_to_num(written(window, 3600.0))
    if len(writes) and writes[-3:].max() >= max(BURST_MB_S, 3 * float(np.median(writes))):
        cause[(lost > 0) & ~throttled] = CHECKPOINT
    if starting:
        cause[util < STARTING_PCT] = STARTING
    if any(one.kind == "hang" for one in findings):
        cause[:], lost[:] = HUNG, 1.0
    cause[~active], lost[~active] = IDLE, 1.0
    cause[unknown], lost[unknown] = UNEXPLAINED, 1.0
    return cause, lost


def waits_for_input(window: Window, seconds: float) -> tuple[Mask, Mask, float]:
    """Return which nodes have a busy core and which have tasks that wait for I/O, and how busy that core is.

    A core counts if it is busy in more than 5 % of the steps (Kineto's rule for data loaders).
    """
    core = window.host("cpu_busiest_pct", seconds)
    share = (core >= CORE_PCT).sum(axis=0) / max(1, len(core))
    busy = (share > 0.05) | (window.mean("cpu_pct", seconds) >= 80)
    pressure = np.fmax(window.mean("psi_io_pct", seconds), window.mean("job_psi_io_pct", seconds))
    blocked = np.fmax(pressure, window.mean("cpu_iowait_pct", seconds)) >= BLOCKED_PCT
    known = core[np.isfinite(core)]
    return busy, blocked, float(np.percentile(known, 95)) if known.size else np.nan


def written(window: Window, seconds: float) -> Floats:
    """Return what the job writes, by calls or to local disks, whichever is more, in MB/s: (steps,)."""
    disks = window.job("disk_write_mb_s", seconds) * len(window.nodes)
    found: Floats = np.fmax(disks, window.job(WRITTEN, seconds))
    return found
