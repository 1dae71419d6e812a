"""Cost of a slow GPU to the job, measured at the GPUs that wait for it."""

from __future__ import annotations

import numpy as np

from gswarm_agent.frame import STEP
from gswarm_tui.fleet.events import json_object
from gswarm_tui.fleet.history import Floats
from gswarm_tui.insight.window import Mask, Window

COSTS = 0.085
"""Share of the work that a slow GPU or node costs at least: steps that take 10 % longer lose 9 % of the
time, and noise hides a little. Healthy GPUs differ by up to 14 % in a GEMM (arXiv 2510.15596)."""
RECENT_S, BEFORE_S = 60.0, 3600.0
PACE = {"nvlink_mb_s": 50.0, "ib_mb_s": 50.0, "pcie_mb_s": 50.0, "net_mb_s": 500.0, "mem_util_pct": 5.0}
"""Signals that fall when the job gets slower, as all GPUs move fewer bytes, with the least usual value that
counts: Ethernet also carries logs and heartbeats of file systems, however slow the job is."""
LEAST_PCT = 5.0
"""A GPU that computes for a smaller share of the time isn't compared with its peers."""
STEADY, EXACT = 0.15, 0.06
"""A signal counts if its means differ by less than the first share from one minute to the next. Bytes decide
alone below the second share; steps of half a minute make them rougher than that."""
DIP = 0.25
"""GPUs that do less than this share of their usual work save a checkpoint or evaluate."""
WORK = ("mem_util_pct", "dram_active_pct", "sm_active_pct", "tensor_active_pct")
"""Signals that are high while a GPU computes and low while it waits in a collective operation."""


def slowdown(window: Window, since: float) -> float | None:
    """Return the share of its work that the job has lost since a time, None where it can't be measured.

    The last minute, or up to four if the time is longer ago, is compared with the better minutes of the hour
    before, so that a slow minute of that hour doesn't hide a loss.
    """
    # All lengths are numbers of steps.
    scale, ago_s = window.scale, window.now - since
    minute = max(1, round(RECENT_S * scale / window.step_s))
    recent = max(1, round(min(240.0 * scale, max(RECENT_S * scale, ago_s)) / window.step_s))
    older = max(recent, round(ago_s / window.step_s))
    length = min(older + round(BEFORE_S * scale / window.step_s), window.started_steps)
    if length < older + max(2, minute):
        return None
    by_marks = _fewer_marks(window, since, length * window.step_s)
    if by_marks is not None:
        return by_marks
    usual = working(window, length, recent)
    found: list[tuple[float, float]] = []
    for signal, least in PACE.items():
        if signal == "mem_util_pct" and found and min(found)[0] < EXACT:
            break
        series = window.job(signal, length * window.step_s / scale).astype(np.float64)
        kept = np.where(usual[-len(series) :], series, np.nan)
        before, after = kept[:-older], kept[-recent:]
        after = after[np.isfinite(after)]
        parts = max(2, len(before) // minute)
        starts, known = np.arange(parts) * len(before) // parts, np.isfinite(before)
        sums, counts = (
            np.add.reduceat(of, starts, dtype=float) for of in (np.where(known, before, 0), known)
        )
        enough = counts > 0.3 * np.diff(starts, append=len(before))
        means = sums[enough] / counts[enough]
        if len(means) < 2 or not len(after):
            continue
        reference = float(np.percentile(means, 75))
        # The noise is that from one minute to the next, as a slowdown within the hour is none.
        varies = float(np.median(np.abs(np.diff(means)))) / max(1e-9, reference)
        if reference >= least and varies < STEADY:
            found.append((varies, max(0.0, 1.0 - float(after.mean()) / reference)))
    return min(found)[1] if found else None


def working(window: Window, length: int, recent: int) -> Mask:
    """Return in which of the last steps the job works, without dips such as checkpoints.

    If most of the ``recent`` newest steps are low, these are no dip.
    """
    dips = np.zeros(length, dtype=bool)
    for signal in ("util_pct", "mem_util_pct"):
        series = window.job(signal, length * window.step_s / window.scale)
        known = series[np.isfinite(series)]
        if len(known) and len(series) == length:
            dips |= series < DIP * float(np.median(known))
    if dips[-recent:].mean() > 0.5:
        dips[-recent:] = False
    return ~dips


def _fewer_marks(window: Window, since: float, length_s: float) -> float | None:
    """Return by which share the steps of marks with a value "step" come slower since a time."""
    marks = [
        (event.at, float(step))
        for event in window.events
        if event.kind in ("mark", STEP)
        and event.at >= window.now - length_s
        and isinstance(step := json_object(event.detail).get("step"), int | float)
    ]
    before, after = ([mark for mark in marks if (mark[0] >= since) == late] for late in (False, True))
    if len(before) < 5 or len(after) < 3:
        return None
    rates = [(of[-1][1] - of[0][1]) / max(1e-9, of[-1][0] - of[0][0]) for of in (before, after)]
    return None if rates[0] <= 0 else max(0.0, 1.0 - rates[1] / rates[0])


def leads(window: Window, seconds: float) -> tuple[str, Floats]:
    """Return the signal that shows waiting best, and by which share each GPU's peers are idle while it works.

    In lock-step, the slow GPU waits least, so that it is busy for the longest time. The shares are NaN where
    no signal is measured.
    """
    found, settled = (WORK[0], np.full(len(window.gpus), np.nan)), window.settled
    for signal in WORK:
        busy, peers = window.mean(signal, seconds), window.peers_of(signal, seconds)
        lead = 1.0 - peers / np.where(settled & (busy >= LEAST_PCT), busy, np.nan)
        if np.isfinite(lead).any() and not np.nanmax(lead) <= np.nan_to_num(found[1], nan=-1.0).max():
            found = signal, lead
    return found


def behind_peers(window: Window, column: int, seconds: float = RECENT_S) -> float | None:
    """Return by which share a GPU holds up its peers, which are idle for that share of its work."""
    lead = float(leads(window, seconds)[1][column])
    return max(0.0, lead) if np.isfinite(lead) else None


def costs(window: Window, since: float, column: int | None = None) -> float:
    """Return by which share the job is slower, or its peers wait for a GPU; 0 for a small share."""
    behind = None if column is None else behind_peers(window, column)
    share = max(slowdown(window, since) or 0.0, behind or 0.0)
    return share if share >= COSTS else 0.0
