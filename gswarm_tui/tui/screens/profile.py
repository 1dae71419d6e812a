"""Screens of a profiler's report and of PyTorch traces: a table for each view, the cut name below it."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult

from gswarm_tui.analysis.profiles import Profile, ProfileDetails, profile_details
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.analysis.traces import trace_tables
from gswarm_tui.common.quantities import brief_time, percent
from gswarm_tui.tui.actions import PROFILE, TRACE
from gswarm_tui.tui.drawing.spans import Span, wrapped
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.computed import ComputedScreen, show_table
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

    def facts(self, result: ProfileDetails) -> str:
        """Return figures for the title."""
        raise NotImplementedError

    def heading(self) -> list[Span]:
        """Return the file, its origin and figures."""
        facts = "" if self.result is None else self.facts(self.result)
        file, origin = clean(self._profile.file), clean(self._profile.origin)
        return [Span(f" {file}", "title"), Span(f"  {origin}", "dim"), Span(f"  {facts}", "dim")]

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


class ProfileScreen(TablesScreen):
    """One report of Nsight Systems or Nsight Compute, as tables.

    They have its kernels, calls, memory operations and ranges by name, and the same kernels on all ranks.
    """

    SCREEN = PROFILE
    EMPTY: ClassVar = {
        "kernels": "no kernels in this profile",
        "API": "no CUDA calls in this profile",
        "memory": "no copies or memory sets in this profile",
        "ranges": "no NVTX ranges in this profile",
        "OS": "no calls of the operating system's libraries in this profile",
        "ranks": "no other rank has a profile of this time",
        "messages": "the profiler reported nothing",
    }
    VIEWS: ClassVar = tuple(EMPTY)

    def compute(self, queries: RecordingQueries) -> ProfileDetails:
        """Query all tables at once."""
        return queries.load(profile_details, self._profile)

    def facts(self, result: ProfileDetails) -> str:
        """Return the share without a kernel, and the length of the capture."""
        idle, length = result.no_kernel_pct, brief_time(self._profile.seconds * 1e9)
        return f"no kernel {percent(sum(idle) / len(idle))} of {length}" if idle else length


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

    def compute(self, queries: RecordingQueries) -> ProfileDetails:
        """Query all tables at once."""
        return ProfileDetails(queries.load(trace_tables, self._profile), [])

    def facts(self, result: ProfileDetails) -> str:
        """Return what may be missing, in short."""
        return "; ".join(message.partition(":")[0] for (message,) in result.tables["messages"].rows)
