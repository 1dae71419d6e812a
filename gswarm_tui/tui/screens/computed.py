"""Base of screens that show a summary of the recording, computed in a thread from time to time."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from datetime import datetime
from typing import Generic, TypeVar

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.errors import UserError
from gswarm_tui.tui.drawing.spans import Span, Spans
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen

T = TypeVar("T")

RUNNING_UPDATE_S = 10.0
"""Seconds between updates of a running session, unless they would take over a twentieth of the time."""
ENDED_UPDATE_S = 1.0
"""Seconds between updates of an ended session until its end is on disk."""
SHARE = 20.0


class ComputedScreen(ViewerScreen, Generic[T]):
    """Screen that shows a ``result``: None until it is computed; ``problem`` is the reason if that failed.

    A subclass overrides ``compute``, which runs in a thread, and ``still_recording`` if its result changes;
    its ``draw`` calls the base's. ``has_ended`` says whether the recording of a result that was still
    recorded has ended since.
    """

    def __init__(self) -> None:
        super().__init__()
        self.result: T | None = None
        self.problem = ""
        self.computing = False
        self._as_of = 0.0
        self._took_s = 0.0
        self._had_ended = False
        self._stop_undone = False

    @abstractmethod
    def compute(self, queries: RecordingQueries) -> T:
        """Compute the result; takes a while. Raises UserError."""

    def still_recording(self, result: T) -> bool:
        """Whether the result will still change."""
        return False

    def has_ended(self) -> bool:
        """Whether the recording has ended since the result was computed."""
        return False

    def outdated(self) -> bool:
        """Whether the fleet shows more than the result, which is then computed again soon."""
        return False

    def on_mount(self) -> None:
        """Connect to the recording."""
        if self.open_queries() is None:
            self.problem = "nothing is recorded, so there is no summary"

    def draw(self) -> None:
        """Compute the result if it is missing or outdated."""
        if self._queries is None or self.computing:
            return
        wait_s = (
            max(ENDED_UPDATE_S, self._took_s)
            if self.has_ended() or self.outdated()
            else max(RUNNING_UPDATE_S, SHARE * self._took_s)
        )
        player = self.viewer.player
        # Looking back, the summary still covers everything recorded so far.
        now = self.feed.now() if player is None else player.end
        fresh = self._as_of > 0 and 0 <= now - self._as_of < wait_s
        recording = self.result is not None and self.still_recording(self.result)
        if player is None:
            undone = self._had_ended and not self.has_ended()
            self._stop_undone = (self._stop_undone or undone) and not recording
            self._had_ended = self.has_ended()
        finished = self.result is not None and not recording and not self._stop_undone
        if not finished and not fresh:
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
            return f"as of {datetime.fromtimestamp(self._as_of, self.viewer.timezone):%H:%M:%S}"
        return ""

    def placeholder_lines(self) -> list[Spans]:
        """Return the lines to show without a result."""
        if self.problem:
            return [(Span(f" {clean(self.problem)}", "warning"),)]
        return [(Span(" computing …", "dim"),)]
