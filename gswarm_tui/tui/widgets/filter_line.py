"""Filter input: the filter applies while it is typed; below it are errors, or what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from gswarm_tui.fleet.filter import Filter, FilterError, parse
from gswarm_tui.tui.actions import ENTER
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.widgets.lines import Bar

_KEYS, _FORMS = f"{ENTER} keep   esc clear", "util<5 & power>300   gpu0*   state:lost   !mine   rank:0-7"
HINT = f"{_KEYS}   {_FORMS}   iowait>20   (a | b)"


class FilterLine(Vertical):
    """Input line in the place of the footer and a line above it. A text that isn't a filter filters nothing.

    The screen has the class ``asking`` meanwhile.
    """

    DEFAULT_CSS = """
    FilterLine { height: 2; display: none; background: $background; }
    FilterLine.asking { display: block; }
    FilterLine Input { border: none; height: 1; padding: 0 1; background: $surface; }
    FilterLine Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "drop")]

    @dataclass
    class Changed(Message):
        """The filter changed; None shows all."""

        filter: Filter | None

    def compose(self) -> ComposeResult:
        """Input and message."""
        yield Input(id="filter", disabled=True)
        yield Bar(id="filter-message")

    def ask(self, text: str) -> None:
        """Open with a text."""
        self.add_class("asking")
        self.screen.add_class("asking")
        line = self.query_one(Input)
        line.disabled = False
        line.value = text
        line.focus()
        self._parse(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply a valid filter, and none while the text isn't one."""
        event.stop()
        if self.has_class("asking"):
            wanted = self._parse(event.value)
            self.post_message(self.Changed(wanted if event.value.strip() else None))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close if the filter is valid."""
        event.stop()
        if self._parse(event.value) is not None:
            self._close()

    def action_drop(self) -> None:
        """Close and clear the filter."""
        self._close()
        self.post_message(self.Changed(None))

    def _close(self) -> None:
        self.remove_class("asking")
        self.screen.remove_class("asking")
        line = self.query_one(Input)
        line.disabled = True
        self.screen.set_focus(None)

    def _parse(self, text: str) -> Filter | None:
        """Parse a filter; show the hint or the error below it."""
        message = self.query_one("#filter-message", Bar)
        try:
            parsed = parse(text)
        except FilterError as wrong:
            message.show([Span(f" {clean(str(wrong))}", "error")])
            return None
        message.show([Span(f" {HINT}", "dim")])
        return parsed

    def show_no_match(self, reason: str) -> None:
        """Show that no GPU and no node matches, and the reason where one is known."""
        words = " nothing matches" + (f": {reason}" if reason else "")
        self.query_one("#filter-message", Bar).show([Span(clean(words), "warning")])
