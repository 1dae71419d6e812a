"""Watches a window with all rules: findings open, change and close. No I/O and no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gswarm_tui.common.quantities import duration
from gswarm_tui.fleet.findings import NOTE, WASTE, Finding
from gswarm_tui.insight.ledger import Ledger
from gswarm_tui.insight.rule import ALIKE, APART, LOCAL, ORDER, UNKNOWN, Match, Rule
from gswarm_tui.insight.window import Window

OFF_S = 120.0
"""A finding closes when its rule hasn't matched for this long."""
CHANGED_S = 30.0
"""An open finding is published again after this time, with its new cost."""
SLOW_S = 15.0
"""Rules look this often, those that look early at each step."""


SPEED = "GSWARM_TUI_RULES_SPEED"
"""Environment variable by which tests shorten all times of the rules, as in 20 for a 20th."""


def time_scale(environ: Mapping[str, str]) -> float:
    """Return the factor for all times of the rules, 1 unless a test shortens them."""
    return 1.0 / max(1.0, float(environ.get(SPEED) or 1.0))


Named = dict[tuple[str | None, int | None], tuple[int, int]]
"""For each node and GPU index that a finding names, the stage and position of the first rule that does."""


@dataclass
class _Open:
    """An open finding: its rule, its newest match, when that matched, and what it has cost in GPU-seconds.

    ``gpu`` and ``rank`` are those of the match's column, which means another GPU once the fleet has changed.
    """

    number: str
    rule: Rule
    gpu: int | None
    rank: int | None
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
        self._at = {rule.kind: at for at, rule in enumerate(rules)}
        self._next_id = first_id
        self._gpu_s = 0.0

    @property
    def open(self) -> list[Finding]:
        """The findings that hold."""
        return [one.finding for one in self._open.values()]

    def look(self, window: Window) -> list[Finding]:
        """Evaluate the rules after a new step; return the findings that opened, changed or closed."""
        starting = window.starting
        window.open = frozenset(self._open)
        matches = list(self._matches(window, starting=starting))
        changed = [self._take(window, rule, match) for rule, match in matches]
        changed += self._close(window)
        slowing = [one.finding for one in self._open.values() if one.rule.stage in ORDER]
        self.ledger.add(window, slowing, starting=starting)
        self._gpu_s += float(window.active.sum()) * window.step_s
        return [finding for finding in changed if finding is not None]

    def end(self, at: float) -> list[Finding]:
        """Close everything at the end of the recording; return the findings that were open."""
        return [replace(one.finding, until=at) for one in self._open.values()]

    def _matches(self, window: Window, *, starting: bool) -> Iterable[tuple[Rule, Match]]:
        """Return the matches of rules that may look now, in order, without those that others silence.

        Each GPU and node is named by one rule of ``ORDER``, the first. What is open counts as a match, as not
        all rules look at each step. A note explains no loss of time, so it silences nothing.
        """
        every = max(1, round(SLOW_S * window.scale / window.step_s))
        due = window.steps % every == 0 and not starting
        named: Named = {}
        for one in self._open.values():
            if one.finding.severity != NOTE:
                self._name(named, one.rule, one.match, one.gpu)
        for rule in sorted(self.rules, key=_stage):
            for match in rule.find(window) if rule.early or due else ():
                gpu = _gpu(window, match)
                if not self._silenced(named, rule, match, gpu):
                    if _severity(rule, match) != NOTE:
                        self._name(named, rule, match, gpu)
                    yield rule, match

    def _name(self, named: Named, rule: Rule, match: Match, gpu: int | None) -> None:
        """Note which rule names a GPU, a node, or several nodes, unless an earlier one does."""
        mine = _stage(rule), self._at[rule.kind]
        for node in match.nodes or (match.node,):
            key = node, gpu
            named[key] = min(mine, named.get(key, mine))

    def _silenced(self, named: Named, rule: Rule, match: Match, gpu: int | None) -> bool:
        """Return whether an earlier rule names the culprit, or the same GPU or node."""
        stage, place = _stage(rule), self._at[rule.kind]
        if rule.stage == APART:
            return False
        if rule.stage in (ALIKE, UNKNOWN):
            return any(0 <= other[0] < stage for other in named.values())
        for node in match.nodes or (match.node,):
            for (other_node, other_gpu), other in named.items():
                same = other_gpu == gpu or other_gpu is None or gpu is None
                # Two facts of a node and of one of its GPUs may both be true; an odd one out has one cause.
                if rule.stage == LOCAL:
                    same = other_gpu == gpu and other[0] >= 0
                if other_node == node and same and other < (stage, place):
                    return True
        return False

    def _take(self, window: Window, rule: Rule, match: Match) -> Finding | None:
        """Open a finding or refresh it; return it if it is to be published."""
        gpu = _gpu(window, match)
        rank = None if match.column is None else window.rank(match.column)
        key = rule.kind, match.node, gpu
        known = self._open.get(key)
        if known is None:
            before = max(0.0, window.now - match.since)
            known = _Open(
                f"{self._next_id}", rule, gpu, rank, match, window.now, match.lost * before, window.now
            )
            known.finding = self._finding(window, known, window.now)
            self._open[key] = known
            self._next_id += 1
            return known.finding
        known.gpu_s += match.lost * (window.now - known.matched_at)
        known.matched_at, known.rank = window.now, rank
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
        rule, match, gpu, rank = one.rule, one.match, one.gpu, one.rank
        node, severity = match.node, _severity(rule, match)
        place = node if gpu is None else f"{node}:{gpu}"
        advice = (match.advice or rule.advice).format(
            node=node, gpu=place, nodes=", ".join(match.nodes or (node or "",))
        )
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


def _gpu(window: Window, match: Match) -> int | None:
    return None if match.column is None else window.gpus[match.column].facts.index


def _stage(rule: Rule) -> int:
    """Return a rule's place in ``ORDER``, -1 if it stands apart."""
    return ORDER.index(rule.stage) if rule.stage in ORDER else -1


def _severity(rule: Rule, match: Match) -> str:
    return match.severity or rule.severity
