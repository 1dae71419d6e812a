"""Table drawn by line: row cursor, optional column cursor, frozen columns, thousands of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gswarm_tui.tui.drawing.spans import CURSOR_MARK, Span, Spans, drawn
from gswarm_tui.tui.drawing.text import pad, wrap
from gswarm_tui.tui.drawing.text import width as cells_of

Row = tuple[Span, ...]
"""One span per column, of cleaned text."""

CUT_LEAST = 12
"""Smallest width of a text column that is cut."""


@dataclass(frozen=True)
class TableColumn:
    """Column: heading, unit below it, width in cells.

    ``frozen`` columns stay while the others scroll sideways; the one that ``grows`` takes the rest.
    """

    heading: str
    width: int
    unit: str = ""
    left: bool = False
    frozen: bool = False
    grows: bool = False


class TableView(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under a heading of one or two lines; the cursor is visible with the focus.

    With ``picks_column`` ← and → choose a column, else they scroll sideways.
    """

    DEFAULT_CSS = "TableView { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }"

    @dataclass
    class Chosen(Message):
        """The row under the cursor was opened with Enter or a second click."""

        table: TableView

    @dataclass
    class Moved(Message):
        """The cursor went to another row or column."""

        table: TableView

    def __init__(
        self,
        columns: Sequence[TableColumn],
        *,
        picks_column: bool = False,
        empty: str = "",
        id: str | None = None,  # noqa: A002 - as Textual
    ) -> None:
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.picks_column = picks_column
        self.empty = empty
        self.cursor = 0
        self.column = self._frozen
        self._first = self._frozen
        self._rows: Sequence[Row] = ()

    @property
    def heading_height(self) -> int:
        """Lines above the first row."""
        return 2 if any(c.unit for c in self.columns) else 1

    @property
    def _frozen(self) -> int:
        return sum(c.frozen for c in self.columns)

    def show_columns(self, columns: Sequence[TableColumn], rows: Sequence[Row]) -> None:
        """Show other columns and rows; with the same headings, the cursor stays."""
        if [c.heading for c in columns] != [c.heading for c in self.columns]:
            self._rows, self.cursor = (), 0
            self.columns = tuple(columns)
            self.column = self._first = self._frozen
            self.scroll_to(y=0, animate=False, force=True)
        if tuple(columns) != self.columns or not self._rows:
            self.columns = tuple(columns)
            self.refresh()
        self.show(rows)

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows."""
        before, self._rows = self._rows, rows
        if before != rows:
            self.virtual_size = Size(0, len(rows) + self.heading_height)
            self.cursor = max(0, min(self.cursor, len(rows) - 1))
            self.refresh()

    @property
    def cut_text(self) -> str:
        """The last text of the row under the cursor, empty if the row shows all of it."""
        shown, last = self._layout(), len(self.columns) - 1
        if not self._rows or not shown:
            return ""
        text, (at, _, cells) = self._rows[self.cursor][last].text, shown[-1]
        return "" if at == last and cells_of(text) <= cells else text

    @property
    def at_end(self) -> bool:
        """Whether the cursor is on the last row and that row is visible."""
        return self.cursor >= len(self._rows) - 1 and self.scroll_offset.y >= self.max_scroll_y

    def move_to(self, row: int) -> None:
        """Move the cursor to a row and scroll it into view."""
        row = max(0, min(row, len(self._rows) - 1))
        if row != self.cursor:
            self.cursor = row
            self.refresh()
            self.post_message(self.Moved(self))
        self._show_cursor()

    def _show_cursor(self) -> None:
        room = max(1, self.size.height - self.heading_height)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False, force=True)

    def pick_column(self, column: int) -> None:
        """Move the column cursor and scroll it into view."""
        column = max(self._frozen, min(column, len(self.columns) - 1))
        if column != self.column:
            self.column = column
            self._reveal()
            self.refresh()
            self.post_message(self.Moved(self))

    def _reveal(self) -> None:
        self._first = min(self._first, self.column)
        while self._first < self.column and all(at != self.column for at, _, _ in self._layout()):
            self._first += 1

    def move(self, where: str) -> None:
        """Move the cursor: up, down, page_up, page_down, first, last, left, right."""
        page = max(1, self.size.height - self.heading_height - 1)
        rows = {
            "up": self.cursor - 1,
            "down": self.cursor + 1,
            "page_up": self.cursor - page,
            "page_down": self.cursor + page,
            "first": 0,
            "last": len(self._rows) - 1,
        }
        if where in rows:
            self.move_to(rows[where])
        else:
            self._sideways(-1 if where == "left" else 1)

    def _sideways(self, by: int) -> None:
        """Move the column cursor, or scroll sideways."""
        if self.picks_column:
            self.pick_column(self.column + by)
            return
        shown = self._layout()
        last = len(self.columns) - 1
        at_end = by > 0 and bool(shown) and shown[-1][0] == last and shown[-1][2] >= self.columns[last].width
        if not at_end:
            self._first = max(self._frozen, min(self._first + by, len(self.columns) - 1))
            self.refresh()

    def choose(self) -> None:
        """Open the row under the cursor."""
        if self._rows:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Select the clicked row and column; a second click opens the row."""
        row = event.y - self.heading_height + self.scroll_offset.y
        column = self._column_at(event.x)
        if self.picks_column and column is not None and row < len(self._rows):
            self.pick_column(column)
        if event.y >= self.heading_height and row < len(self._rows):
            self.move_to(row)
            if event.chain > 1:
                self.choose()

    def _column_at(self, x: int) -> int | None:
        at = 1
        for column, gap, width in self._layout():
            at += gap + width
            if x <= at:
                return column if column >= self._frozen else None
        return None

    def _layout(self) -> list[tuple[int, int, int]]:
        """Return the visible columns, each with the gap before it and its width."""
        room = self.size.width - 2
        shown: list[tuple[int, int, int]] = []
        for at, column in enumerate(self.columns):
            if not column.frozen and at < self._first:
                continue
            # A number right before a text would read as one with it.
            gap = (2 if column.left and not self.columns[shown[-1][0]].left else 1) if shown else 0
            first = at == self._first and not column.frozen
            least = 1 if first else CUT_LEAST if column.left and not column.frozen else column.width
            if room - gap < min(column.width, least):
                break
            shown.append((at, gap, min(column.width, room - gap)))
            room -= gap + shown[-1][2]
        return [(at, gap, width + (room if self.columns[at].grows else 0)) for at, gap, width in shown]

    def on_resize(self) -> None:
        """Keep cursor and selected column visible."""
        self._first = self._frozen
        self._reveal()
        self._show_cursor()

    def render_line(self, y: int) -> Strip:
        """Draw the heading or a row."""
        cells, theme = self.size.width, self.app.theme
        if y < self.heading_height:
            return drawn(self._heading(y), cells, theme)
        at = y - self.heading_height + self.scroll_offset.y
        if at < len(self._rows):
            under_cursor = at == self.cursor and self.has_focus
            return drawn(self._row(at, under_cursor), cells, theme, "row" if under_cursor else "")
        words = [] if self._rows else wrap(self.empty, max(1, cells - 2))
        line = y - self.heading_height
        return drawn((Span(f" {words[line]}" if line < len(words) else "", "dim"),), cells, theme)

    def _row(self, at: int, under_cursor: bool) -> Spans:
        spans = [Span(CURSOR_MARK if under_cursor else " ", "accent")]
        row = self._rows[at]
        for number, gap, cells in self._layout():
            (text, role, click), column = row[number], self.columns[number]
            spans += (Span(" " * gap), Span(pad(text, cells, right=not column.left), role, click))
        return tuple(spans)

    def _heading(self, y: int) -> Spans:
        shown = self._layout()
        spans = [Span("‹" if self._first > self._frozen and y == 0 else " ", "dim")]
        for number, gap, cells in shown:
            column = self.columns[number]
            picked = self.picks_column and number == self.column
            text = pad(column.heading if y == 0 else column.unit, cells, right=not column.left)
            spans += (Span(" " * gap), Span(text, "accent" if picked else "dim"))
        if shown and shown[-1][0] < len(self.columns) - 1 and y == 0:
            spans.append(Span("›", "dim"))
        return tuple(spans)
