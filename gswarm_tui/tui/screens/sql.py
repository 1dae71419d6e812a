"""SQL screen: a query above, its result below. Text of a recording is never markup."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from textual.app import ComposeResult
from textual.events import Key

from gswarm_tui.analysis.queries import MAX_COUNTED, RecordingQueries, ResultPage
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import plural
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.printing.cells import NOTHING, checked_depth, is_number, writer
from gswarm_tui.store.sql.recipes import RECIPES
from gswarm_tui.tui.actions import ENTER, QUERY, SQL
from gswarm_tui.tui.drawing.spans import Line, Span, measure, wrapped
from gswarm_tui.tui.drawing.text import clean, clip, width
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import DetailsDialog
from gswarm_tui.tui.widgets.editor import COLUMNS_QUERY, Editor, SqlCompleter
from gswarm_tui.tui.widgets.lines import Bar
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

WIDEST = 40
"""Cells of a text column; Enter shows a row whole."""
SAMPLED = 1_000
"""Values of a column from which the number of digits is chosen."""
PLACEHOLDER = "SELECT …;   Tab completes names, FROM duckdb_views() lists the views"
NOT_RECORDED = "Nothing is recorded. Start gswarm-tui without --no-record to run queries."
_RECIPES = (TableColumn("recipes", 40, left=True, grows=True),)


@dataclass(frozen=True)
class ResultTable:
    """A query's result as a table; ``total`` counts its rows, None for too many to count."""

    columns: tuple[TableColumn, ...]
    rows: list[Row]
    total: int | None
    seconds: float


def result_table(page: ResultPage) -> ResultTable:
    """Format a result; takes a while for large ones. Raises QueryError."""
    columns, table = [], []
    with checked_depth():
        for at, (name, kind) in enumerate(zip(map(clean, page.names), page.types, strict=True)):
            values, number = [row[at] for row in page.rows], is_number(kind)
            written = writer(kind, values[:SAMPLED])
            spans = [Span(NOTHING, "dim") if value is None else Span(written(value)) for value in values]
            widest = max(width(name), *(width(span.text) for span in spans), 1)
            cells = widest if number else min(widest, max(WIDEST, width(name)))
            unit, grows = (
                "UTC" if kind.startswith("TIMESTAMP") else "",
                at == len(page.names) - 1 and not number,
            )
            columns.append(TableColumn(name, cells, unit, left=not number, grows=grows))
            table.append(spans)
    return ResultTable(tuple(columns), list(zip(*table, strict=True)), page.total, page.seconds)


@dataclass
class SqlState:
    """State of a closed SQL screen: earlier queries (oldest first), draft and last result."""

    history: QueryHistory
    queries: list[str] = field(default_factory=list)
    draft: str = ""
    result: ResultTable | None = None
    problem: str = ""

    def remember(self, sql: str) -> None:
        """Append a query to the history."""
        if self.queries[-1:] != [sql]:
            self.queries.append(sql)
            self.history.add(sql)


