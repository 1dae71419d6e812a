"""Watches a window with all rules: findings open, change and close. No I/O and no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gswarm_tui.common.quantities import duration
from gswarm_tui.fleet.findings import NOTE, WASTE, Finding
from gswarm_tui.insight.ledger import Ledger
from gswarm_tui.insight.rule import APART, ORDER, Match, Rule
from gswarm_tui.insight.window import Window

BUSY_S, STARTING_S = 60.0, 600.0
"""Rules wait until all GPUs with a process have been busy for this long, at most for ``STARTING_S``."""
BUSY_FROM_PCT = 20.0
OFF_S = 120.0
"""A finding closes when its rule hasn't matched for this long."""
CHANGED_S = 30.0
"""An open finding is published again after this time, with its new cost."""
SLOW_STEPS = 3
"""Rules look every so many steps; those that look early, at each."""


SPEED = "GSWARM_TUI_RULES_SPEED"
"""Environment variable by which tests shorten all times of the rules, as in 20 for a 20th."""


def time_scale(environ: Mapping[str, str]) -> float:
    """Return the factor for all times of the rules, 1 unless a test shortens them."""
    return 1.0 / max(1.0, float(environ.get(SPEED) or 1.0))


@dataclass
class _Open:
    """An open finding: its rule, its newest match, when that matched, and what it has cost in GPU-seconds."""

    number: str
    rule: Rule
    match: Match
    matched_at: float
    gpu_s: float
    published_at: float
    finding: Finding = field(init=False)


class Watch:
    """Findings of one fleet, kept by evaluating rules after each step.

    ``changed`` holds those to publish after ``look``; they keep their ids. ``first_id`` numbers them.
    """

    def __init__(self, rules: Sequence[Rule], first_id: int = 1) -> None:
        self.rules = rules
        self.ledger = Ledger()
        self._open: dict[tuple[str, str | None, int | None], _Open] = {}
        self._next_id = first_id
        self._busy_since = math.nan
        self._began = math.nan
        self._gpu_s = 0.0

    @property
    def open(self) -> list[Finding]:
        """The findings that hold."""
        return [one.finding for one in self._open.values()]

    def starting(self, window: Window) -> bool:
        """Return whether the job is starting: not all of its GPUs have been busy for a minute yet."""
        if math.isnan(self._began):
            return True
        busy = not math.isnan(self._busy_since) and window.now - self._busy_since >= BUSY_S * window.scale
        return not busy and window.now - self._began < STARTING_S * window.scale

    def look(self, window: Window) -> list[Finding]:
        """Evaluate the rules after a new step; return the findings that opened, changed or closed."""
        self._note_start(window)
        starting = self.starting(window)
        matches = list(self._matches(window, starting=starting))
        changed = [self._take(window, rule, match) for rule, match in matches]
        changed += self._close(window)
        self.ledger.add(window, self.open, starting=starting)
        self._gpu_s += float(window.active.sum()) * window.step_s
        return [finding for finding in changed if finding is not None]

    def end(self, at: float) -> list[Finding]:
        """Close everything at the end of the recording; return the findings that were open."""
        return [replace(one.finding, until=at) for one in self._open.values()]

    def _note_start(self, window: Window) -> None:
        """Note when the job began, and since when all of its GPUs have been busy."""
        active = window.active
        if not active.any():
            self._began = self._busy_since = math.nan
            return
        if math.isnan(self._began):
            self._began = window.now
        if math.isnan(self._busy_since):
            util = window.gpu("util_pct", window.step_s / window.scale)[-1]
            if (util[active] >= BUSY_FROM_PCT).all():
                self._busy_since = window.now

    def _matches(self, window: Window, *, starting: bool) -> Iterable[tuple[Rule, Match]]:
        """Return the matches of rules that may look now, in order; a stage silences those after it."""
        due = window.steps % SLOW_STEPS == 0
        named = False
        for stage in (APART, *ORDER):
            found = [
                (rule, match)
                for rule in self.rules
                if rule.stage == stage and (rule.early or (due and not starting))
                for match in rule.find(window)
            ]
            if stage in ORDER and named:
                continue
            # A note explains no loss of time, so it silences nothing.
            named = named or (stage in ORDER and any(_severity(*one) != NOTE for one in found))
            yield from found
            if stage in ORDER and not due:
                named = named or any(one.rule.stage == stage for one in self._open.values())

    def _take(self, window: Window, rule: Rule, match: Match) -> Finding | None:
        """Open a finding or refresh it; return it if it is to be published."""
        gpu = None if match.column is None else window.gpus[match.column].facts.index
        key = rule.kind, match.node, gpu
        known = self._open.get(key)
        if known is None:
            before = max(0.0, window.now - match.since)
            known = _Open(f"{self._next_id}", rule, match, window.now, match.lost * before, window.now)
            known.finding = self._finding(window, known, window.now)
            self._open[key] = known
            self._next_id += 1
            return known.finding
        known.gpu_s += match.lost * (window.now - known.matched_at)
        known.matched_at = window.now
        known.match = replace(match, since=min(match.since, known.match.since))
        fresh = window.now - known.published_at < CHANGED_S * window.scale
        if fresh and _severity(rule, match) == known.finding.severity:
            return None
        known.published_at = window.now
        known.finding = self._finding(window, known, window.now)
        return known.finding

    def _close(self, window: Window) -> Iterable[Finding]:
        for key, one in list(self._open.items()):
            if window.now - one.matched_at >= OFF_S * window.scale:
                del self._open[key]
                one.finding = self._finding(window, one, one.matched_at)
                yield replace(one.finding, until=one.matched_at)

    def _finding(self, window: Window, one: _Open, until: float) -> Finding:
        """Return the finding of an open match as it is at a time."""
        rule, match = one.rule, one.match
        gpu = None if match.column is None else window.gpus[match.column].facts.index
        rank = None if match.column is None else window.rank(match.column)
        node, severity = match.node, _severity(rule, match)
        place = node if gpu is None else f"{node}:{gpu}"
        advice = (match.advice or rule.advice).format(node=node, gpu=place, nodes=", ".join(match.nodes))
        held = duration(max(1.0, until - match.since))
        share = one.gpu_s / (self._gpu_s or math.inf)
        parts = [
            place or (", ".join(match.nodes) if 0 < len(match.nodes) <= 3 else "all GPUs"),
            "" if rank is None else f"rank {rank}",
            f"{match.signal} for {held}" + (f", {match.contrast}" if match.contrast else ""),
            *match.details,
            f"≈ {100 * share:.0f} % of the run so far" if severity == WASTE and share >= 0.005 else "",
            advice.rstrip("."),
        ]
        return Finding(
            one.number,
            rule.kind,
            severity,
            node,
            gpu,
            rank,
            match.nodes or (() if node is None else (node,)),
            match.since,
            None,
            one.gpu_s / 3600,
            " · ".join(part for part in parts if part),
            match.evidence,
            advice,
            rule.source,
        )


def _severity(rule: Rule, match: Match) -> str:
    return match.severity or rule.severity
