"""Bar with the views of a screen."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gswarm_tui.tui.drawing.spans import Span, drawn, measure
from gswarm_tui.tui.drawing.text import clip, width


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
