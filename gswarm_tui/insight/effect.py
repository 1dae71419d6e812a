"""What a slow GPU costs the job, measured at the others, which wait for it."""

from __future__ import annotations

import numpy as np

from gswarm_tui.insight.window import Window

PROGRESS = ("nvlink_mb_s", "ib_mb_s", "pcie_mb_s", "net_mb_s", "mem_util_pct")
"""Signals that fall when the job gets slower, the most exact first: all GPUs move fewer bytes."""
RECENT_S, BEFORE_S = 60.0, 600.0
LEAST_MB_S, LEAST_PCT = 50.0, 5.0
"""Less than this says nothing about the job."""


def slowdown(window: Window, since: float) -> float | None:
    """Return by which share the job has become slower since a time, None where it can't be measured.

    Compares the last minute with the 10 minutes before ``since``; 0.11 means that it does 11 % less work.
    """
    back_s = (window.now - since) / window.scale
    for signal in PROGRESS:
        series = window.job(signal, back_s + BEFORE_S)
        steps = max(1, round((window.now - since) / window.step_s))
        before, after = series[:-steps], series[-max(1, round(RECENT_S * window.scale / window.step_s)) :]
        before, after = before[np.isfinite(before)], after[np.isfinite(after)]
        if (
            len(before) < 12
            or not len(after)
            or float(np.median(before)) < (5.0 if "pct" in signal else LEAST_MB_S)
        ):
            continue
        return max(0.0, 1.0 - float(np.mean(after)) / float(np.median(before)))
    return None


def behind_peers(window: Window, column: int) -> float | None:
    """Return by which share a GPU holds up its peers, which are idle for that share of its work.

    In lock-step the slow one waits least, so that its memory is busy for the longest time.
    """
    busy = window.mean("mem_util_pct", 240.0)
    peers = window.peers(busy)
    if not np.isfinite(busy[column]) or not np.isfinite(peers[column]) or busy[column] <= 0:
        return None
    return max(0.0, 1.0 - float(peers[column] / busy[column]))
