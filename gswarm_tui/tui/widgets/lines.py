"""Widgets that show lines of text and redraw only the lines that changed: Bar, and Canvas, which scrolls."""

from __future__ import annotations

from collections.abc import Sequence

from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gswarm_tui.tui.drawing.spans import Line, Spans, drawn

SCROLLED = {"up": -1, "down": 1, "page_up": -10, "page_down": 10, "first": -999, "last": 999}
"""Lines that a key scrolls by."""


class Bar(Widget):
    """Lines of spans, set with ``show``."""

    DEFAULT_CSS = "Bar { height: auto; width: 1fr; }"

    def __init__(self, *lines: Line, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self._lines: tuple[Spans, ...] = tuple(tuple(line) for line in lines) or ((),)

    def show(self, *lines: Line) -> None:
        """Replace the lines."""
        before, self._lines = self._lines, tuple(tuple(line) for line in lines)
        if before != self._lines:
            self.refresh(layout=len(before) != len(self._lines))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw a line."""
        spans = self._lines[y] if y < len(self._lines) else ()
        return drawn(spans, self.size.width, self.app.theme)


class Canvas(ScrollView, can_focus=False, inherit_bindings=False):
    """Lines of spans that scroll where they don't fit."""

    DEFAULT_CSS = "Canvas { height: auto; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    class Resized(Message):
        """The widget has another size."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.lines: tuple[Spans, ...] = ()

    def show(self, lines: Sequence[Spans]) -> None:
        """Replace the lines."""
        before, self.lines = self.lines, tuple(lines)
        if len(before) != len(self.lines):
            self.virtual_size = Size(0, len(self.lines))
            self.refresh(layout=True)
            return
        top, cells = self.scroll_offset.y, self.size.width
        pairs = enumerate(zip(before, self.lines, strict=True))
        changed = [Region(0, y - top, cells, 1) for y, (old, new) in pairs if old != new]
        if changed:
            self.refresh(*changed)

    def on_resize(self) -> None:
        """Post Resized, so that the screen draws again."""
        self.post_message(self.Resized())

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        return len(self.lines)

    def move(self, where: str) -> None:
        """Scroll: up, down, page_up, page_down, first, last."""
        if where in SCROLLED:
            self.scroll_relative(y=SCROLLED[where], animate=False)

    def render_line(self, y: int) -> Strip:
        """Draw a line of the visible part."""
        at = y + self.scroll_offset.y
        return drawn(self.lines[at] if at < len(self.lines) else (), self.size.width, self.app.theme)
