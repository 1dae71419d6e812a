"""Spans: pieces of text with a role, joined to lines and drawn as Textual's strips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from gswarm_tui.tui.drawing.text import clean, clip, width, wrap
from gswarm_tui.tui.drawing.themes import palette

CURSOR_MARK = "▸"
LABELS = 16
"""Cells of the labels before texts."""


class Span(NamedTuple):
    """Clean text, the role of its style (in a ``Palette``) and the action of a click."""

    text: str
    role: str = "text"
    click: str = ""


Line = Sequence[Span]


def measure(spans: Iterable[Span]) -> int:
    """Return the width of a line in cells."""
    return sum(width(span.text) for span in spans)


def spread(left: Line, right: Line, cells: int) -> list[Span]:
    """Return a line with a left and a right part; the right one is left out where both don't fit."""
    space = cells - measure(left) - measure(right)
    return [*left, Span(" " * space), *right] if space >= 1 and right else list(left)


Spans = tuple[Span, ...]


def heading_rule(words: str, cells: int) -> Spans:
    """Return a rule over the whole width with words near its left end."""
    rest = "─" * (cells - width(words) - 3)
    return Span("─", "faint"), Span(f" {words} ", "dim"), Span(rest, "faint")


def wrapped(words: str, cells: int, role: str = "text") -> list[Spans]:
    """Wrap a text to the width, and clean it."""
    return [(Span(f" {line}", role),) for line in wrap(clean(words), max(20, cells - 2))]


def labelled(lines: Iterable[tuple[str, str]], cells: int) -> list[Spans]:
    """Return labels with their texts, wrapped to the width and cleaned."""
    shown: list[Spans] = []
    for label, words in lines:
        for at, part in enumerate(wrap(clean(words), max(20, cells - LABELS - 2)) or [""]):
            shown.append((Span(f" {clean(label) if at == 0 else '':<{LABELS}}", "dim"), Span(part)))
    return shown


def joined_cells(cells: Iterable[tuple[str, str]]) -> Spans:
    """Return the spans of single characters with roles."""
    return tuple(
        Span("".join(char for char, _ in run), role) for role, run in groupby(cells, key=itemgetter(1))
    )


ON_SCREEN = 256
"""Drawn lines in the cache: more than a screen has. A line of a plot takes up to 40 kB."""


@lru_cache(maxsize=ON_SCREEN)
def drawn(spans: Spans, cells: int, theme: str, under: str = "") -> Strip:
    """Draw a line into exactly this many cells, with an ellipsis where it is cut.

    ``under`` is the role of the cursor's line.
    """
    colours = palette(theme)
    over = colours[under] if under else None
    segments = []
    room = cells
    for span in spans:
        text = clip(span.text, room)
        style = colours[span.role]
        style = over + style if over and span.role.startswith("heat") else style + over
        if span.click:
            style += Style.from_meta({"@click": span.click})
        segments.append(Segment(text, style))
        room -= width(text)
        if room <= 0:
            break
    if room > 0:
        segments.append(Segment(" " * room, colours["text"] + over))
    return Strip(segments, cells)
