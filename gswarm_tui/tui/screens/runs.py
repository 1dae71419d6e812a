"""Runs screen: all recordings of this user, newest first, with the run under the cursor below."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from collections.abc import Callable

from textual.app import ComposeResult, SuspendNotSupported

from gswarm_tui.analysis.summary_text import TextTable
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import first_of, plural
from gswarm_tui.runs.finding_runs import SUFFIX, Report, once
from gswarm_tui.runs.line import RunLine
from gswarm_tui.runs.listing import opening_command, run_facts, run_table
from gswarm_tui.tui.actions import LIVE, RUNS
from gswarm_tui.tui.drawing.spans import Span, labelled
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.computed import show_table
from gswarm_tui.tui.widgets.lines import Bar
from gswarm_tui.tui.widgets.table import TableView

LoadRuns = Callable[[Report], tuple[list[RunLine], list[str]]]
_EVERY_S = 2.0
"""Seconds between two drawings of the list while it grows: 10,000 rows take half a second."""


class RunsScreen(ViewerScreen):
    """All your recordings: those below the working folder, and all that were recorded or listed before.

    The newest is first. Below the table are the findings of the run under the cursor, and the command that
    shows it. `gswarm-tui runs` prints the same list, with filters.
    """

    SCREEN = RUNS

    def __init__(self, load: LoadRuns | None) -> None:
        super().__init__()
        self._load = load
        # Runs with their table: the newest ones, by the thread that reads, and those shown in a width.
        self._newest: tuple[list[RunLine], TextTable] = ([], run_table(()))
        self._shown, self._width = self._newest, 0
        self._state = "reading recordings …"
        self._next_s = 0.0
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

    async def _read(self, load: LoadRuns) -> None:
        # The time of a replay says nothing on when this list was read.
        self._read_at = self.viewer.now() if self.viewer.mode == LIVE else None
        try:
            runs, skipped = await asyncio.to_thread(load, self._take)
            self._next_s = 0.0
            await asyncio.to_thread(self._take, runs, 0, 0)
        except UserError as error:
            self._state = str(error)
        else:
            self._state = "" if runs else "no recording here, and none was recorded or listed before"
            if skipped:
                self.viewer.show_notice(f"skipped {first_of(skipped, 1)}", error=True)
        self.update_view()

    def _take(self, found: list[RunLine], read: int, of: int) -> None:
        """Show the runs found so far, in the reader's thread; stop it once the user has left this screen."""
        if not self.is_running:
            raise asyncio.CancelledError
        self._state = f"reading {read:,} of {plural(of, 'file')}" if of else "searching folders"
        if time.monotonic() >= self._next_s:
            runs = once(found)
            self._newest = runs, run_table(runs, zone=self.viewer.timezone)
            self.call_later(self.update_view)
            self._next_s = time.monotonic() + _EVERY_S

    def draw(self) -> None:
        """Draw the list; the cursor stays on its run."""
        table = self.query_one(TableView)
        table.empty = self._state
        if self._shown is not self._newest or self._width != self.size.width:
            chosen = self.chosen
            self._shown, self._width = self._newest, self.size.width
            show_table(table, self._shown[1])
            same = (at for at, run in enumerate(self._shown[0]) if chosen and run.run == chosen.run)
            table.move_to(next(same, table.cursor))
        runs = self._shown[0]
        title = [Span(f" {plural(len(runs), 'run') if runs else 'runs'}", "title")]
        if runs and self._state:
            title.append(Span(f" · {self._state}"))
        elif runs and self._read_at is not None:
            title.append(Span(f" as of {self.viewer.local(self._read_at):%H:%M:%S}"))
        self.show_title(title)
        # A table that was hidden so far gets its width with the next layout.
        self.call_after_refresh(self.on_table_view_moved)

    @property
    def chosen(self) -> RunLine | None:
        """The run under the cursor."""
        return self._shown[0][self.query_one(TableView).cursor] if self._shown[0] else None

    def on_table_view_moved(self) -> None:
        """Show the findings and the command of the run under the cursor."""
        bar, run = self.query_one("#chosen", Bar), self.chosen
        bar.display = run is not None
        if run is None:
            return
        bar.show(*labelled(run_facts(run), self.size.width))

    def on_table_view_chosen(self) -> None:
        """Play the run."""
        if (run := self.chosen) is None:
            return
        if self.viewer.shows_run(run):
            self.viewer.show_notice("this is the recording on the screen; f shows its fleet")
        else:
            self.run_worker(self._play(run, opening_command(run)))

    async def _play(self, run: RunLine, command: str) -> None:
        """Play the run in this terminal; where that isn't possible, show the command for it."""
        why = f"in another terminal: {command}"
        if run.path.endswith(SUFFIX) and not run.thinned:
            with contextlib.suppress(SuspendNotSupported):
                why = await self.viewer.run_in_place(*shlex.split(command)[1:])
        if why:
            self.viewer.show_notice(why)
