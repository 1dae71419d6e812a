"""Where SQL is typed: lines that grow with the text, and what was asked before on ↑ and ↓."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from gswarm_tui.tui.drawing.themes import palette

_WORDS = (
    "all and any as asc between by case cast cross describe desc distinct else end except exists "
    "explain false filter first from full group having ilike in inner intersect interval is join last "
    "lateral left like limit not null nulls offset on or order over partition pivot qualify right "
    "select semi show similar summarize table then true union unnest unpivot using values when where "
    "window with within"
)
_TOKENS = re.compile(
    r"(?P<dim>--.*|'(?:[^']|'')*'?)|(?P<name>\"[^\"]*\"?)|\b(?P<key>" + "|".join(_WORDS.split()) + r")\b",
    re.IGNORECASE,
)


class Editor(TextArea):
    """Takes SQL. Enter after a semicolon at the end submits it, anywhere else it begins a line."""

    DEFAULT_CSS = """
    Editor, Editor:focus { border: none; height: auto; max-height: 40%; min-height: 3; padding: 0 1;
        background: $surface; scrollbar-size-vertical: 1; }
    Editor .text-area--cursor-line { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "screen.back", show=False)]

    class Submitted(Message):
        """What is typed is to be asked."""

    class Recalled(Message):
        """What was asked before is wanted, with ``by`` 1 what was asked after it."""

        def __init__(self, by: int) -> None:
            super().__init__()
            self.by = by

    def write(self, text: str) -> None:
        """Put a text in the place of the present one, the cursor at its end."""
        self.text = text
        self.move_cursor(self.document.end)

    async def _on_key(self, event: events.Key) -> None:
        ended = self.cursor_location == self.document.end and self.text.rstrip().endswith(";")
        if event.key == "enter" and ended:
            event.stop()
            event.prevent_default()
            self.post_message(self.Submitted())
        else:
            await super()._on_key(event)

    def action_cursor_up(self, select: bool = False) -> None:
        """Go a line up; from the first, to what was asked before."""
        if self.cursor_location[0] == 0 and not select:
            self.post_message(self.Recalled(-1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Go a line down; from the last, to what was asked after it."""
        if self.cursor_location[0] == self.document.end[0] and not select:
            self.post_message(self.Recalled(1))
        else:
            super().action_cursor_down(select)

    def get_line(self, line_index: int) -> Text:
        """A line with its keywords and texts told apart."""
        line = super().get_line(line_index)
        colours = palette(self.app.theme)
        for token in _TOKENS.finditer(line.plain):
            if token.lastgroup in ("key", "dim"):
                ink = Style(color=colours.role(token.lastgroup).color)
                line.stylize(ink, token.start(), token.end())
        return line
