"""Session screen: summary, nodes, GPUs, processes and events of one session; and sessions side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gswarm_tui.analysis import comparison, summary_text
from gswarm_tui.analysis.comparison import ComparedRun
from gswarm_tui.analysis.queries import RecordingQueries, SessionDetails
from gswarm_tui.fleet.event_groups import EventGroup, grouped
from gswarm_tui.fleet.findings import in_order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.insight.notes import what
from gswarm_tui.tui.actions import COMPARISON, SESSION
from gswarm_tui.tui.drawing.spans import Span, Spans, labelled, wrapped
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerApp
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table
from gswarm_tui.tui.screens.dialogs import Choice, PickDialog, ask
from gswarm_tui.tui.screens.events import EVENT_TABLE, event_row
from gswarm_tui.tui.widgets.lines import Canvas
from gswarm_tui.tui.widgets.table import TableView

ALL, NODES, GPUS, PROCESSES, EVENTS = "summary", "nodes", "GPUs", "processes", "events"
TABLE_LEAST = 5
"""Lines of a table below the summary; with fewer it is only in its own view."""

FINDINGS_SHOWN = 3


class SessionScreen(ComputedScreen[SessionDetails]):
    """One session: its figures so far, by node, by GPU and by process, and its events."""

    SCREEN = SESSION
    VIEWS: ClassVar = (ALL, NODES, GPUS, PROCESSES, EVENTS)

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    @property
    def _event_groups(self) -> list[EventGroup]:
        """The session's events, those of one kind and minute together."""
        return [] if self.result is None else grouped(self.result.events)

    @property
    def session(self) -> Session:
        """The session's present state, or its last one."""
        return self.fleet.sessions.sessions.get(self._session.session_id, self._session)

    def compute(self, queries: RecordingQueries) -> SessionDetails:
        """Query all details at once."""
        return queries.details(self._session)

    def still_recording(self, result: SessionDetails) -> bool:
        """Whether the session is still recorded, also because its stop was undone."""
        return result.summary.running or (self.viewer.player is None and self.session.running)

    def chosen_session(self) -> Session | None:
        """Return the session of this screen."""
        return self.session

    def heading(self) -> list[Span]:
        """Return name and state of the session."""
        standing = Span("● running", "good") if self.session.running else Span("○ ended", "dim")
        return [Span(f" {clean(self.session.name)}", "title"), Span("  "), standing]

    def draw_result(self, result: SessionDetails, above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the summary, the table of the view, or both."""
        if result.summary.whole is None:
            table.display = False
            above.show(wrapped(f"{self.session.name} has no GPU samples yet", self.size.width, "warning"))
            return
        most = self.lines - 3
        lines = self._summary(result, self.size.width)
        if len(lines) > most:
            lines = self._summary(result, self.size.width - 1)  # beside it one scrolls
        above.display = self.view == ALL
        above.styles.max_height = max(1, most)
        room = most - len(lines) - 1 >= TABLE_LEAST
        above.show([*lines, (Span(""),)] if room else lines)
        table.display = self.view != ALL or room
        self._fill(table, result)

    def _summary(self, details: SessionDetails, cells: int) -> list[Spans]:
        summary = details.summary
        lines = wrapped(summary_text.heading(summary, self.viewer.timezone), cells, "dim")
        lines += wrapped(summary.period.note, cells) if summary.period.note else []
        lines += [(Span(""),), *labelled(summary_text.summary_lines(summary), cells)]
        began, ended = self.session.started_at, self.session.ended_at or math.inf
        every = in_order(self.fleet.findings.values())
        found = [one for one in every if one.since < ended and (one.until or ended) > began]
        named = [(one.severity, what(one)) for one in found[:FINDINGS_SHOWN]]
        return lines + ([(Span(""),), *labelled(named, cells)] if named else [])

    def _fill(self, table: TableView, details: SessionDetails) -> None:
        summary = details.summary
        several = len(summary.nodes) > 1
        if self.view == EVENTS:
            table.empty = "no events in this session"
            rows = [event_row(group, self.viewer.timezone, self.fleet) for group in self._event_groups]
            table.show_columns(EVENT_TABLE, rows)
        elif self.view == PROCESSES:
            table.empty = "no process on its GPUs"
            show_table(table, summary_text.process_table(details.processes))
        elif self.view == NODES or (self.view == ALL and several):
            show_table(table, summary_text.figures_table(summary.nodes))
        else:
            show_table(table, summary_text.figures_table(summary.gpus))

    def action_move(self, where: str) -> None:
        """Move in the table, or scroll the summary."""
        table = self.query_one(TableView)
        if table.display:
            table.move(where)
        else:
            self.query_one("#above", Canvas).move(where)

    async def action_open(self) -> None:
        """Go to the time of the selected event, else to the session's start."""
        at = self.session.started_at
        row = self.query_one(TableView).cursor
        if self.view == EVENTS and row < len(self._event_groups):
            at = self._event_groups[row].at
        await self.viewer.go_to_time(at)

    async def on_table_view_chosen(self) -> None:
        """Go there on a second click."""
        await self.action_open()

    def action_compare(self) -> None:
        """Ask for another session and compare both."""
        compare_with_another(self.viewer, self.session)


def compare_with_another(viewer: ViewerApp, session: Session) -> None:
    """Ask for another session, and show both side by side."""
    others = [one for one in viewer.sessions if one.session_id != session.session_id]
    if not others:
        viewer.show_notice("no other session to compare with")
        return
    choices = [Choice(one, f"{viewer.local(one.started_at):%d %b %H:%M:%S}  {one.name}") for one in others]
    dialog = PickDialog(f"compare {session.name} with which session?", choices)
    ask(viewer, dialog, lambda other: viewer.show(ComparisonScreen([session, other])))


class ComparisonScreen(ComputedScreen[list[ComparedRun]]):
    """Sessions side by side; the first is the reference."""

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
        first, *others = (clean(session.name) for session in self._sessions)
        left = [Span(f" {first}", "title"), Span(f" vs {', '.join(others)}", "text")]
        return [*left, Span(f"  {self.progress_text()}", "dim")]

    def draw_result(self, result: list[ComparedRun], above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the comparison, and remarks below it."""
        above.show([(Span(""),)])
        made = comparison.comparison_table(result, self.viewer.timezone)
        remarks = wrapped(" ".join(comparison.comparison_notes(result)), self.size.width, "dim")
        room = self.lines - 3 - len(remarks)
        table.styles.height = min(room, len(made.rows) + 1 + (room > len(made.rows) + 1))
        show_table(table, made)
        below.display = True
        below.show(remarks)
