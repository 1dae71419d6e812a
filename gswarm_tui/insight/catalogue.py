"""All rules, in the order in which they are shown in the docs."""

from __future__ import annotations

from gswarm_tui.fleet.findings import FAULT, RANK_BEHIND
from gswarm_tui.insight.rule import LOCAL, Rule
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
BY_KIND = {rule.kind: rule for rule in (*RULES, ASKED)}
