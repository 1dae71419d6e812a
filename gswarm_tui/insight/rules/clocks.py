"""Rules about what holds one GPU's clock down."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gswarm_tui.fleet.findings import NOTE, WASTE, Evidence
from gswarm_tui.insight.effect import behind_peers, slowdown
from gswarm_tui.insight.rule import LOCAL, Match, Rule
from gswarm_tui.insight.window import Window

THERMAL_PCT = 10.0
"""Share of busy time with thermal throttling from which heat counts (Omnistat: any; 10 % spares blips)."""
COSTS = 0.1
"""A slowdown under this isn't a fault: equal GPUs differ by up to 14 % in one GEMM (arXiv 2510.15596)."""


def _hot(window: Window) -> Iterable[Match]:
    throttled = np.fmax(window.gpu("throttle_thermal_pct", 60), window.gpu("reason_thermal_pct", 60))
    busy = window.gpu("util_pct", 60) >= 20
    held = window.holds(throttled > THERMAL_PCT, np.isfinite(throttled) & busy, 60) & window.active
    clock = window.mean("sm_clock_mhz", 60)
    peers = window.peers(clock, window.active & ~held)
    for at in np.flatnonzero(held).tolist():
        gpu = window.gpus[at]
        since = window.now - 60 * window.scale
        share = float(np.nanmean(throttled[:, at]))
        cost = max(slowdown(window, since) or 0.0, behind_peers(window, at) or 0.0)
        others = int(window.active.sum()) - 1
        evidence = (
            Evidence("sm_clock_mhz", round(float(clock[at])), round(float(peers[at])), "MHz"),
            Evidence("throttle_thermal_pct", round(share), None, "%"),
            Evidence("temp_c", round(float(window.mean("temp_c", 60)[at])), None, "°C"),
        )
        yield Match(
            gpu.node,
            at,
            since,
            f"clock {clock[at]:,.0f} MHz",
            evidence,
            f"the other {others} at {peers[at]:,.0f}",
            (f"heat {share:.0f} % of that time",),
            lost=cost * others if cost >= COSTS else 0.0,
            severity=WASTE if cost >= COSTS else NOTE,
        )


RULES = (
    Rule(
        "thermal",
        "Heat holds a GPU's clock down",
        WASTE,
        LOCAL,
        ("util_pct", "sm_clock_mhz", "throttle_thermal_pct"),
        "60 s",
        "thermal throttling in more than 10 % of busy time, in 90 % of the steps",
        "Omnistat, DCGM; 10 % is our own threshold",
        "Leave {node} out and tell the site: its cooling needs a look",
        "A GPU that overheats lowers its clock. In lock-step all others wait for it.",
        "The clock is no lower than that of its peers, or the job is no slower: then it is a note.",
        "A room that is warm for all GPUs alike slows all of them, and no one is the culprit.",
        _hot,
    ),
)
