"""Rules and their matches: a rule has texts for people and a function that finds matches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gswarm_tui.fleet.findings import MAX_TIME, Evidence
from gswarm_tui.insight.window import Window

LOCAL, ODD_ONE, ALIKE, UNKNOWN = ORDER = ("local fact", "odd one out", "all alike", "cannot tell")
"""The order in which rules name the culprit of a slow job; the first that matches silences those after it.

An odd one out is silenced only where something else names that GPU or node: two may be slow at once.
"""
APART = "apart"


@dataclass(frozen=True)
class Match:
    """A rule's condition holds now.

    ``column`` is the GPU's column in the window, None if it names no GPU; ``node`` is None if it names none,
    and ``nodes`` are all that it is about. ``since`` is Unix seconds. ``signal`` names the number that shows
    it, as in "clock 1,215 MHz", and ``contrast`` what the peers have, as in "the other 31 at 1,965";
    ``details`` are further parts of the sentence. ``lost`` is how many GPUs' worth of work it costs now.
    ``severity`` replaces that of the rule where given. ``lasts`` is False for an event or a total, which a
    sentence can't call true "for 4 min".
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
    lasts: bool = True

    def __post_init__(self) -> None:
        """Check the numbers. Raises ValueError."""
        if not 0 <= self.since < MAX_TIME or not math.isfinite(self.lost):
            raise ValueError("its time or its cost is no number")


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
