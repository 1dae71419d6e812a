"""How often the driver changes values that are sampled faster, measured from a node's newest samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gswarm_agent.metrics import GPU_COLUMNS
from gswarm_tui.fleet.events import RefreshMeasured, json_object
from gswarm_tui.fleet.history import Floats, Singles
from gswarm_tui.fleet.node import NodeState

REFRESH_MS = "refresh_ms"
"""Key of the refresh times in a node's recorded capabilities; all other keys hold reasons."""
FLUCTUATING = ("util_pct", "mem_util_pct", "power_w")
"""Metrics whose value repeats because the driver hasn't refreshed it; others may just be steady."""
FASTEST_WATCHED_MS = 500
"""Longest sampling interval at which refreshing is measured: drivers refresh at least once a second."""
SPAN_S = 60.0
CHANGES_LEAST = 8
MEASURE_EVERY_S = 1.0
"""Pause before the next node's refreshing is measured."""
_ALIKE = 1.2
"""Refresh times within this factor count as equal."""


def unmeasured_reasons(capabilities: object) -> dict[str, str]:
    """Return why metrics could not be measured, from the recorded capabilities of a node."""
    return {name: str(why) for name, why in json_object(capabilities).items() if name != REFRESH_MS}


class RefreshWatch:
    """Measures how often the drivers of a fleet refresh values, of one node after the other."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._turn = 0
        self._next_at = -math.inf

    def measure(self, nodes: Sequence[NodeState], now: float) -> list[RefreshMeasured]:
        """Measure the next node's refreshing if it is due; return what is new."""
        if now < self._next_at or not nodes:
            return []
        self._next_at, self._turn = now + MEASURE_EVERY_S, self._turn + 1
        node = nodes[self._turn % len(nodes)]
        known = self._known.get(node.name, {})
        new = {
            name: round(ms)
            for name, (ms, _) in slow_refreshes(node, now).items()
            if name not in known or not known[name] / _ALIKE < ms < known[name] * _ALIKE
        }
        if not new:
            return []
        self._known[node.name] = known | new
        return [RefreshMeasured(node.name, now, self._known[node.name])]


def refresh_ms(times: Floats, values: Singles) -> float | None:
    """Return the time between changes of one GPU's values, None after too few changes.

    It is the lower quartile of the gaps: a refresh that brings an equal value only lengthens a gap.
    """
    known = ~np.isnan(values)
    times, values = times[known], values[known]
    changed = times[1:][np.diff(values) != 0]
    if len(changed) <= CHANGES_LEAST:
        return None
    return float(np.quantile(np.diff(changed), 0.25)) * 1000


def slow_refreshes(node: NodeState, now: float) -> dict[str, tuple[float, float]]:
    """Return metrics that the driver refreshes more slowly than they are sampled: refresh and interval (ms).

    Of a node's GPUs the fastest counts.
    """
    history = node.gpu_history
    intervals = history.intervals(now - SPAN_S) if history is not None else np.empty(0)
    intervals = intervals[np.isfinite(intervals)]
    if history is None or not len(intervals):
        return {}
    interval = float(np.median(intervals)) * 1000
    if interval > FASTEST_WATCHED_MS:
        return {}
    slow = {}
    for name in FLUCTUATING:
        times, values = history.series(GPU_COLUMNS.index(name), since=now - SPAN_S)
        found = [ms for row in values.T if (ms := refresh_ms(times, row)) is not None]
        if found and min(found) >= 1.5 * interval:
            slow[name] = min(found), interval
    return slow