class SqlScreen(ViewerScreen):
    """A query and, below it, its result.

    Recording continues meanwhile. No query can change a recording.
    """

    SCREEN = SQL
    AUTO_FOCUS = "Editor"

    def __init__(self, state: SqlState) -> None:
        super().__init__()
        self.state = state
        self._one_query = asyncio.Lock()
        self._query_running = False
        self._recipes_shown = True
        self._recalled: int | None = None

    def compose_body(self) -> ComposeResult:
        """Editor, status line, result."""
        yield Editor(self.state.draft, SqlCompleter(()), PLACEHOLDER)
        yield Bar(id="status")
        yield TableView(())

    @property
    def typing(self) -> bool:
        """Whether the editor has the focus."""
        return isinstance(self.focused, Editor)

    def on_mount(self) -> None:
        """Connect to the recording and show the last result."""
        self.state.queries = self.state.queries or self.state.history.read()
        if (queries := self.open_queries()) is not None:
            self.run_worker(self._load_names(queries), group="names")
        editor = self.query_one(Editor)
        editor.move_cursor(editor.document.end)
        self._show_result() if self.state.result else self._show_recipes()

    async def _load_names(self, queries: RecordingQueries) -> None:
        """Load the names of tables and columns for completion."""
        # Without them, completion still offers keywords and functions.
        with suppress(UserError):
            async with self._one_query:
                page = await asyncio.to_thread(queries.query, COLUMNS_QUERY)
            if self.is_attached:
                columns = ((str(table), str(column)) for table, column in page.rows)
                self.query_one(Editor).completer = SqlCompleter(columns)

    def draw(self) -> None:
        """Fit title and status line into the width; no query runs again."""
        text = "nothing is recorded" if self._queries is None else clean(self._queries.file)
        self.show_title([Span(" SQL", "title"), Span(f"  {text}", "dim")])
        # The status is inside a rule; an error is above it, on as many lines as it needs.
        status = self._status()
        error = wrapped(f"╳ {self.state.problem}", self.size.width, "error") if not status else []
        rule = [Span("─ ", "faint"), *status, Span(" ", "faint")] if status else []
        rule.append(Span("─" * max(0, self.size.width - measure(rule)), "faint"))
        self.query_one("#status", Bar).show(*error, rule)

    def _status(self) -> Line:
        result = self.state.result
        if self._query_running:
            return [Span("running … ", "accent"), Span("esc", "key"), Span(" cancels", "dim")]
        if self._queries is None:
            return [Span(NOT_RECORDED, "warning")]
        if self.state.problem:
            return []
        if self.typing and (matches := self.query_one(Editor).matches):
            names = clip("  ".join(matches), max(10, self.size.width - 8))
            return [Span("tab", "key"), Span(f" {names}", "dim")]
        if self._recipes_shown or result is None:
            how = Span(" runs the query; times are UTC", "dim")
            return [Span(ENTER, "key"), Span(" after ; or ", "dim"), Span("^r", "key"), how]
        shown, seconds = len(result.rows), f" in {result.seconds:.2f} s"
        if result.total == shown:
            return [Span(plural(shown, "row")), Span(seconds, "dim")]
        total = f"{result.total:,}" if result.total is not None else f"more than {MAX_COUNTED:,}"
        hint = f"{seconds}; narrow it with WHERE, GROUP BY or LIMIT"
        return [Span(f"the first {shown:,} of {total} rows"), Span(hint, "dim")]

    def _show_result(self) -> None:
        result = self.state.result
        if result is None:
            return
        self._recipes_shown = False
        table = self.query_one(TableView)
        table.empty = "no rows" if result.columns else ""
        table.show_columns(result.columns, result.rows)
        self.update_view()

    def _show_recipes(self) -> None:
        self._recipes_shown = True
        rows = [(Span(recipe.title),) for recipe in RECIPES]
        self.query_one(TableView).show_columns(_RECIPES, rows)
        self.update_view()

    def on_editor_matches_changed(self) -> None:
        """Show the completions."""
        self.update_view()

    def action_run_query(self) -> None:
        """Run the query in the editor."""
        sql = self.query_one(Editor).text.strip()
        if self._queries is None or self._query_running or not sql:
            return
        self.state.remember(sql)
        self.state.problem = ""
        self._recalled, self._query_running = None, True
        self.run_worker(self._run_query(self._queries, sql), group="query")
        self.update_view()

    async def _run_query(self, queries: RecordingQueries, sql: str) -> None:
        try:
            async with self._one_query:
                self.state.result = await asyncio.to_thread(lambda: result_table(queries.query(sql)))
            self.state.problem = ""
        except UserError as error:
            self.state.problem = str(error)
        finally:
            self._query_running = False
        if self.is_attached:
            self._show_result()
            self.update_view()

    def action_back(self) -> None:
        """Cancel the running query, else hide the recipes, else go back."""
        if self._query_running and self._queries is not None:
            asyncio.get_running_loop().run_in_executor(None, self._queries.stop)
        elif self._recipes_shown and self.state.result is not None:
            self._show_result()
        elif self.viewer.mode == QUERY:
            self.viewer.show_notice("Press ^q to quit")
        else:
            super().action_back()

    def on_text_area_changed(self, event: Editor.Changed) -> None:
        """Keep the draft for when the screen opens again; an error was about another text."""
        text = event.text_area.text
        if text != self.state.draft and self.state.problem:
            self.state.problem = ""
            self.update_view()
        self.state.draft = text

    def on_editor_recalled(self, event: Editor.Recalled) -> None:
        """Show another query of the history; an empty one follows the newest."""
        queries, editor = self.state.queries, self.query_one(Editor)
        at = (len(queries) if self._recalled is None else self._recalled) + event.by
        if 0 <= at < len(queries):
            self._recalled = at
            editor.write(queries[at])
        elif at >= len(queries) and self._recalled is not None:
            self._recalled = None
            editor.write("")

    def action_recipes(self) -> None:
        """Show example queries."""
        self._show_recipes()
        self.query_one(TableView).focus()

    def action_undo(self) -> None:
        """Undo the last change of the query, also while the result has the focus."""
        self.query_one(Editor).undo()

    def action_step_focus(self) -> None:
        """Switch between editor and result."""
        self.query_one(TableView if self.typing else Editor).focus()

    def on_key(self, event: Key) -> None:
        """Type a character that the editor missed: while the result has the focus, or at the start.

        ? shows the help.
        """
        if event.character is None or not event.is_printable:
            return
        if event.key not in self.active_bindings:
            event.stop()
            editor = self.query_one(Editor)
            editor.focus()
            editor.insert(event.character)

    def on_descendant_focus(self) -> None:
        """Update the footer: other keys apply."""
        self.update_view()

    def on_table_view_chosen(self, event: TableView.Chosen) -> None:
        """Run an example, or show a row whole."""
        row = event.table.cursor
        if self._recipes_shown:
            editor = self.query_one(Editor)
            if editor.text.strip():
                self.viewer.show_notice("^z restores your query")
            editor.write(RECIPES[row].sql)
            self.action_run_query()
        elif (result := self.state.result) is not None and row < len(result.rows):
            names = [column.heading for column in result.columns]
            entries = zip(names, (span.text for span in result.rows[row]), strict=True)
            self.app.push_screen(DetailsDialog(f"row {row + 1:,}", list(entries)))
