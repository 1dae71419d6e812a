"""A line of text in several styles, drawn by line and redrawn only when it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from gswarm_tui.tui.text import clip, width
from gswarm_tui.tui.themes import Palette, palette


class Span(NamedTuple):
    """A piece of clean text, the role of its style (``Palette.role``) and what a click on it does."""

    text: str
    role: str = "text"
    click: str = ""


Line = Sequence[Span]


def measure(spans: Iterable[Span]) -> int:
    """The width of a line in cells."""
    return sum(width(span.text) for span in spans)


def spread(left: Line, right: Line, cells: int) -> list[Span]:
    """A line with one part at the left and one at the right end, the right one left out if both don't fit."""
    space = cells - measure(left) - measure(right)
    return [*left, Span(" " * space), *right] if space >= 1 and right else list(left)


def strip_of(spans: Line, cells: int, colours: Palette) -> Strip:
    """Draw a line into exactly so many cells, an ellipsis at the end where it doesn't fit."""
    segments = []
    room = cells
    for text, role, click in spans:
        shown = clip(text, room) if width(text) > room else text
        style = colours.role(role)
        if click:
            style += Style.from_meta({"@click": click})
        segments.append(Segment(shown, style))
        room -= width(shown)
        if room <= 0:
            break
    if room > 0:
        segments.append(Segment(" " * room, colours.role("text")))
    return Strip(segments, cells)


class Bar(Widget):
    """One or more lines of spans, given with ``show``."""

    DEFAULT_CSS = "Bar { height: auto; width: 1fr; }"

    def __init__(self, *lines: Line, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: tuple[tuple[Span, ...], ...] = tuple(tuple(line) for line in lines) or ((),)

    def show(self, *lines: Line) -> None:
        """Put these lines in the place of the present ones."""
        new = tuple(tuple(line) for line in lines)
        if new == self._lines:
            return
        taller = len(new) != len(self._lines)
        self._lines = new
        self.refresh(layout=taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as it has lines."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw one of the lines."""
        spans = self._lines[y] if y < len(self._lines) else ()
        return strip_of(spans, self.size.width, palette(self.app.theme))
