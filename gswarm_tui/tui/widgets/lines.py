"""Lines of spans on screen: how they are drawn, and a widget that redraws only those that changed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rich.segment import Segment
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gswarm_tui.tui.ramp import BUCKETS
from gswarm_tui.tui.text import clip, width
from gswarm_tui.tui.themes import palette
from gswarm_tui.tui.widgets.bar import Span

Spans = tuple[Span, ...]

HEAT = "heat"
# By bucket, the unmeasured one at -1: a screen of curves has thousands of them, so they are made once.
_INKS = tuple(f"ink{step}" for step in (*range(BUCKETS), -1))
_HEATS = tuple(f"{HEAT}{step}" for step in (*range(BUCKETS), -1))
ON_SCREEN = 256
"""Lines kept as drawn: more than a screen has. One of a plot takes up to 40 kB, and moves with each look."""


def ink(bucket: int) -> str:
    """The role of text in a bucket's colour."""
    return _INKS[bucket]


def heat(bucket: int) -> str:
    """The role of text on a bucket's colour."""
    return _HEATS[bucket]


@lru_cache(maxsize=ON_SCREEN)
def drawn(spans: Spans, cells: int, theme: str, under: str = "") -> Strip:
    """A line in exactly so many cells; ``under`` is the role of a cursor's line, that leaves heat alone."""
    colours = palette(theme)
    over = colours.role(under) if under else None
    segments = []
    room = cells
    for span in spans:
        text = clip(span.text, room)
        style = colours.role(span.role)
        segments.append(Segment(text, over + style if over and span.role.startswith(HEAT) else style + over))
        room -= width(text)
        if room <= 0:
            break
    if room > 0:
        segments.append(Segment(" " * room, colours.role("text") + over))
    return Strip(segments, cells)


class Canvas(ScrollView, can_focus=False, inherit_bindings=False):
    """Shows lines as they are; scrolls when they don't fit."""

    DEFAULT_CSS = "Canvas { height: auto; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    class Resized(Message):
        """There is more or less room than before."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: tuple[Spans, ...] = ()

    @property
    def lines(self) -> tuple[Spans, ...]:
        """What is shown now."""
        return self._lines

    def show(self, lines: Sequence[Spans]) -> None:
        """Put these lines in the place of the present ones."""
        before, self._lines = self._lines, tuple(lines)
        if len(before) != len(self._lines):
            self.virtual_size = Size(0, len(self._lines))
            self.refresh(layout=True)
            return
        top, cells = self.scroll_offset.y, self.size.width
        pairs = enumerate(zip(before, self._lines, strict=True))
        changed = [Region(0, y - top, cells, 1) for y, (old, new) in pairs if old != new]
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        """Tell whoever draws."""
        self.post_message(self.Resized())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as it has lines."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw the line at a height of the view."""
        at = y + self.scroll_offset.y
        return drawn(self._lines[at] if at < len(self._lines) else (), self.size.width, self.app.theme)
