"""All rules, in the order in which they are shown in the docs."""

from __future__ import annotations

from gswarm_tui.fleet.findings import FAULT, RANK_BEHIND, SLOWER_THAN_USUAL, WASTE
from gswarm_tui.insight.rule import APART, LOCAL, Rule
from gswarm_tui.insight.rules import (
    clocks,
    hardware,
    job_wide,
    memory,
    placement,
    ports,
    steps,
    stragglers,
    use,
)

RULES: tuple[Rule, ...] = (
    *(*hardware.RULES, *clocks.RULES, *ports.RULES, *memory.RULES),
    *(*stragglers.RULES, *steps.RULES, *job_wide.RULES, *placement.RULES, *use.RULES),
)
ASKED = Rule(
    *(RANK_BEHIND, "The job itself says which rank is behind", FAULT, LOCAL, ("processes",), "when asked"),
    "a rank without a process, with fewer collectives than its peers, at another place, or that never waits",
    "the job: /proc, NCCL, PyTorch, py-spy",
    "Look at its stack with gswarm-tui stacks; if {node} is named again, leave it out",
    "When all ranks wait in one collective, their GPUs look alike, and only the job knows who is missing.",
    "Nobody pressed A or ran gswarm-tui who, or no step could tell.",
    "A rank that was late for a moment is named if its step lasts long; ask again.",
    lambda _window: (),
)
"""Texts of the kind that no rule finds: someone asked the job."""
SLOWER = Rule(
    SLOWER_THAN_USUAL,
    "The run is slower than your former ones",
    WASTE,
    APART,
    ("marks",),
    "the whole run",
    "more than 10 % and more than three median absolute deviations behind the median of your former runs",
    "your 3 to 20 newest former runs of the same name and size, of a quarter to four times its duration",
    "Look at what differs, and compare it with a former run by gswarm-tui compare",
    "Runs of one program differ by some percent, so 10 % is the least. Three median absolute deviations are "
    "about two standard deviations, but one bad run hardly moves them.",
    "Fewer than three former runs are known that share a throughput mark or the ranks' step time with it.",
    "The name is the same and the work is not, as with another model or batch size.",
    lambda _window: (),
)
BY_KIND = {rule.kind: rule for rule in (*RULES, ASKED, SLOWER)}
