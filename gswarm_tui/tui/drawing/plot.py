"""History plots as lines: time bins and axes, block characters, panels of one metric, bands of many GPUs.

Scales start at 0 and end at a fixed top; nothing is scaled to its own smallest and largest value. Curves are
filled: each cell has the ramp's colour at its height, the uppermost one that of the value. The height shows
the value without colour. No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from sys import intern

import numpy as np

from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.history import Floats, Series, binned
from gswarm_tui.tui.drawing.ramp import BLOCKS, Buckets, bucket, buckets
from gswarm_tui.tui.drawing.spans import Span, Spans, joined_cells

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
    measured, full = np.isfinite(levels), height * 8
    steps = np.clip(np.ceil(np.where(measured, levels, 0.0) * full - 1e-9), 1, full)
    steps = np.where(measured, steps, 0).astype(np.int64)
    lines = (np.clip(steps - 8 * below, 0, 8).tolist() for below in reversed(range(height)))
    return ["".join(STEPS[step] for step in line) for line in lines]


def bar(level: float, width: int) -> str:
    """Draw a level from 0 to 1 as a bar, padded with blanks."""
    if not math.isfinite(level):
        return " " * width
    eighths = round(min(1.0, max(0.0, level)) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width)


def time_axis(span_s: float, width: int, last: str = "now") -> str:
    """Return a time axis of ``width`` characters: ages at even steps, ``last`` at the right end."""
    step = next((t for t in _TICKS_S if span_s / t <= max(1, width // 10)), _TICKS_S[-1])
    ages = [step * number for number in range(1, int(span_s / step + 1e-9) + 1)]
    ticks = [(round(width - age / span_s * width), f"╵{ago(age)}") for age in ages]
    line = " " * width
    for at, text in [(width - len(last), last), *ticks]:
        end = at + len(text)
        # A tick that would touch another one is left out.
        if at >= 0 and end <= width and not line[at : end + 1].strip():
            line = line[:at] + text + line[end:]
    return line


def ago(seconds: float) -> str:
    """Format a tick of the time axis: "−30 s", "−4:30", "−5 min"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"−{rest} s" if not minutes else f"−{minutes}:{rest:02d}" if rest else f"−{minutes} min"


LINE = "┊"
FEW_MARKS = 8
"""A mark is drawn over curves where there is at most one in this many columns, else only into the blanks."""


def marks_in(events: Iterable[EventLogged], frame: CurveSpan) -> list[float]:
    """Return the marks in a window, as fractions of its time from 0 to below 1."""
    times = (one.at for one in events if one.kind == "mark" and frame.start <= one.at < frame.end)
    return [(at - frame.start) / (frame.end - frame.start) for at in times]


def overlay(lines: Sequence[Spans], marks: Sequence[float], first: int, columns: int) -> list[Spans]:
    """Draw marks into a plot, in ``columns`` from cell ``first``.

    All cells up to the last column hold characters of one cell.
    """
    if not marks:
        return list(lines)
    cells = [[(char, span.role) for span in line for char in span.text] for line in lines]
    places = {first + int(mark * columns) for mark in marks}
    few = len(places) * FEW_MARKS <= columns
    for row in cells:
        for place in places:
            if place < len(row) and (few or row[place][0] == " "):
                row[place] = (LINE, "dim")
    return [joined_cells(row) for row in cells]


LABEL_WIDTH = 6
GAP = 2


@dataclass(frozen=True)
class PlotSeries:
    """One series to plot: ``levels`` are its bins on their scale, 0 to 1, NaN where unmeasured.

    ``top`` and ``now`` are the upper end and the newest value as text, ``note`` is at the right of the title.
    A logarithmic scale prints "log" in the place of 0. ``now_role`` is "dim" for an old value, ``ramp`` that
    of ``ramp_of``.
    """

    label: str
    levels: Floats
    top: str
    now: str
    note: str = ""
    logarithmic: bool = False
    now_role: str = "text"
    ramp: str = ""


