"""Comparison of sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult

from gswarm_tui.analysis import comparison
from gswarm_tui.analysis.comparison import ComparedRun
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.tui.actions import COMPARISON
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table, wrapped
from gswarm_tui.tui.screens.titles import title_line
from gswarm_tui.tui.widgets.lines import Bar, Canvas
from gswarm_tui.tui.widgets.table import TableView


class ComparisonScreen(ComputedScreen[list[ComparedRun]]):
    """The picked sessions side by side; the first is the reference."""

    SCREEN = COMPARISON

    def __init__(self, sessions: Sequence[Session]) -> None:
        super().__init__()
        self._sessions = tuple(sessions)

    def compose(self) -> ComposeResult:
        """Title, placeholder, table, remarks."""
        yield Bar(id="title")
        yield Canvas(id="placeholder")
        yield TableView(())
        yield Canvas(id="remarks")
        yield from self.compose_footer()

    def compute(self, queries: RecordingQueries) -> list[ComparedRun]:
        """Summarize each session."""
        return queries.compared_runs(self._sessions)

    def still_recording(self, result: list[ComparedRun]) -> bool:
        """Whether any session is still recorded."""
        return any(run.summary.running for run in result)

    def draw(self) -> None:
        """Draw the comparison."""
        super().draw()
        names = ", ".join(clean(session.name) for session in self._sessions[1:])
        left = [Span(f" {clean(self._sessions[0].name)}", "title"), Span(f" vs {names}", "text")]
        if words := self.progress_text():
            left.append(Span(f"  {words}", "dim"))
        self.query_one("#title", Bar).show(title_line(left, self.viewer, self.size.width))
        placeholder, remarks = self.query_one("#placeholder", Canvas), self.query_one("#remarks", Canvas)
        table, cells = self.query_one(TableView), self.size.width
        if self.result is None:
            table.display = remarks.display = False
            placeholder.show([(Span(""),), *self.placeholder_lines()])
            return
        table.display = remarks.display = True
        placeholder.show([(Span(""),)])
        made = comparison.comparison_table(self.result, self.viewer.timezone)
        last = wrapped(" ".join(comparison.comparison_notes(self.result)), cells, "dim")
        room = self.lines - 3 - len(last)
        table.styles.height = min(room, len(made.rows) + 1 + (room > len(made.rows) + 1))
        show_table(table, made)
        remarks.show(last)
