"""The recording in SQL: what is asked above, its answer below."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from textual.app import ComposeResult

from gswarm_tui.analysis.queries import MOST_COUNTED, RecordingQueries, RecordingQueryError, ResultPage
from gswarm_tui.common.quantities import plural
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.printing.cells import NOTHING, is_number, writer
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.tui.actions import SQL, bindings_of
from gswarm_tui.tui.drawing.spans import Line, Span, measure
from gswarm_tui.tui.drawing.text import clean, width
from gswarm_tui.tui.screens.analysis_tables import wrapped
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import DetailsDialog
from gswarm_tui.tui.screens.titles import title_line
from gswarm_tui.tui.widgets.editor import Editor
from gswarm_tui.tui.widgets.lines import Bar
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

HISTORY_KEPT = 200


@dataclass
class SqlState:
    """What was asked, oldest first, also at the prompt and in other runs; what the place showed when left."""

    kept: QueryHistory
    asked: list[str] = field(default_factory=list)
    draft: str = ""
    answer: ResultTable | None = None
    problem: str = ""

    def open(self) -> None:
        """Learn what was asked before this run."""
        self.asked = self.asked or self.kept.read()[-HISTORY_KEPT:]

    def remember(self, sql: str) -> None:
        """Put a query behind those that were asked before."""
        if self.asked[-1:] != [sql]:
            self.asked = [*self.asked, sql][-HISTORY_KEPT:]
            self.kept.add(sql)


WIDEST = 40
"""Cells of a text column; a row is shown whole on Enter."""
SAMPLED = 1_000
"""So many values decide how many digits the numbers of a column have."""


@dataclass(frozen=True)
class ResultTable:
    """Columns and rows as a table shows them, and how many rows there are, None if nobody counted."""

    columns: tuple[TableColumn, ...]
    rows: list[Row]
    total: int | None
    seconds: float


def result_table(found: ResultPage) -> ResultTable:
    """Make text of an answer; for large ones this takes a while."""
    texts = [_column(kind, [row[at] for row in found.rows]) for at, kind in enumerate(found.types)]
    last = len(found.names) - 1
    columns = tuple(
        TableColumn(
            clean(name),
            _cells(name, texts[at], number=is_number(kind)),
            "UTC" if kind.startswith("TIMESTAMP") else "",
            left=not is_number(kind),
            grows=at == last and not is_number(kind),
        )
        for at, (name, kind) in enumerate(zip(found.names, found.types, strict=True))
    )
    return ResultTable(columns, list(zip(*texts, strict=True)), found.total, found.seconds)


def _column(kind: str, values: Sequence[Any]) -> list[Span]:
    shown = writer(kind, values[:SAMPLED])
    return [Span(NOTHING, "dim") if value is None else Span(shown(value)) for value in values]


def _cells(name: str, spans: Sequence[Span], *, number: bool) -> int:
    widest = max(width(clean(name)), *(width(span.text) for span in spans), 1)
    return widest if number else min(widest, max(WIDEST, width(clean(name))))


UNRECORDED = "nothing is recorded, so there is nothing to ask; without --no-record there is"
_RECIPES = (TableColumn("recipes", 40, left=True, grows=True),)


class SqlScreen(ViewerScreen):
    """Asks the recording, in a thread; whatever happens there, the screen goes on."""

    SCREEN = SQL
    BINDINGS = bindings_of(SCREEN)
    AUTO_FOCUS = "Editor"

    def __init__(self, state: SqlState) -> None:
        super().__init__()
        self.notebook = state
        self._queries: RecordingQueries | None = None
        self._asking = False
        self._recipes = True
        self._recalled: int | None = None

    def compose(self) -> ComposeResult:
        """The title, the query, a line about its answer, the answer."""
        yield Bar(id="title")
        yield Editor(
            self.notebook.draft,
            placeholder="SELECT …;   DuckDB's SQL; FROM duckdb_views() lists what there is",
            highlight_cursor_line=False,
        )
        yield Bar(id="said")
        yield TableView(())
        yield from self.compose_footer()

    @property
    def typing(self) -> bool:
        """Whether the query is being typed."""
        return isinstance(self.focused, Editor)

    def on_mount(self) -> None:
        """Get something to ask, and show what was here before."""
        self.notebook.open()
        if self.viewer.open_queries is not None:
            self._queries = self.viewer.open_queries()
        editor = self.query_one(Editor)
        editor.move_cursor(editor.document.end)
        self._show_answer() if self.notebook.answer else self._show_recipes()

    def on_unmount(self) -> None:
        """Leave nothing behind that asks; ending it may take a moment."""
        if self._queries is not None:
            asyncio.get_running_loop().run_in_executor(None, self._queries.close)

    # What is shown

    def draw(self) -> None:
        """Keep the title and what is said as wide as the screen; the recording isn't asked again."""
        words = "nothing is recorded" if self._queries is None else clean(self._queries.file)
        left = [Span(" SQL", "title"), Span(f"  {words}", "dim")]
        self.query_one("#title", Bar).show(title_line(left, self.feed, self.size.width))
        self.query_one("#said", Bar).show(*self._said())

    def _said(self) -> list[Line]:
        """How the question stands, within a rule; what went wrong above it, on as many lines as it needs."""
        words = self._words()
        wrong = wrapped(f"╳ {self.notebook.problem}", self.size.width, "error") if not words else []
        rule = [Span("─ ", "faint"), *words, Span(" ", "faint")] if words else []
        return [*wrong, [*rule, Span("─" * max(0, self.size.width - measure(rule)), "faint")]]

    def _words(self) -> Line:
        answer = self.notebook.answer
        if self._asking:
            return [Span("asking … ", "accent"), Span("esc", "key"), Span(" cancels", "dim")]
        if self._queries is None:
            return [Span(UNRECORDED, "warning")]
        if self.notebook.problem:
            return []
        if self._recipes or answer is None:
            return [
                Span("⏎", "key"),
                Span(" after a semicolon runs it, ", "dim"),
                Span("^r", "key"),
                Span(" at once; times are UTC", "dim"),
            ]
        shown = len(answer.rows)
        took = f" in {answer.seconds:.2f} s"
        if answer.total == shown:
            return [Span(plural(shown, "row")), Span(took, "dim")]
        total = f"{answer.total:,}" if answer.total is not None else f"more than {MOST_COUNTED:,}"
        return [
            Span(f"the first {shown:,} of {total} rows"),
            Span(f"{took}; WHERE, GROUP BY and LIMIT bring fewer", "dim"),
        ]

    def _show_answer(self) -> None:
        answer = self.notebook.answer
        if answer is None:
            return
        self._recipes = False
        table = self.query_one(TableView)
        table.empty = "no rows" if answer.columns else ""
        table.show_columns(answer.columns, answer.rows)
        self.update_view()

    def _show_recipes(self) -> None:
        self._recipes = True
        rows = [(Span(recipe.title),) for recipe in RECIPES]
        self.query_one(TableView).show_columns(_RECIPES, rows)
        self.update_view()

    # Asking

    def on_editor_submitted(self) -> None:
        """Enter after a semicolon."""
        self.action_ask()

    def action_ask(self) -> None:
        """Ask what is typed."""
        sql = self.query_one(Editor).text.strip()
        if self._queries is None or self._asking or not sql:
            return
        self.notebook.remember(sql)
        self._recalled, self._asking = None, True
        self.run_worker(self._ask(self._queries, sql), group="asking")
        self.update_view()

    async def _ask(self, queries: RecordingQueries, sql: str) -> None:
        try:
            self.notebook.answer = await asyncio.to_thread(_answer, queries, sql)
            self.notebook.problem = ""
        except RecordingQueryError as error:
            self.notebook.problem = str(error)
        finally:
            self._asking = False
        if self.is_attached:
            self._show_answer()
            self.update_view()

    def action_back(self) -> None:
        """End what is asked; where nothing is, go back."""
        if self._asking and self._queries is not None:
            asyncio.get_running_loop().run_in_executor(None, self._queries.stop)
        elif self._recipes and self.notebook.answer is not None:
            self._show_answer()
        else:
            super().action_back()

    # What was asked before

    def on_text_area_changed(self, event: Editor.Changed) -> None:
        """Keep what is typed for when one comes back."""
        self.notebook.draft = event.text_area.text

    def on_editor_recalled(self, event: Editor.Recalled) -> None:
        """Go back or forth in what was asked; after the newest comes an empty query."""
        asked, editor = self.notebook.asked, self.query_one(Editor)
        at = (len(asked) if self._recalled is None else self._recalled) + event.by
        if 0 <= at < len(asked):
            self._recalled = at
            editor.write(asked[at])
        elif at >= len(asked) and self._recalled is not None:
            self._recalled = None
            editor.write("")

    # The answer

    def action_recipes(self) -> None:
        """Show the recipes to choose from."""
        self._show_recipes()
        self.query_one(TableView).focus()

    def action_step_focus(self) -> None:
        """Go from the query to the answer, or back."""
        self.query_one(TableView if self.typing else Editor).focus()

    def on_descendant_focus(self) -> None:
        """Other keys hold now."""
        self.update_view()

    def action_move(self, where: str) -> None:
        """Move in the answer."""
        self.query_one(TableView).move(where)

    def action_open(self) -> None:
        """Take the recipe under the cursor, or show the row whole."""
        self.query_one(TableView).choose()

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Take a recipe and ask it, or show a row whole."""
        if self._recipes:
            self.query_one(Editor).write(RECIPES[event.row].sql)
            self.action_ask()
        elif (answer := self.notebook.answer) is not None and event.row < len(answer.rows):
            row = answer.rows[event.row]
            names = [column.heading for column in answer.columns]
            self.app.push_screen(
                DetailsDialog(f"row {event.row + 1:,}", list(zip(names, (s.text for s in row), strict=True)))
            )

    def on_resize(self) -> None:
        """Fit into the new size."""
        self.update_after_layout()


def _answer(queries: RecordingQueries, sql: str) -> ResultTable:
    found: ResultPage = queries.query(sql)
    return result_table(found)
