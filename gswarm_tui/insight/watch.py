"""Watches a window with all rules: findings open, change and close. No I/O and no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gswarm_agent.frame import gpu_label
from gswarm_tui.common.errors import UserError, quote
from gswarm_tui.common.quantities import first_of, held
from gswarm_tui.fleet.findings import NOTE, SEVERITIES, WASTE, Finding
from gswarm_tui.insight.ledger import Ledger
from gswarm_tui.insight.notes import clause
from gswarm_tui.insight.rule import ALIKE, APART, LOCAL, ORDER, UNKNOWN, Match, Rule
from gswarm_tui.insight.window import Window

STARTING = "starting"
OFF_S = 120.0
"""A finding closes when its rule hasn't matched for this long."""
CHANGED_S = 30.0
"""An open finding is published again after this time, with its new cost."""
SLOW_S = 15.0
"""Rules look this often, those that look early at each step."""
NEW_S = 240.0
"""A finding that began this much later than the job wasn't there from the job's start."""
NAMED = 3
"""Nodes that a sentence names; it counts the others."""

SPEED = "GSWARM_TUI_RULES_SPEED"
"""Environment variable by which tests shorten all times of the rules, as in 20 for a 20th."""
MOST_SPEED = 1000


def time_scale(environ: Mapping[str, str]) -> float:
    """Return the factor for all times of the rules, 1 unless a test shortens them. Raises UserError."""
    text = environ.get(SPEED) or "1"
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 1 <= speed <= MOST_SPEED:
        raise UserError(f"{SPEED}: {quote(text)} isn't a number from 1 to {MOST_SPEED}.")
    return 1.0 / speed


class Named(NamedTuple):
    """A match, its rule, and the index of its GPU; the match's column means another GPU after a change."""

    rule: Rule
    match: Match
    gpu: int | None


@dataclass
class _Open:
    """An open finding: its newest match, the rank there, when it matched, and its cost in GPU-seconds."""

    number: str
    named: Named
    rank: int | None
    matched_at: float
    gpu_s: float
    published_at: float
    finding: Finding = field(init=False)
    explained: bool = False


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
        slowing = [one.finding for one in self._open.values() if one.named.rule.stage in ORDER]
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
        named = [one.named for one in self._open.values() if one.finding.severity != NOTE]
        for rule in sorted(self.rules, key=_stage):
            for match in rule.find(window) if rule.early or due else ():
                found = Named(rule, match, _gpu(window, match))
                if not any(self._explains(window, one, found) for one in named):
                    if _severity(rule, match) != NOTE:
                        named.append(found)
                    yield rule, match

    def _explains(self, window: Window, one: Named, other: Named) -> bool:
        """Return whether a finding is why another one holds, which then says nothing new."""
        first, second = ((_stage(of.rule), self._at[of.rule.kind]) for of in (one, other))
        if first >= second or APART in (one.rule.stage, other.rule.stage):
            return False
        same = one.match.node is not None and (one.match.node, one.gpu) == (other.match.node, other.gpu)
        if same or other.rule.stage == LOCAL:
            return same
        # What has been so from the start, as ranks on the wrong cores, doesn't explain what began later.
        began = window.now - window.started_steps * window.step_s
        new_s, ages = NEW_S * window.scale, [of.match.since - began for of in (one, other)]
        if ages[0] <= new_s / 2 and ages[1] > new_s:
            return False
        if other.rule.stage in (ALIKE, UNKNOWN):
            return True
        nodes = one.match.nodes or (one.match.node,)
        near = other.match.node in nodes and 2 * len(nodes) <= max(2, len(window.nodes))
        return near and (one.gpu is None or other.gpu is None)

    def _take(self, window: Window, rule: Rule, match: Match) -> Finding | None:
        """Open a finding or refresh it; return it if it is to be published."""
        gpu = _gpu(window, match)
        rank = None if match.column is None else window.rank(match.column)
        key = rule.kind, match.node, gpu
        known = self._open.get(key)
        if known is None:
            before = max(0.0, window.now - match.since)
            named, cost = Named(rule, match, gpu), match.lost * before
            known = _Open(f"{self._next_id}", named, rank, window.now, cost, window.now)
            if _severity(rule, match) != NOTE:
                self._replace_explained(window, known)
            known.finding = self._finding(window, known, window.now)
            self._open[key] = known
            self._next_id += 1
            return known.finding
        known.gpu_s += match.lost * (window.now - known.matched_at)
        known.matched_at, known.rank = window.now, rank
        since, severity = min(match.since, known.named.match.since), _severity(rule, match)
        if known.gpu_s > 0:
            # What has cost time stays waste, also while it costs nothing more at its end.
            severity = min(severity, known.finding.severity, key=SEVERITIES.index)
        known.named = Named(rule, replace(match, since=since, severity=severity), gpu)
        fresh = window.now - known.published_at < CHANGED_S * window.scale
        if fresh and severity == known.finding.severity:
            return None
        known.published_at = window.now
        known.finding = self._finding(window, known, window.now)
        return known.finding

    def _replace_explained(self, window: Window, new: _Open) -> None:
        """Let a new finding take over the cost of those that were found first and that it explains."""
        for one in self._open.values():
            if self._explains(window, new.named, one.named):
                new.gpu_s, one.gpu_s, one.explained = max(new.gpu_s, one.gpu_s), 0.0, True

    def _close(self, window: Window) -> Iterable[Finding]:
        for key, one in list(self._open.items()):
            # A job that has started is no longer starting; other findings may come back at once.
            over = one.explained or (one.named[0].kind == STARTING and one.matched_at < window.now)
            if over or window.now - one.matched_at >= OFF_S * window.scale:
                del self._open[key]
                one.finding = self._finding(window, one, one.matched_at)
                yield replace(one.finding, until=one.matched_at)

    def _finding(self, window: Window, one: _Open, until: float) -> Finding:
        """Return the finding of an open match as it is at a time."""
        (rule, match, gpu), rank = one.named, one.rank
        node, severity = match.node, _severity(rule, match)
        nodes = match.nodes or (() if node is None else (node,))
        named = first_of(nodes, NAMED) or "the nodes"
        everywhere = len(nodes) in (0, len(window.nodes))
        place = named if node is None else node if gpu is None else f"{node}:{gpu_label(gpu)}"
        advice = (match.advice or rule.advice).format(node=node or named, gpu=place, nodes=named)
        lasted = f" for {held(max(1.0, until - match.since))}" if match.lasts else ""
        share = one.gpu_s / (self._gpu_s or math.inf)
        parts = [
            place if node or 0 < len(nodes) <= NAMED else "all GPUs" if everywhere else f"{len(nodes)} nodes",
            "" if rank is None else f"rank {rank}",
            f"{match.signal}{lasted}" + (f", {match.contrast}" if match.contrast else ""),
            *match.details,
            f"≈ {100 * share:.0f} % of the run so far" if severity == WASTE and share >= 0.005 else "",
            clause(advice),
        ]
        return Finding(
            one.number,
            rule.kind,
            severity,
            node,
            gpu,
            rank,
            nodes,
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
