"""Runs screen: all recordings of this user, newest first, with the run under the cursor below."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from textual.app import ComposeResult

from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import first_of, plural
from gswarm_tui.runs.line import RunLine
from gswarm_tui.runs.listing import opening_command, run_facts, run_table
from gswarm_tui.tui.actions import LIVE, RUNS
from gswarm_tui.tui.drawing.spans import Span, labelled
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.computed import show_table
from gswarm_tui.tui.widgets.lines import Bar
from gswarm_tui.tui.widgets.table import TableView


class RunsScreen(ViewerScreen):
    """All your recordings: those below the working folder, and all that were recorded or listed before.

    The newest is first. Below the table are the findings of the run under the cursor, and the command that
    shows it. `gswarm-tui runs` prints the same list, with filters.
    """

    SCREEN = RUNS

    def __init__(self, load: Callable[[], tuple[list[RunLine], list[str]]] | None) -> None:
        super().__init__()
        self._load = load
        self._runs: Sequence[RunLine] = ()
        self._state = "reading recordings …"
        self._read_at: float | None = None

    def compose_body(self) -> ComposeResult:
        """The table, and the run under the cursor."""
        yield TableView(())
        yield Bar(id="chosen")

    def on_mount(self) -> None:
        """Read the runs in a thread."""
        if self._load is None:
            self._state = "no runs can be listed here; gswarm-tui runs prints them"
        else:
            self.run_worker(self._read(self._load))

    async def _read(self, load: Callable[[], tuple[list[RunLine], list[str]]]) -> None:
        # The time of a replay says nothing on when this list was read.
        self._read_at = self.viewer.now() if self.viewer.mode == LIVE else None
        try:
            self._runs, skipped = await asyncio.to_thread(load)
        except UserError as error:
            self._state = str(error)
        else:
            self._state = "" if self._runs else "no recording here, and none was recorded or listed before"
            if skipped:
                self.viewer.show_notice(f"skipped {first_of(skipped, 1)}", error=True)
        self.update_view()

    def draw(self) -> None:
        """Draw the list."""
        title = [Span(f" {plural(len(self._runs), 'run') if self._runs else 'runs'}", "title")]
        if self._runs and self._read_at is not None:
            title.append(Span(f" as of {self.viewer.local(self._read_at):%H:%M:%S}"))
        self.show_title(title)
        table = self.query_one(TableView)
        table.empty = self._state
        show_table(table, run_table(self._runs, zone=self.viewer.timezone))
        # A table that was hidden so far gets its width with the next layout.
        self.call_after_refresh(self.on_table_view_moved)

    @property
    def chosen(self) -> RunLine | None:
        """The run under the cursor."""
        return self._runs[self.query_one(TableView).cursor] if self._runs else None

    def on_table_view_moved(self) -> None:
        """Show the findings and the command of the run under the cursor."""
        bar, run = self.query_one("#chosen", Bar), self.chosen
        bar.display = run is not None
        if run is None:
            return
        bar.show(*labelled(run_facts(run), self.size.width))

    def on_table_view_chosen(self) -> None:
        """Play the run; where this app can't, show the command for it."""
        if (run := self.chosen) is not None and not self.viewer.play_run(run):
            self.viewer.show_notice(f"in another terminal: {opening_command(run)}")
