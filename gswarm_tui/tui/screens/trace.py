"""Trace screen: what each rank's GPU did in each traced iteration, and which rank the others wait for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from gswarm_tui.analysis.profiles import Profile
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.analysis.traces import trace_tables
from gswarm_tui.tui.actions import TRACE, bindings_of
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_cut_text, show_table
from gswarm_tui.tui.screens.titles import title_line
from gswarm_tui.tui.widgets.lines import Bar, Canvas
from gswarm_tui.tui.widgets.table import TableView
from gswarm_tui.tui.widgets.view_bar import ViewBar

EMPTY = {
    "ranks": "no iterations in this trace",
    "waits": "no rank waited: no collective was traced on several ranks",
    "kernels": "no kernels in this trace",
    "operators": "no operators in this trace",
}


class TraceScreen(ComputedScreen[dict[str, TextTable]]):
    """A PyTorch trace of the recording, and those of other ranks at its time."""

    SCREEN = TRACE
    BINDINGS = bindings_of(SCREEN)
    VIEWS: ClassVar = tuple(EMPTY)

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile

    def compose(self) -> ComposeResult:
        """Title, views, message, table."""
        yield Bar(id="title")
        yield ViewBar(self.VIEWS)
        yield Canvas(id="message")
        yield TableView(())
        yield Bar(id="cut")
        yield from self.compose_footer()

    def compute(self, queries: RecordingQueries) -> dict[str, TextTable]:
        """Query all tables at once."""
        return queries.load(trace_tables, self._profile)

    def draw(self) -> None:
        """Draw the view."""
        super().draw()
        left = [
            Span(f" {clean(self._profile.file)}", "title"),
            Span(f"  {clean(self._profile.origin)}", "dim"),
        ]
        self.query_one("#title", Bar).show(title_line(left, self.feed, self.size.width))
        self.query_one(ViewBar).show_hint(self.progress_text())
        message, table = self.query_one("#message", Canvas), self.query_one(TableView)
        message.display = self.result is None
        if self.result is None:
            message.show(self.placeholder_lines())
            return
        table.empty = EMPTY[self.view]
        show_table(table, self.result[self.view])
        self.on_table_view_moved()

    def on_table_view_moved(self) -> None:
        """Show the name under the cursor where the table cuts it."""
        show_cut_text(self.query_one("#cut", Bar), self.query_one(TableView))
