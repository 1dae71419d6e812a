"""History plots as lines: a panel for one metric of one GPU or host, bands for many GPUs on one time axis.

Scales start at 0 and end at a fixed top; nothing is scaled to its own smallest and largest value. The colour
of a column is that of its value on the ramp; its height shows the same without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from sys import intern

from gswarm_tui.fleet.events import EventLogged
from gswarm_tui.fleet.history import Floats
from gswarm_tui.tui.drawing.curve import Window, block_area, braille_curve, time_axis
from gswarm_tui.tui.drawing.ramp import buckets
from gswarm_tui.tui.drawing.spans import Span, Spans, joined_cells

LINE = "┊"


def marks_in(events: Iterable[EventLogged], frame: Window) -> list[float]:
    """Return the marks in a window, as fractions of its time from 0 to below 1."""
    length = frame.end - frame.start
    return [
        (one.at - frame.start) / length
        for one in events
        if one.kind == "mark" and frame.start <= one.at < frame.end
    ]


def overlay(lines: Sequence[Spans], marks: Sequence[float], first: int, columns: int) -> list[Spans]:
    """Draw marks into the blanks of a plot, in ``columns`` from cell ``first``.

    All cells up to the last column hold characters of one cell.
    """
    if not marks:
        return list(lines)
    cells = [[(char, span.role) for span in line for char in span.text] for line in lines]
    for row in cells:
        for place in (first + int(mark * columns) for mark in marks):
            if place < len(row) and row[place][0] == " ":
                row[place] = (LINE, "dim")
    return [joined_cells(row) for row in cells]


LABEL_WIDTH = 6
GAP = 2


@dataclass(frozen=True)
class PlotSeries:
    """One series to plot: ``levels`` are its bins on their scale, 0 to 1, NaN where unmeasured.

    ``top`` and ``now`` are the upper end and the newest value as text, ``note`` is at the right of the title.
    A logarithmic scale prints "log" in the place of 0; an ``old`` newest value is drawn faintly.
    """

    label: str
    levels: Floats
    top: str
    now: str
    note: str = ""
    logarithmic: bool = False
    old: bool = False

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
    for at, text in enumerate(braille_curve(plot.levels, curve_height)):
        edge = plot.top if at == 0 else ("log" if plot.logarithmic else "0") if at == curve_height - 1 else ""
        lines.append((Span(f"{edge:>{LABEL_WIDTH}} ", "dim"), *_coloured(text[:columns], plot.levels, 2)))
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
    """Return the characters of a panel's curve; a braille curve has two bins in each."""
    return max(2, width - LABEL_WIDTH - 1)


def title(plot: PlotSeries, width: int) -> Spans:
    """Return the title line: label, newest value, and the note at the right."""
    room = width - LABEL_WIDTH - 1 - len(plot.label) - 2 - len(plot.now)
    tail = plot.note.rjust(room) if len(plot.note) + 2 <= room else " " * max(0, room)
    indent = Span(" " * (LABEL_WIDTH + 1))
    return indent, Span(plot.label, "dim"), Span("  "), Span(plot.now, plot.now_role), Span(tail, "dim")


def band(plot: PlotSeries, width: int, height: int, *, newest: bool = True) -> list[Spans]:
    """Draw one series of many: name, curve, and with ``newest`` the newest value.

    The uppermost step stays empty, so that full bands below each other don't flow into one.
    """
    columns = band_width(width, newest=newest)
    draw, steps = (block_area, 8) if height == 1 else (braille_curve, 4 * height)
    texts = draw(plot.levels * ((steps - 1) / steps), height)
    lines: list[Spans] = []
    for at, text in enumerate(texts):
        last = at == height - 1
        value = (Span(f" {plot.now if last else '':>{NOW_WIDTH}}", plot.now_role),) if newest else ()
        name = Span(f"{plot.label if last else '':>{LABEL_WIDTH}} ", "dim")
        lines.append((name, *_coloured(text[:columns], plot.levels, band_bins(height)), *value))
    return lines


NOW_WIDTH = 8


def band_width(width: int, *, newest: bool = True) -> int:
    """Return the characters of a band's curve."""
    return max(2, width - LABEL_WIDTH - 1 - (1 + NOW_WIDTH if newest else 0))


def band_bins(height: int) -> int:
    """Return the bins per character of a band's curve: one in blocks, two in braille."""
    return 1 if height == 1 else 2


def sparkline(levels: Floats, height: int = 1) -> list[tuple[Span, ...]]:
    """Draw coloured blocks, 1 bin per character; the uppermost step stays empty."""
    steps = 8 * height
    return [_coloured(text, levels, 1) for text in block_area(levels * ((steps - 1) / steps), height)]


def _coloured(text: str, levels: Floats, bins: int) -> tuple[Span, ...]:
    """Colour a curve by runs; a character with several bins has the colour of the highest."""
    highest = buckets(levels).reshape(-1, bins).max(axis=1)[: len(text)].tolist()
    spans, start = [], 0
    for step, run in groupby(highest):
        end = start + len(list(run))
        # Interned: a screen has thousands of these short runs.
        spans.append(Span(intern(text[start:end]), f"ink{step}"))
        start = end
    return tuple(spans)
