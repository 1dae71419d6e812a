"""Timeline of a profile: lanes of kernels, copies and ranges above util, memory and power of the GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gswarm_tui.analysis.profile_timeline import SAMPLED, ProfileTimeline, Sampled
from gswarm_tui.common.quantities import DASH, brief_time, mebibytes, percent, watts
from gswarm_tui.common.units import nice_ceiling
from gswarm_tui.fleet.history import Floats
from gswarm_tui.tui.drawing.curve import block_area
from gswarm_tui.tui.drawing.spans import Span, Spans

LABEL = 17
"""Cells of a lane's name and value."""
LANE_LINES = {"kernels": 3, "copies": 2, "ranges": 2}
CURVE_LINES = 2
_SHOWN = {"util_pct": ("util", percent), "mem_used_mib": ("memory", mebibytes), "power_w": ("power", watts)}
_TICK_CELLS = 12
"""Least cells between two ticks."""
_HELD = 1.5
"""A sample is drawn for this many of its intervals, as in other plots."""


def columns_of(width: int) -> int:
    """Return the characters of a lane, each of which is a bin."""
    return max(10, width - LABEL - 1)


def profile_lines(
    timeline: ProfileTimeline,
    origin_ns: int,
    memory_mib: float | None,
    power_w: float | None,
    *,
    scale: int = 1,
    gap: int = 0,
) -> list[Spans]:
    """Return the lines of a timeline, with lanes of ``scale`` times their height and ``gap`` lines between.

    Times count from ``origin_ns``, and scales end at the GPU's limits.
    """
    between: list[Spans] = [()] * gap
    bins = len(next(iter(timeline.lanes.values())))
    lines: list[Spans] = []
    for lane, shares in timeline.lanes.items():
        levels = np.array(shares, dtype=np.float64)
        busy = f"{100 * float(levels.mean()):.0f} %"
        levels[levels == 0] = np.nan  # nothing ran
        lines += _lane(lane, busy, levels, scale * LANE_LINES[lane], "accent") + between
    lines = lines[: len(lines) - gap]  # the axis is at the last lane
    lines.append((Span(" " * LABEL + _axis(timeline, origin_ns, bins), "dim"),))
    if not timeline.samples:
        return [*lines, (Span(" no samples of this GPU at this time", "dim"),)]
    tops = {"util_pct": 100.0, "mem_used_mib": memory_mib, "power_w": power_w}
    for at, name in enumerate(SAMPLED):
        label, shown = _SHOWN[name]
        values = _in_bins(timeline.samples, at, timeline, bins)
        known = values[np.isfinite(values)]
        top = tops[name] or (float(known.max()) if len(known) else 0.0) or 1.0
        text = shown(float(known.mean())) if len(known) else DASH
        lines += between + _lane(label, text, values / top, scale * CURVE_LINES, "dim")
    return lines


def _in_bins(samples: Sequence[Sampled], at: int, timeline: ProfileTimeline, bins: int) -> Floats:
    """Return a sampled value in the middle of each bin, NaN where no sample covers it."""
    values = np.full(bins, np.nan)
    if not samples:
        return values
    ends = np.array([one.end_ns for one in samples])
    readings = np.array([np.nan if (value := one.values[at]) is None else value for one in samples])
    lengths = np.array([one.length_ns for one in samples])
    middles = timeline.start_ns + (np.arange(bins) + 0.5) * (timeline.end_ns - timeline.start_ns) / bins
    places = np.searchsorted(ends, middles)
    inside = places < len(ends)
    covered = places[inside]
    fresh = ends[covered] - middles[inside] <= _HELD * lengths[covered]
    values[inside] = np.where(fresh, readings[covered], np.nan)
    return values


def _lane(label: str, value: str, levels: Floats, height: int, role: str) -> list[Spans]:
    lines: list[Spans] = []
    for at, text in enumerate(block_area(levels, height)):
        head = f" {label:<7}{value:>{LABEL - 9}} " if at == height - 1 else " " * LABEL
        lines.append((Span(head[:LABEL], "dim"), Span(text, role)))
    return lines


def _axis(timeline: ProfileTimeline, origin_ns: int, bins: int) -> str:
    """Return a time axis with ticks at round times, each with its time where that fits."""
    cell_ns = (timeline.end_ns - timeline.start_ns) / bins
    step = round(nice_ceiling(max(1.0, _TICK_CELLS * cell_ns)))
    line = ""
    for at in range(-(-(timeline.start_ns - origin_ns) // step) * step, timeline.end_ns - origin_ns, step):
        place = int((at + origin_ns - timeline.start_ns) / cell_ns)
        tick = f"╵{brief_time(at) if at else '0'}"
        line = line.ljust(place) + (tick if place + len(tick) <= bins else "╵")
    return line.ljust(bins)
