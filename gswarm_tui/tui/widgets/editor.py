"""SQL editor: grows with its text, completes names, and recalls earlier queries with ↑ and ↓."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from gswarm_tui.tui.drawing.themes import palette
from gswarm_tui.tui.widgets.completion import KEYWORDS, SqlCompleter

_TOKENS = re.compile(
    r"(?P<dim>--.*|'(?:[^']|'')*'?)|(?P<name>\"[^\"]*\"?)|\b(?P<key>" + "|".join(KEYWORDS) + r")\b",
    re.IGNORECASE,
)


class Editor(TextArea):
    """Editor for SQL. Enter after a semicolon at the end submits the query, elsewhere it starts a line.

    Tab completes the word before the cursor from ``matches``, and tries the next one when pressed again.
    """

    DEFAULT_CSS = """
    Editor, Editor:focus { border: none; height: auto; max-height: 40%; min-height: 3; padding: 0 1;
        background: $surface; scrollbar-size-vertical: 1; }
    Editor .text-area--cursor-line { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c", "screen.back", show=False),
        Binding("enter", "submit", show=False, priority=True),
        Binding("tab", "complete", show=False, priority=True),
    ]

    class Submitted(Message):
        """Run the query."""

    class MatchesChanged(Message):
        """Other completions are possible."""

    @dataclass
    class Recalled(Message):
        """Show the previous query of the history, with ``by`` 1 the next one."""

        by: int

    def __init__(self, text: str, completer: SqlCompleter, placeholder: str) -> None:
        self.completer = completer
        self.matches: list[str] = []
        self._tried: tuple[str, tuple[int, int], list[str]] | None = None
        super().__init__(text, placeholder=placeholder, highlight_cursor_line=False)

    def write(self, text: str) -> None:
        """Replace the text, which can be undone, and put the cursor at its end."""
        self.replace(text, (0, 0), self.document.end)
        self.move_cursor(self.document.end)

    def action_submit(self) -> None:
        """Submit the query, or leave the key to Textual where it starts a line."""
        if self.cursor_location != self.document.end or not self.text.rstrip().endswith(";"):
            raise SkipAction
        self.post_message(self.Submitted())

    def update_suggestion(self) -> None:
        """Find the completions of the word before the cursor (a hook of Textual's)."""
        line, column = self.cursor_location
        text = self.document.get_line(line)
        at_end_of_word = not (text[column : column + 1].isalnum() or text[column : column + 1] == "_")
        before = self.get_text_range((0, 0), (line, column))
        matches = self.completer.matches(before, self.text) if at_end_of_word else []
        if matches != self.matches:
            self.matches = matches
            self.post_message(self.MatchesChanged())

    def action_complete(self) -> None:
        """Complete the word, or replace the last completion by the next; without one, leave the key."""
        line, column = self.cursor_location
        if self._tried is not None and self._tried[:2] == (self.text, (line, column)):
            matches = self._tried[2]
        else:
            matches = self.matches
        if not matches:
            raise SkipAction
        start = column
        text = self.document.get_line(line)
        while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        self.replace(matches[0], (line, start), (line, column))
        self._tried = self.text, self.cursor_location, [*matches[1:], matches[0]]

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from the first line, recall the previous query."""
        if self.cursor_location[0] == 0 and not select:
            self.post_message(self.Recalled(-1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from the last line, recall the next query."""
        if self.cursor_location[0] == self.document.end[0] and not select:
            self.post_message(self.Recalled(1))
        else:
            super().action_cursor_down(select)

    def get_line(self, line_index: int) -> Text:
        """Return a line with its keywords, strings and comments coloured."""
        line = super().get_line(line_index)
        colours = palette(self.app.theme)
        for token in _TOKENS.finditer(line.plain):
            if token.lastgroup in ("key", "dim"):
                ink = Style(color=colours.role(token.lastgroup).color)
                line.stylize(ink, token.start(), token.end())
        return line
