"""Trace screen: what each rank's GPU did in each traced iteration, and which rank the others wait for."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from gswarm_tui.analysis.profiles import Profile, ProfileDetails
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.analysis.traces import trace_tables
from gswarm_tui.tui.actions import TRACE
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table, wrapped
from gswarm_tui.tui.widgets.lines import Bar, Canvas
from gswarm_tui.tui.widgets.table import TableView

CUT_TEXT_LINES = 3
"""Lines of a text that a table cuts."""


class TablesScreen(ComputedScreen[ProfileDetails]):
    """Tables of a profile or trace, one for each view; a subclass names those that are ``EMPTY``."""

    EMPTY: ClassVar[dict[str, str]]

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile

    def compose_body(self) -> ComposeResult:
        """Views, table, the name under the cursor."""
        yield from super().compose_body()
        yield Bar(id="cut")

    def facts(self) -> str:
        """Return figures for the title."""
        return ""

    def heading(self) -> list[Span]:
        """Return the file, its origin and figures."""
        return [
            Span(f" {clean(self._profile.file)}", "title"),
            Span(f"  {clean(self._profile.origin)}", "dim"),
            Span(f"  {self.facts()}", "dim"),
        ]

    def draw_result(self, result: ProfileDetails, above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the table of the view."""
        above.display = False
        table.empty = self.EMPTY[self.view]
        show_table(table, result.tables[self.view])
        # A table that was hidden so far gets its width with the next layout.
        self.call_after_refresh(self.on_table_view_moved)

    def on_table_view_moved(self) -> None:
        """Show the name under the cursor where the table cuts it."""
        bar, table = self.query_one("#cut", Bar), self.query_one(TableView)
        lines = wrapped(table.cut_text, table.size.width, "dim")
        if len(lines) > CUT_TEXT_LINES:
            lines[CUT_TEXT_LINES - 1 :] = [(*lines[CUT_TEXT_LINES - 1], Span(" …", "dim"))]
        bar.display = bool(lines)
        bar.show(*lines)


class TraceScreen(TablesScreen):
    """PyTorch traces of one moment, of this rank and of others.

    The tables have what each rank's GPU did in each iteration, which rank the others waited for, and the
    kernels and operators of this rank.
    """

    SCREEN = TRACE
    EMPTY: ClassVar = {
        "ranks": "no iterations in this trace",
        "waits": "no rank waited: no collective was traced on several ranks",
        "kernels": "no kernels in this trace",
        "operators": "no operators in this trace",
        "messages": "nothing is known to be missing",
    }
    VIEWS: ClassVar = tuple(EMPTY)

    def facts(self) -> str:
        """Return what may be missing, in short."""
        messages = self.result.tables["messages"].rows if self.result else []
        return "; ".join(message.partition(":")[0] for (message,) in messages)

    def compute(self, queries: RecordingQueries) -> ProfileDetails:
        """Query all tables at once."""
        return ProfileDetails(queries.load(trace_tables, self._profile), [])
