"""Base of screens that show an analysis, computed in a thread from time to time; its tables and text."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult

from gswarm_tui.analysis import summary_text
from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.common.quantities import DASH
from gswarm_tui.tui.drawing.spans import Span, wrapped
from gswarm_tui.tui.drawing.text import clean, width
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.widgets.lines import Canvas, ViewBar
from gswarm_tui.tui.widgets.table import Row, TableColumn, TableView

T = TypeVar("T")

UPDATE_S, SHARE = 5.0, 20.0
"""Seconds between updates of a result, unless they would take over a twentieth of the time."""
WIDEST = 40
"""Cells of a column of a table."""
SPARE_MOST = 2
"""Extra cells between numbers where they fit."""


class ComputedScreen(ViewerScreen, Generic[T]):
    """Screen that shows a ``result``: None until it is computed; ``problem`` is the reason if that failed.

    A subclass overrides ``compute``, which runs in a thread, if its result changes ``still_recording``, and
    ``heading`` and ``draw_result``. There are lines ``above`` and ``below`` the table, which both scroll.
    """

    VIEWS: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.result: T | None = None
        self.problem = ""
        self.computing = False
        self._as_of = 0.0
        self._took_s = 0.0

    def compose_body(self) -> ComposeResult:
        """Views, if there are several, and the table with lines above and below it."""
        if self.VIEWS:
            yield ViewBar(self.VIEWS)
        yield Canvas(id="above")
        yield TableView(())
        yield Canvas(id="below")

    @abstractmethod
    def heading(self) -> list[Span]:
        """Return the title."""

    @abstractmethod
    def draw_result(self, result: T, above: Canvas, table: TableView, below: Canvas) -> None:
        """Draw the result, with ``above`` and ``table`` shown."""

    @abstractmethod
    def compute(self, queries: RecordingQueries) -> T:
        """Compute the result; takes a while. Raises UserError."""

    def still_recording(self, result: T) -> bool:
        """Whether the result will still change, or the live fleet shows more already."""
        return False

    def on_mount(self) -> None:
        """Connect to the recording."""
        if self.open_queries() is None:
            self.problem = "nothing is recorded, so there is no summary"

    def draw(self) -> None:
        """Draw the result, or why there is none yet."""
        self._refresh_result()
        self.show_title(self.heading())
        if self.VIEWS:
            self.query_one(ViewBar).show_hint(self.progress_text())
        above, below = self.query_one("#above", Canvas), self.query_one("#below", Canvas)
        table = self.query_one(TableView)
        above.display, table.display = True, self.result is not None
        if self.result is None:
            below.display = False
            role = "warning" if self.problem else "dim"
            above.show(wrapped(self.problem or "computing …", self.size.width, role))
        else:
            self.draw_result(self.result, above, table, below)

    def _refresh_result(self) -> None:
        """Compute the result if it is missing or changes."""
        if self._queries is None or self.computing:
            return
        if self.result is not None and not self.still_recording(self.result):
            return
        # Looking back, the summary still covers everything recorded so far.
        player = self.viewer.player
        now = self.viewer.now() if player is None else player.end
        if self._as_of <= 0 or not 0 <= now - self._as_of < max(UPDATE_S, SHARE * self._took_s):
            self.computing, self._as_of = True, now
            self.run_worker(self._compute(self._queries), group="computing")

    async def _compute(self, queries: RecordingQueries) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            self.result = await asyncio.to_thread(self.compute, queries)
            self.problem = ""
        except UserError as error:
            self.problem = str(error)
        finally:
            self.computing = False
        self._took_s = clock() - begun
        self.update_view()

    def progress_text(self) -> str:
        """Return whether the result is being computed, or its time."""
        if self.computing:
            return "computing …" if self.result is None else "updating …"
        if self.result is not None and self.still_recording(self.result):
            return f"as of {self.viewer.local(self._as_of):%H:%M:%S}"
        return ""


def show_table(table: TableView, made: summary_text.TextTable) -> None:
    """Show a table of an analysis; the cursor stays if only numbers changed."""
    names, texts = [*map(clean, made.names)], [[clean(cell) for cell in row] for row in made.rows]
    columns = zip(names, *texts, strict=True)
    widths = [min(WIDEST, max(1, *map(width, column))) for column in columns]
    cells = table.size.width or table.screen.size.width  # a table that was hidden so far has no size yet
    spare = max(0, min(SPARE_MOST, (cells - 2 - sum(widths)) // len(widths) - 1))
    shown = []
    for at, name in enumerate(names):
        left, last = at not in made.right, at == len(names) - 1
        room = widths[at] + (0 if left else spare)
        shown.append(TableColumn(name, room, left=left, frozen=at == 0, grows=last and left))
    rows: list[Row] = [tuple(Span(cell, "dim" if cell == DASH else "text") for cell in row) for row in texts]
    table.show_columns(shown, rows)