def panel(
    plot: PlotSeries,
    width: int,
    height: int,
    span_s: float | None = None,
    last: str = "now",
    *,
    marks: Sequence[float] = (),
) -> list[Spans]:
    """Draw title, curve and scale, and with ``span_s`` a time axis, in ``height`` lines."""
    curve_height = max(1, height - 1 - (span_s is not None))
    columns = curve_width(width)
    lines: list[Spans] = []
    for at, curve in enumerate(area(plot.levels[:columns], curve_height, plot.ramp)):
        edge = plot.top if at == 0 else ("log" if plot.logarithmic else "0") if at == curve_height - 1 else ""
        lines.append((Span(f"{edge:>{LABEL_WIDTH}} ", "dim"), *curve))
    lines = [title(plot, width), *overlay(lines, marks, LABEL_WIDTH + 1, columns)]
    if span_s is not None:
        lines.append((Span(" " * (LABEL_WIDTH + 1) + time_axis(span_s, columns, last), "dim"),))
    return lines


def beside(panels: list[list[Spans]]) -> list[Spans]:
    """Join panels of one height side by side."""
    gap = Span(" " * GAP)
    rows = zip(*panels, strict=True)
    return [(*first, *(span for part in rest for span in (gap, *part))) for first, *rest in rows]


def curve_width(width: int) -> int:
    """Return the characters of a panel's curve, each of one bin."""
    return max(2, width - LABEL_WIDTH - 1)


def title(plot: PlotSeries, width: int) -> Spans:
    """Return the title line: label, newest value, and the note at the right."""
    room = width - LABEL_WIDTH - 1 - len(plot.label) - 2 - len(plot.now)
    tail = plot.note.rjust(room) if len(plot.note) + 2 <= room else " " * max(0, room)
    indent = Span(" " * (LABEL_WIDTH + 1))
    return indent, Span(plot.label, "dim"), Span("  "), Span(plot.now, plot.now_role), Span(tail, "dim")


def band(plot: PlotSeries, width: int, height: int, *, newest: bool = True) -> list[Spans]:
    """Draw one series of many: name, curve, and with ``newest`` the newest value."""
    columns = band_width(width, newest=newest)
    lines: list[Spans] = []
    for at, curve in enumerate(sparkline(plot.levels[:columns], height, plot.ramp)):
        here = at == label_line(height)
        value = (Span(f" {plot.now if here else '':>{NOW_WIDTH}}", plot.now_role),) if newest else ()
        lines.append((Span(f"{plot.label if here else '':>{LABEL_WIDTH}} ", "dim"), *curve, *value))
    return lines


NOW_WIDTH = 8


def label_line(height: int) -> int:
    """Return the line of a band that has its name: the middle one, far from the bands above and below."""
    return (height - 1) // 2


def band_width(width: int, *, newest: bool = True) -> int:
    """Return the characters of a band's curve, each of one bin."""
    return max(2, width - LABEL_WIDTH - 1 - (1 + NOW_WIDTH if newest else 0))


def sparkline(levels: Floats, height: int = 1, ramp: str = "") -> list[Spans]:
    """Draw a filled curve whose uppermost step stays empty, so that full ones don't flow into one."""
    steps = 8 * height
    return area(levels, height, ramp, (steps - 1) / steps)


def area(levels: Floats, height: int, ramp: str, scale: float = 1.0) -> list[Spans]:
    """Draw a filled curve of at most ``scale`` of its height, 1 bin per character."""
    own = buckets(levels)
    texts = block_area(levels * scale, height)
    tops = [bucket((height - line) / height) for line in range(height)]
    return [_coloured(text, np.minimum(own, top), ramp) for text, top in zip(texts, tops, strict=True)]


def _coloured(text: str, steps: Buckets, ramp: str) -> Spans:
    """Colour a line by runs of equal steps."""
    spans, start = [], 0
    for step, run in groupby(steps.tolist()):
        end = start + len(list(run))
        # Interned: a screen has thousands of these short runs.
        spans.append(Span(intern(text[start:end]), f"ink{ramp}{step}"))
        start = end
    return tuple(spans)
