"""All rules, in the order in which they are shown in the docs."""

from __future__ import annotations

from gswarm_tui.insight.rule import Rule
from gswarm_tui.insight.rules import clocks, placement, stragglers, use

RULES: tuple[Rule, ...] = (*clocks.RULES, *stragglers.RULES, *placement.RULES, *use.RULES)
BY_KIND = {rule.kind: rule for rule in RULES}
