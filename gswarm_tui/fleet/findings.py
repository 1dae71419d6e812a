"""Findings: who is at fault, since when, by which numbers, at what cost, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gswarm_agent.frame import gpu_label
from gswarm_tui.fleet.plain_values import typed

FAULT, WASTE, NOTE = SEVERITIES = ("fault", "waste", "note")
"""A fault will end the job or already has, waste costs time, a note costs nothing. The worst comes first."""
MAX_TIME = 2.0**34
"""Later times, from the year 2514 on, are none."""
CONTEXT = frozenset(("odd_node", "uneven_stages", "fragmented", "starting", "blind"))
"""Kinds of notes that describe the job or a node; they come after notes about what happens."""
CANNOT_TELL = "cannot_tell"
"""Kind of the finding that something is slow and no rule names the cause."""
RANK_BEHIND = "rank_behind"
"""Kind of the finding that the job's own answer makes, which samples can't make again."""
SLOWER_THAN_USUAL = "slower_than_usual"
"""Kind of the finding that a run is slower than former ones, which the recorder makes once, at the end."""


@dataclass(frozen=True)
class Evidence:
    """One number of a finding: a metric's value, that of the peers (None without any), and the unit."""

    metric: str
    value: float | str
    peers: float | str | None = None
    unit: str = ""


@dataclass(frozen=True)
class Finding:
    """One finding; times are Unix seconds, ``until`` is None while it holds.

    ``gpu`` is the GPU's index, None if it is about a whole node; ``node`` is None if it names none, and
    ``nodes`` then has all that it is about. ``rank`` is the rank on that GPU, if known. ``gpu_hours`` are
    those lost so far. ``sentence`` has parts joined by " · ": who, signal, details, cost, advice.
    ``source`` says where the rule and its threshold come from. ``dismissed`` ones aren't shown first.
    """

    finding_id: str
    kind: str
    severity: str
    node: str | None
    gpu: int | None
    rank: int | None
    nodes: tuple[str, ...]
    since: float
    until: float | None
    gpu_hours: float
    sentence: str
    evidence: tuple[Evidence, ...]
    advice: str
    source: str
    dismissed: bool = False

    @property
    def subject(self) -> str:
        """Whom it names, as in "gpu04:5"; the number of nodes if it names none."""
        if self.node is not None:
            return self.node if self.gpu is None else f"{self.node}:{gpu_label(self.gpu)}"
        return self.nodes[0] if len(self.nodes) == 1 else f"{len(self.nodes)} nodes"

    def plain(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON and msgpack, without evidence that is no number."""
        values = {field.name: _plain(getattr(self, field.name)) for field in fields(self)}
        evidence = [{name: _plain(value) for name, value in vars(one).items()} for one in self.evidence]
        return values | {
            "nodes": list(self.nodes),
            "evidence": [one for one in evidence if one["value"] is not None],
        }

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Finding:
        """Return the finding of plain values. Raises TypeError, ValueError, KeyError for others."""
        evidence = tuple(
            typed(Evidence, *(one[field.name] for field in fields(Evidence))) for one in values["evidence"]
        )
        found = values | {"nodes": tuple(values["nodes"]), "evidence": evidence}
        finding = typed(cls, *(found[field.name] for field in fields(cls)))
        if not all(isinstance(node, str) for node in finding.nodes):
            raise TypeError("a node's name is no text")
        times = (finding.since, finding.since if finding.until is None else finding.until)
        if finding.severity not in SEVERITIES or not all(0 <= at < MAX_TIME for at in times):
            raise ValueError("its severity or its time is unknown")
        if not math.isfinite(finding.gpu_hours):
            raise ValueError("its cost is no number")
        return finding


def _plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and None for one that isn't finite, which JSON can't have."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with faults first, then waste by GPU-hours, then notes; dismissed ones last.

    The job's own answer comes before other faults: in a hang, it names the rank. Of notes, those that
    describe the job come after the others. What still holds comes before what ended.
    """
    return sorted(
        findings,
        key=lambda one: (
            one.dismissed,
            SEVERITIES.index(one.severity),
            one.kind != RANK_BEHIND,
            -one.gpu_hours,
            one.kind in CONTEXT,
            one.until is not None,
            one.since,
        ),
    )


def holding(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that hold and that nobody dismissed, the most important first."""
    return in_order(one for one in findings if one.until is None and not one.dismissed)
