"""History plots as lines: a panel for one metric of one GPU or host, bands for many GPUs on one time axis.

Scales start at 0 and end at a fixed top; nothing is scaled to its own smallest and largest value. Curves are
filled: each cell has the ramp's colour at its height, the uppermost one that of the value. The height shows
the value without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from sys import intern

import numpy as np

from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.history import Floats
from gswarm_tui.tui.drawing.curve import CurveSpan, block_area, time_axis
from gswarm_tui.tui.drawing.ramp import Buckets, bucket, buckets
from gswarm_tui.tui.drawing.spans import Span, Spans, joined_cells

LINE = "┊"
FEW_MARKS = 8
"""A mark is drawn over curves where there is at most one in this many columns, else only into the blanks."""


def marks_in(events: Iterable[EventLogged], frame: CurveSpan) -> list[float]:
    """Return the marks in a window, as fractions of its time from 0 to below 1."""
    length = frame.end - frame.start
    return [
        (one.at - frame.start) / length
        for one in events
        if one.kind == "mark" and frame.start <= one.at < frame.end
    ]


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
    A logarithmic scale prints "log" in the place of 0; an ``old`` newest value is drawn faintly. ``ramp`` is
    that of ``ramp_of``.
    """

    label: str
    levels: Floats
    top: str
    now: str
    note: str = ""
    logarithmic: bool = False
    old: bool = False
    ramp: str = ""

    @property
    def now_role(self) -> str:
        """Role of the newest value."""
        return "dim" if self.old else "text"


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
    lines = []
    for parts in zip(*panels, strict=True):
        line = list(parts[0])
        for part in parts[1:]:
            line += [Span(" " * GAP), *part]
        lines.append(tuple(line))
    return lines


def curve_width(width: int) -> int:
    """Return the characters of a panel's curve, each of one bin."""
    return max(2, width - LABEL_WIDTH - 1)


def title(plot: PlotSeries, width: int) -> Spans:
    """Return the title line: label, newest value, and the note at the right."""
    room = width - LABEL_WIDTH - 1 - len(plot.label) - 2 - len(plot.now)
    tail = plot.note.rjust(room) if len(plot.note) + 2 <= room else " " * max(0, room)
    indent = Span(" " * (LABEL_WIDTH + 1))
    return indent, Span(plot.label, "dim"), Span("  "), Span(plot.now, plot.now_role), Span(tail, "dim")


def band(
    plot: PlotSeries, width: int, height: int, *, newest: bool = True, label: int = LABEL_WIDTH
) -> list[Spans]:
    """Draw one series of many: name in ``label`` cells, curve, and with ``newest`` the newest value."""
    columns = band_width(width, newest=newest, label=label)
    lines: list[Spans] = []
    for at, curve in enumerate(sparkline(plot.levels[:columns], height, plot.ramp)):
        here = at == label_line(height)
        value = (Span(f" {plot.now if here else '':>{NOW_WIDTH}}", plot.now_role),) if newest else ()
        lines.append((Span(f"{plot.label if here else '':>{label}} ", "dim"), *curve, *value))
    return lines


NOW_WIDTH = 8


def label_line(height: int) -> int:
    """Return the line of a band that has its name: the middle one, far from the bands above and below."""
    return (height - 1) // 2


def band_width(width: int, *, newest: bool = True, label: int = LABEL_WIDTH) -> int:
    """Return the characters of a band's curve, each of one bin."""
    return max(2, width - label - 1 - (1 + NOW_WIDTH if newest else 0))


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
