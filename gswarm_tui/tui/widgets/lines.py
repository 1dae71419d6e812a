"""Widgets that show lines of text and redraw those that changed: bars, a canvas that scrolls, views, keys."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gswarm_tui.tui.actions import LIVE, Action, actions_of, is_typed, key_name
from gswarm_tui.tui.drawing.spans import Line, Span, Spans, drawn, measure
from gswarm_tui.tui.drawing.text import clip, width

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
        if before != self.lines:
            self.virtual_size = Size(0, len(self.lines))
            self.refresh(layout=len(before) != len(self.lines))

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


class ViewBar(Widget):
    """Names of views; a click selects one. A hint, such as the scale, is at the right, cut to fit."""

    DEFAULT_CSS = "ViewBar { height: 1; }"

    class Picked(Message):
        """Another view was selected."""

    def __init__(self, views: Sequence[str]) -> None:
        super().__init__()
        self.views = tuple(views)
        self.picked = self.views[0]
        self._hint = ""

    def pick(self, view: str) -> None:
        """Select a view."""
        if view != self.picked:
            self.picked = view
            self.refresh()
            self.post_message(self.Picked())

    def step(self, by: int) -> None:
        """Select the next view, the first after the last."""
        self.pick(self.views[(self.views.index(self.picked) + by) % len(self.views)])

    def show_hint(self, hint: str) -> None:
        """Show a hint at the right end."""
        if hint != self._hint:
            self._hint = hint
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Select the clicked view."""
        at = 1
        for view in self.views:
            if at <= event.x < at + len(view) + 2:
                self.pick(view)
            at += len(view) + 2

    def render_line(self, y: int) -> Strip:
        """Draw names, rule and hint."""
        spans = [Span("─", "faint")]
        spans += (Span(f" {view} ", "accent" if view == self.picked else "dim") for view in self.views)
        room = max(0, self.size.width - measure(spans))
        hint = f" {self._hint} ─" if self._hint else ""
        if width(hint) > room:
            hint = clip(f" {self._hint}", room)
        spans += (Span("─" * (room - width(hint)), "faint"), Span(hint, "dim"))
        return drawn(tuple(spans), self.size.width, self.app.theme)


def footer_line(
    screen: str,
    cells: int,
    mode: str = LIVE,
    *,
    typing: bool = False,
    recorded: bool = True,
    read_only: bool = False,
) -> Line:
    """Return as many keys of a screen as fit; help and quit always do.

    While ``typing``, only keys that don't type a character; if nothing is ``recorded``, or the screen is
    ``read_only``, only keys that work.
    """
    entries = [
        [Span(keys, "key", _click(a)), Span(f" {a.label}", "dim", _click(a))]
        for a in sorted(actions_of(screen, mode), key=lambda a: a.footer)
        if a.footer and (recorded or not a.needs_recording) and not (read_only and a.changes)
        if (keys := _keys(a, typing=typing))
    ]
    always = entries[-2:]
    room = cells - sum(measure(entry) + 2 for entry in always) - 1
    line = [Span(" ")]
    for entry in entries[:-2]:
        if measure(entry) + 2 > room:
            continue
        room -= measure(entry) + 2
        line += [*entry, Span("  ")]
    for entry in always:
        line += [*entry, Span("  ")]
    return line[:-1]


def _keys(action: Action, *, typing: bool) -> str:
    if not typing:
        return action.shown or key_name(action.keys[0])
    return next((key_name(key) for key in action.keys if not is_typed(key)), "")


def _click(action: Action) -> str:
    call = action.name if action.name.endswith(")") else f"{action.name}()"
    return f"screen.{call}" if action.screens else f"app.{call}"


class Footer(Bar):
    """Clickable keys of a screen, on its last line."""

    DEFAULT_CSS = "Footer { dock: bottom; height: 1; }"
