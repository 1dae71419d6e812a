"""Watches a window with all rules: findings open, change and close. No I/O and no clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gswarm_agent.frame import gpu_label
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


def time_scale(environ: Mapping[str, str]) -> float:
    """Return the factor for all times of the rules, 1 unless a test shortens them."""
    return 1.0 / float(environ.get(SPEED) or 1)


class Named(NamedTuple):
    """A match with its severity, its rule, and the index of its GPU, as columns change."""

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
    """Findings of one fleet, kept by evaluating rules after each step; they keep their ids.

    ``numbers`` yields the numbers of new findings. A rule that fails is reported to ``failed`` once, and left
    out from then on.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        failed: Callable[[Rule, Exception], None],
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.ledger = Ledger()
        self._rules = sorted(rules, key=_stage)
        self._at = {rule.kind: at for at, rule in enumerate(self._rules)}
        self._open: dict[tuple[str, str | None, int | None], _Open] = {}
        self._failed, self._numbers = failed, numbers or itertools.count(1)
        self._gpu_s = 0.0
        self._ended_at: dict[tuple[str, str | None, int | None], float] = {}

    @property
    def open(self) -> list[Finding]:
        """The findings that hold."""
        return [one.finding for one in self._open.values()]

    def look(self, window: Window) -> list[Finding]:
        """Evaluate the rules after a new step; return the findings that opened, changed or closed."""
        starting = window.starting
        window.open = frozenset(self._open)
        matches = list(self._matches(window, starting=starting))
        changed = [self._take(window, named) for named in matches]
        changed += self._close(window)
        slowing = [
            one.finding
            for one in self._open.values()
            if one.named.rule.stage in ORDER and one.finding.severity != NOTE
        ]
        self.ledger.add(window, slowing, starting=starting)
        self._gpu_s += len(window.gpus) * window.step_s
        return [finding for finding in changed if finding is not None]

    def forget_costs(self) -> None:
        """Count costs from now on, as for a session that begins."""
        self._gpu_s = 0.0
        for one in self._open.values():
            one.gpu_s = 0.0

    def not_measured(self, window: Window) -> dict[str, list[str]]:
        """Return the signals that rules need and that some nodes lack, with these nodes."""
        signals = dict.fromkeys(signal for rule in self._rules for signal in rule.signals)
        return {signal: nodes for signal in signals if (nodes := window.without(signal))}

    def _matches(self, window: Window, *, starting: bool) -> Iterable[Named]:
        """Return the matches of rules that may look now, in order, without those that others silence.

        Each GPU and node is named by one rule of ``ORDER``, the first. What is open counts as a match, as not
        all rules look at each step. A note explains no loss of time, so it silences nothing.
        """
        every = max(1, round(SLOW_S * window.scale / window.step_s))
        due = window.steps % every == 0 and not starting
        named = [one.named for one in self._open.values() if one.finding.severity != NOTE]
        for rule in [one for one in self._rules if one.early or due]:
            for match in self._find(rule, window):
                gpu = None if match.column is None else window.gpus[match.column].facts.index
                found = Named(rule, replace(match, severity=match.severity or rule.severity), gpu)
                if not any(self._explains(window, one, found) for one in named):
                    if found.match.severity != NOTE:
                        named.append(found)
                    yield found

    def _find(self, rule: Rule, window: Window) -> Sequence[Match]:
        try:
            # Values that aren't measured are NaN, and shares of them are, too.
            with np.errstate(all="ignore"):
                return list(rule.find(window))
        except Exception as error:
            self._rules.remove(rule)
            self._failed(rule, error)
            return ()

    def _explains(self, window: Window, one: Named, other: Named) -> bool:
        """Return whether a finding is why another one holds, which then says nothing new."""
        is_later = self._at[one.rule.kind] >= self._at[other.rule.kind]
        if is_later or APART in (one.rule.stage, other.rule.stage):
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

    def _take(self, window: Window, named: Named) -> Finding | None:
        """Open a finding or refresh it; return it if it is to be published."""
        match = named.match
        rank = None if match.column is None else window.rank(match.column)
        key = named.rule.kind, match.node, named.gpu
        known = self._open.get(key)
        if known is None:
            # What was counted before it ended isn't counted again.
            since = max(match.since, self._ended_at.get(key, 0.0))
            cost = match.lost * max(0.0, window.now - since)
            known = _Open(f"{next(self._numbers)}", named, rank, window.now, cost, window.now)
            if match.severity != NOTE:
                # A new finding takes over the cost of those that were found first and that it explains.
                for one in [one for one in self._open.values() if self._explains(window, named, one.named)]:
                    known.gpu_s, one.gpu_s, one.explained = max(known.gpu_s, one.gpu_s), 0.0, True
            known.finding = self._finding(window, known, window.now)
            self._open[key] = known
            return known.finding
        known.gpu_s += match.lost * (window.now - known.matched_at)
        known.matched_at, known.rank = window.now, rank
        since, before = min(match.since, known.named.match.since), known.finding.severity
        # What has cost time stays waste, also while it costs nothing more at its end.
        severity = min(match.severity, before, key=SEVERITIES.index) if known.gpu_s > 0 else match.severity
        known.named = named._replace(match=replace(match, since=since, severity=severity))
        known.finding = self._finding(window, known, window.now)
        if window.now - known.published_at < CHANGED_S * window.scale and severity == before:
            return None
        known.published_at = window.now
        return known.finding

    def _close(self, window: Window) -> Iterable[Finding]:
        for key, one in list(self._open.items()):
            # A job that has started is no longer starting; other findings may come back at once.
            over = one.explained or (one.named.rule.kind == STARTING and one.matched_at < window.now)
            if over or window.now - one.matched_at >= OFF_S * window.scale:
                del self._open[key]
                self._ended_at[key] = one.matched_at
                one.finding = self._finding(window, one, one.matched_at)
                yield replace(one.finding, until=one.matched_at)

    def _finding(self, window: Window, one: _Open, until: float) -> Finding:
        """Return the finding of an open match as it is at a time."""
        (rule, match, gpu), rank = one.named, one.rank
        node, severity = match.node, match.severity
        nodes = match.nodes or (() if node is None else (node,))
        named = first_of(nodes, NAMED) or "the nodes"
        whole = "all GPUs" if rule.stage in (ALIKE, UNKNOWN) else "all nodes"
        wide = whole if len(nodes) in (0, len(window.nodes)) else f"{len(nodes)} nodes"
        place = named if node is None else node if gpu is None else f"{node}:{gpu_label(gpu)}"
        advice = rule.advice.format(node=node or named, gpu=place, nodes=named)
        lasted = f" for {held(max(1.0, until - match.since))}" if match.lasts else ""
        share = one.gpu_s / (self._gpu_s or math.inf)
        parts = [
            place if node or 0 < len(nodes) <= NAMED else wide,
            "" if rank is None else f"rank {rank}",
            f"{match.signal}{lasted}" + (f", {match.contrast}" if match.contrast else ""),
            *match.details,
            f"≈ {100 * share:.0f} % of the run so far" if severity == WASTE and share >= 0.005 else "",
            clause(advice),
        ]
        who, sentence = (node, gpu, rank, nodes), " · ".join(part for part in parts if part)
        says = sentence, match.evidence, advice, rule.source
        found = Finding(one.number, rule.kind, severity, *who, match.since, None, one.gpu_s / 3600, *says)
        # Viewers and the file take plain values only.
        return Finding.from_plain(found.plain())


def _stage(rule: Rule) -> int:
    """Return a rule's place in ``ORDER``, -1 if it stands apart."""
    return ORDER.index(rule.stage) if rule.stage in ORDER else -1
