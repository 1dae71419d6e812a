"""Comparison of sessions side by side."""

from __future__ import annotations

from collections.abc import Sequence

from gswarm_tui.analysis import comparison
from gswarm_tui.analysis.comparison import ComparedRun
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.tui.actions import COMPARISON
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table, wrapped
from gswarm_tui.tui.widgets.lines import Canvas
from gswarm_tui.tui.widgets.table import TableView


class ComparisonScreen(ComputedScreen[list[ComparedRun]]):
    """The picked sessions side by side; the first is the reference."""

    SCREEN = COMPARISON

    def __init__(self, sessions: Sequence[Session]) -> None:
        super().__init__()
        self._sessions = tuple(sessions)

    def compute(self, queries: RecordingQueries) -> list[ComparedRun]:
        """Summarize each session."""
        return queries.compared_runs(self._sessions)

    def still_recording(self, result: list[ComparedRun]) -> bool:
        """Whether any session is still recorded."""
        return any(run.summary.running for run in result)

    def heading(self) -> list[Span]:
        """Return the names of the sessions."""
        names = ", ".join(clean(session.name) for session in self._sessions[1:])
        left = [Span(f" {clean(self._sessions[0].name)}", "title"), Span(f" vs {names}", "text")]
        return [*left, Span(f"  {self.progress_text()}", "dim")]

    def draw_result(self, result: list[ComparedRun], above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the comparison."""
        above.show([(Span(""),)])
        made = comparison.comparison_table(result, self.viewer.timezone)
        remarks = wrapped(" ".join(comparison.comparison_notes(result)), self.size.width, "dim")
        room = self.lines - 3 - len(remarks)
        table.styles.height = min(room, len(made.rows) + 1 + (room > len(made.rows) + 1))
        show_table(table, made)
        below.display = True
        below.show(remarks)
