"""A rule about the step times that ranks send themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from gswarm_tui.fleet.findings import WASTE
from gswarm_tui.insight.rule import ODD_ONE, Match, Rule
from gswarm_tui.insight.rules.matches import Who, ago, evidence, matched
from gswarm_tui.insight.window import Window

SLOW = 0.7
"""A rank is slow below this score: the fastest rank's time, or its own best one, over its time (NVRx)."""
TWO_MIN = 120.0


def _slow_steps(window: Window) -> Iterable[Match]:
    ranks = [one for one in window.step_marks.ranks.items() if one[1].is_current(window.now)]
    if len(ranks) < 2:
        return
    own = np.array([steps.own_s for _, steps in ranks])
    said = np.array([math.isfinite(steps.marks[-1].compute) for _, steps in ranks])
    # In lock-step, all steps take equally long: only the time that ranks compute can be compared.
    fastest = own[said].min(initial=math.inf)
    against = np.where(said & (said.sum() > 1), fastest / own, 1.0)
    best = np.array([steps.best for _, steps in ranks])
    itself = best / own
    slow = (against < SLOW) | ((itself < SLOW) & (np.median(itself) >= SLOW))
    if 2 * slow.sum() > len(ranks):
        return
    for at in np.flatnonzero(slow).tolist():
        (node, rank), steps = ranks[at]
        usual = fastest if against[at] < SLOW else best[at]
        name = "compute_s" if said[at] else "step_s"
        lost = max(0.0, own[at] - float(np.median(own))) / steps.marks[-1].seconds
        columns = [column for column, gpu in enumerate(window.gpus) if gpu.node == node]
        who: Who = next((column for column in columns if window.rank(column) == rank), node)
        yield matched(
            window, who, ago(window, TWO_MIN),
            f"{'computes' if said[at] else 'needs'} {own[at]:.2g} s a step",
            (*evidence(name, own[at], usual), *evidence("score_pct", 100 * usual / own[at])),
            *(() if isinstance(who, int) else (f"rank {rank}",)),
            contrast=f"{'the fastest rank' if against[at] < SLOW else 'itself at best'} {usual:.2g} s",
            lost=min(1.0, lost) * float(window.active.sum()),
        )  # fmt: skip


# fmt: off
RULES = (
    Rule("slow_steps", "A rank computes longer in each step than the others, or than before", WASTE, ODD_ONE,
         ("events",), "2 min",
         "a score below 70 %: the fastest rank's time, or its own best, over the rank's median of four marks",
         "NVIDIA Resiliency Extension (NVRx: relative and individual scores, both with the threshold 0.7)",
         "Compare what rank and GPU {gpu} do with the others: input, CPUs, clocks; then leave {node} out",
         "Ranks that send marks with gswarm_agent.mark.step say themselves how long they compute.",
         "Fewer than two ranks send marks, more than half of them are slow, or another rule names the GPU.",
         "Ranks with more work by design, as pipeline stages with more layers, look the same.",
         _slow_steps),
)
# fmt: on
