"""The ledger: GPU-hours by cause, which add up to 100 %."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from gswarm_tui.fleet.findings import Finding
from gswarm_tui.insight.window import Window

CAUSES = (
    "working",
    "waiting",
    "input",
    "checkpoint",
    "starting",
    "throttled",
    "hung",
    "idle",
    "unexplained",
)
"""What a GPU's time goes into; waiting is for other GPUs, unexplained also has time without samples."""
WORKING, WAITING, INPUT, CHECKPOINT, STARTING, THROTTLED, HUNG, IDLE, UNEXPLAINED = range(len(CAUSES))


class Ledger:
    """GPU-seconds of the job by cause so far."""

    def __init__(self) -> None:
        self.seconds = np.zeros(len(CAUSES))
        self.now: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    def add(self, window: Window, findings: Collection[Finding], *, starting: bool) -> None:
        """Add the window's newest step; ``findings`` are those that hold now."""
        self.now = causes(window, findings, starting=starting)
        self.seconds += np.bincount(self.now, minlength=len(CAUSES)) * window.step_s

    def totals(self) -> dict[str, float]:
        """Return the GPU-seconds of each cause."""
        return dict(zip(CAUSES, self.seconds.tolist(), strict=True))


def causes(window: Window, findings: Collection[Finding], *, starting: bool) -> npt.NDArray[np.uint8]:
    """Return the cause of each GPU's newest step, as positions in ``CAUSES``."""
    util = window.gpu("util_pct", window.step_s / window.scale)[-1]
    found = np.select([np.isnan(util), util < 5, np.full(len(util), starting)], [UNEXPLAINED, IDLE, STARTING])
    return found.astype(np.uint8)
