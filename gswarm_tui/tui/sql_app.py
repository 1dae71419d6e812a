"""``gswarm-tui sql`` without a query: the SQL screen alone, on one recording."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.tui.actions import QUERY
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.viewer import Viewer

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries


class SqlApp(Viewer):
    """App that shows only the SQL screen; ``running`` recordings are queried through their head."""

    def __init__(
        self,
        open_queries: Callable[[], RecordingQueries],
        *,
        running: bool,
        theme: str,
        history: QueryHistory,
    ) -> None:
        super().__init__(QUERY, theme=theme, open_queries=open_queries, history=history)
        self._running_recording = running
        self._no_fleet = Fleet(())

    @property
    def fleet(self) -> Fleet:
        """A fleet without nodes."""
        return self._no_fleet

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""
        return not self._running_recording

    def now(self) -> float:
        """Return this machine's time."""
        return time.time()

    def recording_state(self) -> list[Span]:
        """Return whether the recording is being written."""
        return [Span("○ "), Span("finished")] if self.ended else [Span("● ", "error"), Span("recording")]

    def get_default_screen(self) -> ViewerScreen:
        """Start with the SQL screen."""
        return self.sql_screen()
