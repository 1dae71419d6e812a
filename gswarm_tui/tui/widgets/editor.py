"""SQL editor: grows with its text, completes names, and recalls earlier queries with ↑ and ↓."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.actions import SkipAction
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

from gswarm_tui.tui.drawing.themes import palette

COLUMNS_QUERY = """
SELECT table_name, column_name FROM duckdb_columns()
WHERE NOT internal AND database_name = current_database() ORDER BY table_name, column_index"""
"""Query for the columns of ``SqlCompleter``."""

_KEYWORDS = """
SELECT FROM WHERE GROUP BY ORDER LIMIT OFFSET HAVING QUALIFY WITH AS JOIN LEFT RIGHT FULL INNER CROSS ASOF
LATERAL ON USING UNION ALL EXCEPT INTERSECT DISTINCT CASE WHEN THEN ELSE END AND OR NOT IN IS NULL LIKE ILIKE
BETWEEN EXISTS ASC DESC NULLS FIRST LAST OVER PARTITION WINDOW FILTER VALUES PIVOT UNPIVOT DESCRIBE SUMMARIZE
SHOW INTERVAL TIMESTAMP DATE TRUE FALSE CAST EXCLUDE REPLACE COLUMNS ANY SEMI SIMILAR TABLE
UNNEST WITHIN
"""
_FUNCTIONS = """
abs any_value arg_max arg_min avg bool_and bool_or coalesce concat count date_trunc epoch first format
greatest histogram lag last lead least len list lower max mean median min mode nullif quantile_cont rank
regexp_matches replace round row_number split_part stddev strftime string_agg substr sum time_bucket upper
"""
KEYWORDS = tuple(_KEYWORDS.split())
FUNCTIONS = tuple(_FUNCTIONS.split())
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_BEFORE_TABLE = re.compile(r"\b(from|join|describe|summarize|table)\s+$", re.IGNORECASE)
_OWNER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\.$")
_TOKENS = re.compile(
    r"(?P<dim>--.*|'(?:[^']|'')*'?)|(?P<name>\"[^\"]*\"?)|\b(?P<key>" + "|".join(KEYWORDS) + r")\b",
    re.IGNORECASE,
)


class SqlCompleter:
    """Completes the word before the cursor; keywords in the case in which it was begun."""

    def __init__(self, columns: Iterable[tuple[str, str]]) -> None:
        """``columns`` are pairs of a table or view and a column of it."""
        self._tables: dict[str, list[str]] = {}
        for table, column in columns:
            self._tables.setdefault(table, []).append(column)

    def matches(self, before: str, text: str) -> list[str]:
        """Return what can complete ``before``, the part of ``text`` in front of the cursor.

        An empty word is completed only where a table or a table's column must follow.
        """
        found = _WORD.search(before)
        word = found[0] if found else ""
        before = before[: len(before) - len(word)]
        owner, is_table = _OWNER.search(before), _BEFORE_TABLE.search(before)
        if not word and not owner and not is_table:
            return []
        # Columns are those of the tables that the text names, else of all.
        words = set(re.findall(r"[a-z_][a-z0-9_]*", text.lower()))
        named = self._tables.keys() & words or self._tables
        names = sorted({column for table in named for column in self._tables[table]})
        if owner:
            names = self._tables.get(owner[1].lower()) or names
        elif is_table:
            names = list(self._tables)
        else:
            keywords = [keyword.lower() for keyword in KEYWORDS] if word.islower() else KEYWORDS
            names = [*names, *self._tables, *keywords, *FUNCTIONS]
        typed = word.lower()
        fitting = {name.lower(): name for name in names if name.lower().startswith(typed)}
        return [name for lower, name in fitting.items() if lower != typed]


class Editor(TextArea):
    """Editor for SQL. Enter after a semicolon at the end runs the query, elsewhere it starts a line.

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

    async def action_submit(self) -> None:
        """Run the query, or leave the key to Textual where it starts a line."""
        if self.cursor_location != self.document.end or not self.text.rstrip().endswith(";"):
            raise SkipAction
        await self.run_action("screen.run_query")

    def update_suggestion(self) -> None:
        """Find the completions of the word before the cursor (a hook of Textual's)."""
        line, column = self.cursor_location
        text = self.document.get_line(line)
        before = self.get_text_range((0, 0), (line, column))
        within_word = re.match(r"\w", text[column:])
        matches = [] if within_word else self.completer.matches(before, self.text)
        if matches != self.matches:
            self.matches = matches
            self.post_message(self.MatchesChanged())

    def action_complete(self) -> None:
        """Complete the word, or replace the last completion by the next; without one, leave the key."""
        line, column = self.cursor_location
        again = self._tried is not None and self._tried[:2] == (self.text, (line, column))
        matches = self._tried[2] if self._tried is not None and again else self.matches
        if not matches:
            raise SkipAction
        word = _WORD.search(self.document.get_line(line)[:column])
        start = column if word is None else word.start()
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
                ink = Style(color=colours[token.lastgroup].color)
                line.stylize(ink, token.start(), token.end())
        return line
