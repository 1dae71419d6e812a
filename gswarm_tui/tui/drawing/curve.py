"""Primitives of plots: time bins, block characters, time axes. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gswarm_tui.fleet.history import Floats, Series, binned
from gswarm_tui.tui.drawing.ramp import BLOCKS

STEPS = " " + BLOCKS
_TICKS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
HOLD_INTERVALS = 1.5
"""A sample is drawn for this many intervals; longer silence is a gap."""


@dataclass(frozen=True)
class CurveSpan:
    """A time range in equal bins; Unix seconds."""

    start: float
    end: float
    bins: int

    @property
    def bin_s(self) -> float:
        """Length of a bin in seconds."""
        return (self.end - self.start) / self.bins


def window(now: float, span_s: float, bins: int) -> CurveSpan:
    """Return the last ``span_s`` seconds; bins start at multiples of their length, so nothing flickers."""
    bins = max(1, bins)
    bin_s = span_s / bins
    end = (math.floor(now / bin_s) + 1) * bin_s
    return CurveSpan(end - span_s, end, bins)


def in_bins(series: Series, frame: CurveSpan, interval_s: float) -> Floats:
    """Return the mean of each bin by time, shape (bins,); NaN where nothing was measured.

    Bins shorter than the interval hold the previous sample, for at most 1.5 intervals.
    """
    means = binned(series, frame.start, frame.end, frame.bins)
    places = np.arange(frame.bins)
    latest = np.maximum.accumulate(np.where(np.isfinite(means), places, -1))
    recent = (latest >= 0) & ((places - latest) * frame.bin_s <= HOLD_INTERVALS * interval_s)
    return np.where(recent, means[latest], np.nan)


def block_area(levels: Floats, height: int = 1) -> list[str]:
    """Draw a filled curve, top line first: 1 bin per character, 8 steps per line; only gaps are blank."""
    steps = _steps(levels, height * 8)
    lines = []
    for line in range(height):
        here = np.clip(steps - (height - 1 - line) * 8, 0, 8).tolist()
        lines.append("".join(STEPS[s] for s in here))
    return lines


def bar(level: float, width: int) -> str:
    """Draw a level from 0 to 1 as a bar, padded with blanks."""
    if not math.isfinite(level):
        return " " * width
    eighths = round(min(1.0, max(0.0, level)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def _steps(levels: Floats, full: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    measured = np.isfinite(levels)
    steps = np.clip(np.ceil(np.where(measured, levels, 0.0) * full - 1e-9), 1, full)
    return np.where(measured, steps, 0).astype(np.int64)


def time_axis(span_s: float, width: int, last: str = "now") -> str:
    """Return a time axis of ``width`` characters: ages at even steps, ``last`` at the right end."""
    step = next((t for t in _TICKS_S if span_s / t <= max(1, width // 10)), _TICKS_S[-1])
    line = [" "] * width
    _put(line, width - len(last), last)
    age = step
    while age <= span_s * (1 + 1e-9):
        at = round(width - age / span_s * width)
        _put(line, at, f"╵{ago(age)}")
        age += step
    return "".join(line)


def ago(seconds: float) -> str:
    """Format a tick of the time axis: "−30 s", "−4:30", "−5 min"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"−{rest} s" if not minutes else f"−{minutes}:{rest:02d}" if rest else f"−{minutes} min"


def _put(line: list[str], at: int, text: str) -> None:
    if at < 0 or at + len(text) > len(line) or any(c != " " for c in line[at : at + len(text) + 1]):
        return
    line[at : at + len(text)] = text
