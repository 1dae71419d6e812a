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
    own, best = np.array([(steps.own_s, steps.best_s) for _, steps in ranks]).T
    # If most ranks got slower alike, none of them is compared with itself.
    best = best if np.median(best / own) >= SLOW else own
    # In lock-step, all steps take equally long: only the time that ranks compute can be compared.
    fastest = min((steps.own_s for _, steps in ranks if steps.says), default=math.inf)
    relative = np.array([fastest if steps.says else math.inf for _, steps in ranks])
    usual = np.where(relative / own < SLOW, relative, best)
    slow = np.flatnonzero(usual / own < SLOW).tolist()
    if 2 * len(slow) > len(ranks):
        return
    for at in slow:
        (node, rank), steps = ranks[at]
        columns = [column for column, gpu in enumerate(window.gpus) if gpu.node == node]
        who: Who = next((column for column in columns if window.rank(column) == rank), node)
        whose = "the fastest rank" if usual[at] == relative[at] else "itself at best"
        lost = max(0.0, own[at] - float(np.median(own))) / steps.seconds
        yield matched(
            window, who, ago(window, TWO_MIN),
            f"{'computes' if steps.says else 'needs'} {own[at]:.2g} s a step",
            (*evidence("compute_s" if steps.says else "step_s", own[at], usual[at]),
             *evidence("score_pct", 100 * usual[at] / own[at])),
            *(() if isinstance(who, int) else (f"rank {rank}",)),
            contrast=f"{whose} {usual[at]:.2g} s",
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
