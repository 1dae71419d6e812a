"""Rules and their matches: a rule has texts for people and a function that finds matches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gswarm_tui.fleet.findings import Evidence, Finding
from gswarm_tui.insight.window import Window

LOCAL, ODD_ONE, ALIKE, UNKNOWN = "local fact", "odd one out", "all alike", "cannot tell"
APART = "apart"
ORDER = (LOCAL, ODD_ONE, ALIKE, UNKNOWN)
"""The order in which rules name the culprit of a slow job; the first that matches silences those after it.

An odd one out is silenced only where something else names that GPU or node: two may be slow at once.
"""


@dataclass(frozen=True)
class Match:
    """A rule's condition holds now.

    ``column`` is the GPU's column in the window, None if it names no GPU; ``node`` is None if it names none,
    and ``nodes`` are all that it is about. ``since`` is Unix seconds. ``signal`` names the number that shows
    it, as in "clock 1,215 MHz", and ``contrast`` what the peers have, as in "the other 31 at 1,965";
    ``details`` are further parts of the sentence. ``lost`` is how many GPUs' worth of work it costs now.
    ``severity`` and ``advice`` replace those of the rule where given. ``lasts`` is False for an event or a
    total, which a sentence can't call true "for 4 min".
    """

    node: str | None
    column: int | None
    since: float
    signal: str
    evidence: tuple[Evidence, ...]
    contrast: str = ""
    details: tuple[str, ...] = ()
    lost: float = 0.0
    nodes: tuple[str, ...] = ()
    severity: str = ""
    advice: str = ""
    lasts: bool = True


@dataclass(frozen=True)
class Rule:
    """One kind of finding.

    ``stage`` is one of ``ORDER`` for rules that name the culprit of a slow job, ``APART`` for others.
    ``signals`` are those that it can't do without: names of signals, of metrics of ``NEWEST``, or
    "processes", "ports", "mounts", "events". ``window`` and ``threshold`` are words, ``source`` says where
    the threshold comes from. ``advice`` is one sentence; {node}, {gpu} and {nodes} stand for the culprits.
    ``why``, ``silent_if`` and ``wrong_when`` are for its page. ``early`` rules also look while a job starts.
    """

    kind: str
    title: str
    severity: str
    stage: str
    signals: tuple[str, ...]
    window: str
    threshold: str
    source: str
    advice: str
    why: str
    silent_if: str
    wrong_when: str
    find: Callable[[Window], Iterable[Match]]
    early: bool = False


def _check(rule: Rule, match: Match, window: Window) -> None:
    """Check a match before anything is made of it. Raises an exception of any kind for a malformed one."""
    gpu = None if match.column is None else window.gpus[match.column].facts.index
    advice = match.advice.format(node="", gpu="", nodes="")
    severity, lost = match.severity or rule.severity, float(match.lost)
    who, says = (match.node, gpu, None, match.nodes), (match.signal, match.evidence, advice, rule.source)
    finding = Finding("", rule.kind, severity, *who, match.since, None, lost, *says)
    Finding.from_plain(finding.plain())


def guarded(rules: Sequence[Rule], failed: Callable[[Rule, Exception], None]) -> tuple[Rule, ...]:
    """Return rules that can't raise.

    One that fails or yields a malformed match is reported once and finds nothing from then on.
    """
    broken: set[str] = set()

    def find(rule: Rule, window: Window) -> Iterable[Match]:
        if rule.kind in broken:
            return ()
        try:
            # Values that aren't measured are NaN, and shares of them are, too.
            with np.errstate(all="ignore"):
                matches = list(rule.find(window))
            for match in matches:
                _check(rule, match, window)
            return matches
        except Exception as error:
            broken.add(rule.kind)
            failed(rule, error)
            return ()

    return tuple(replace(rule, find=partial(find, rule)) for rule in rules)
