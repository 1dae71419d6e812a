"""All rules, in the order in which they are shown in the docs."""

from __future__ import annotations

from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.rules import clocks, hardware, job_wide, memory, placement, ports, stragglers, use

RULES: tuple[Rule, ...] = (
    *(*hardware.RULES, *clocks.RULES, *ports.RULES, *memory.RULES),
    *(*stragglers.RULES, *job_wide.RULES, *placement.RULES, *use.RULES),
)
BY_KIND = {rule.kind: rule for rule in RULES}
