"""The line in which a filter is typed: it works while it is typed, and tells what it can't read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input

from gswarm_tui.fleet.filter import Filter, FilterError, parse
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.widgets.lines import Bar

HINT = "util<5 & power>300   gpu0*   state:lost   !mine   rank:0-7   iowait>20   (a | b)   ⏎ keep   esc clear"


class FilterLine(Vertical):
    """Takes the place of the footer while a filter is typed."""

    DEFAULT_CSS = """
    FilterLine { height: 2; display: none; background: $background; }
    FilterLine.asking { display: block; }
    FilterLine Input { border: none; height: 1; padding: 0 1; background: $surface; }
    FilterLine Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "drop")]

    @dataclass
    class Changed(Message):
        """Another filter is wanted, None for none."""

        filter: Filter | None

    def compose(self) -> ComposeResult:
        """What is typed, and what is said about it."""
        yield Input(id="filter", disabled=True)
        yield Bar(id="filter-said")

    def ask(self, text: str) -> None:
        """Open, with a text to begin from."""
        self.add_class("asking")
        line = self.query_one(Input)
        line.disabled = False
        line.value = text
        line.focus()
        self._say("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Use what can be read."""
        event.stop()
        if not self.has_class("asking"):
            return
        self._say(event.value)
        try:
            wanted = parse(event.value)
        except FilterError:
            return
        self.post_message(self.Changed(wanted if event.value.strip() else None))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, if it can be read."""
        event.stop()
        if not self._say(event.value):
            self._close()

    def action_drop(self) -> None:
        """Close, and show everything."""
        self._close()
        self.post_message(self.Changed(None))

    def _close(self) -> None:
        self.remove_class("asking")
        line = self.query_one(Input)
        line.disabled = True
        self.screen.set_focus(None)

    def _say(self, text: str) -> bool:
        """Tell what is wrong under its column; answers whether anything is."""
        said = self.query_one("#filter-said", Bar)
        try:
            parse(text)
        except FilterError as wrong:
            caret = " " * (wrong.position + 1) + "^ "
            said.show([Span(caret, "error"), Span(clean(str(wrong)), "error")])
            return True
        said.show([Span(f" {HINT}", "dim")])
        return False
