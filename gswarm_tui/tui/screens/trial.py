"""Trial screen: what is done, running and left, the cost so far, and the results so far."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.trial_kinds import TRIAL_KINDS
from gswarm_tui.trials.progress import TrialProgress, load_progress, plan_table, progress_lines
from gswarm_tui.trials.result_text import command_text, notes, scaling_table, sentence, usage_table
from gswarm_tui.tui.actions import TRIAL
from gswarm_tui.tui.drawing.spans import Span, Spans, labelled, wrapped
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table
from gswarm_tui.tui.widgets.lines import Canvas
from gswarm_tui.tui.widgets.table import TableView

RESULTS, USAGE, RUNS = "results", "GPUs", "runs"
COMMITTED_WITHIN_S = 2.0
"""Recorders commit at most this much later."""
BAR_MOST = 60
"""Cells of the progress bar on a wide terminal."""
NOTES_FROM = 3
"""Lines below the table in which notes are shown."""


class TrialScreen(ComputedScreen[TrialProgress]):
    """The newest trial of this recording, one command under several placements.

    It shows what is done, running and left, the cost so far, and the results of the runs that have ended.
    """

    SCREEN = TRIAL
    VIEWS: ClassVar = (RESULTS, USAGE, RUNS)

    def compute(self, queries: RecordingQueries) -> TrialProgress:
        """Load the trial."""
        if (progress := queries.load(load_progress)) is None:
            raise UserError("no trial in this recording; gswarm-tui trial starts one")
        return progress

    def still_recording(self, result: TrialProgress) -> bool:
        """Whether the trial is still running, or another one has begun."""
        news = (event.at for event in self.fleet.event_log if event.kind in TRIAL_KINDS)
        # An event is shown before it can be queried.
        newer = self.viewer.player is None and max(news, default=0.0) + COMMITTED_WITHIN_S > self._as_of
        return newer or (result.active and not result.finished and not self.viewer.ended)

    def current(self, result: TrialProgress) -> TrialProgress:
        """Return the result; a trial whose recorder has ended has no running run."""
        ended = result.active and self.viewer.ended
        return replace(result, running=None, active=False) if ended else result

    def heading(self) -> list[Span]:
        """Return the command."""
        command = "" if self.result is None else f"  {clean(command_text(self.result.results))}"
        return [Span(" trial", "title"), Span(command, "text")]

    def draw_result(self, result: TrialProgress, above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw progress and result above the table of the view, and notes below it."""
        result, cells = self.current(result), self.size.width
        now = self.viewer.now() if self.viewer.player is None else self.viewer.player.end
        lines = [self._bar(result), *labelled(progress_lines(result, now, self.viewer.timezone), cells)]
        lines += [(Span(""),), *wrapped(sentence(result.results), cells, "accent"), (Span(""),)]
        above.show(lines)
        if self.view == RUNS:
            below.display = False
            table.styles.height = "1fr"
            show_table(table, plan_table(result, now))
            return
        made = (usage_table if self.view == USAGE else scaling_table)(result.results)
        room, wanted = self.lines - 3 - len(lines), len(made.rows) + 2
        below.display = room - wanted >= NOTES_FROM
        table.styles.height = min(room, wanted) if below.display else room
        show_table(table, made)
        below.styles.max_height = max(1, room - wanted)
        below.show([line for note in notes(result.results) for line in wrapped(note, cells, "dim")])

    def _bar(self, result: TrialProgress) -> Spans:
        """Return a bar of the runs that are done; it has no rest once no other follows."""
        cells, runs = min(BAR_MOST, self.size.width - 2), len(result.trial.plan.runs)
        filled = cells * (runs - len(result.trial.left)) // max(1, runs)
        rest = cells - filled if result.active else 0
        return (Span(" "), Span("━" * filled, "accent"), Span("━" * rest, "faint"))

    def chosen_session(self) -> Session | None:
        """The session of the run under the cursor."""
        if self.result is None or self.view != RUNS:
            return None
        current = self.current(self.result)
        runs, cursor = current.trial.plan.runs, self.query_one(TableView).cursor
        begun = cursor < len(runs) and runs[cursor] not in current.waiting
        name = runs[cursor].session if begun else ""
        named = [one for one in self.fleet.sessions.sessions.values() if one.name == name]
        return named[-1] if named else None

    def on_table_view_chosen(self) -> None:
        """Open the session of the run."""
        if (session := self.chosen_session()) is None:
            self.viewer.show_notice("choose a run that has begun, in the view runs; tab shows it")
            return
        from gswarm_tui.tui.screens.session import SessionScreen

        self.viewer.show(SessionScreen(session))
