"""Interfaces that screens see of the app, so that they never import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, Protocol

from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.drawing.spans import Span

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries


class Feed(Protocol):
    """The fleet that screens show, live or recorded. Screens only read it; times are Unix seconds."""

    @property
    def fleet(self) -> Fleet:
        """The fleet's state; another object after a jump in time."""

    @property
    def started_at(self) -> float:
        """Start of the recording, or of the run."""

    def now(self) -> float:
        """Return the time that is shown."""

    def state(self) -> list[Span]:
        """Return the recording's state for the header; the first two spans are the most important."""


class ViewerApp(Protocol):
    """The app as its screens use it; SqlApp has only what the SQL screen needs.

    ``open_queries`` opens a connection for queries; None where nothing is recorded. ``player`` is None while
    the screen shows the live fleet. ``timezone`` None is the machine's own.
    """

    feed: Feed
    mode: str
    player: Player | None
    timezone: tzinfo | None
    open_queries: Callable[[], RecordingQueries] | None

    def show_notice(self, sentence: str, *, error: bool = False) -> None:
        """Show a short notice for a few seconds."""

    def show_node(self, node: str, gpu: int | None = None) -> None:
        """Open a node's screen with the cursor on this GPU position."""

    def show_gpu(self, node: str, gpu: int) -> None:
        """Open a GPU's screen by its position in the node."""

    def show_metric(self, metric: str) -> None:
        """Show a metric of the catalogue in the heatmap."""

    def show_order(self, order: Order) -> None:
        """Sort the heatmap."""

    def show_session(self, session: Session) -> None:
        """Open a session's screen."""

    def show_comparison(self, sessions: Sequence[Session]) -> None:
        """Compare sessions with the first of them."""

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note."""

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
