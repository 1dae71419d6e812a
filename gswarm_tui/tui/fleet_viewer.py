"""Base of the apps that show a fleet: navigation between screens, and playback of a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

from gswarm_tui.common.colours import DARK
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.events import EventsScreen
from gswarm_tui.tui.screens.fleet import FleetScreen
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.host import Feed
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.screens.sessions import SessionsScreen
from gswarm_tui.tui.viewer import Viewer

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries


class FleetViewer(Viewer):
    """App that navigates between the fleet's screens.

    ``title`` names the job in the header, ``metric`` is the first one in the heatmap.
    """

    def __init__(
        self,
        feed: Feed,
        mode: str,
        *,
        title: str = "",
        theme: str = DARK,
        metric: str = "util_pct",
        timezone: tzinfo | None = None,
        open_queries: Callable[[], RecordingQueries] | None = None,
        history: QueryHistory | None = None,
    ) -> None:
        super().__init__(
            feed, mode, theme=theme, timezone=timezone, open_queries=open_queries, history=history
        )
        self.job = clean(title)
        self._first_metric = metric
        self._update_posted = False

    def get_default_screen(self) -> ViewerScreen:
        """Start with the fleet's screen."""
        return FleetScreen(self.job, self._first_metric)

    def request_update(self) -> None:
        """Update the view soon, once for all requests that a slow terminal lets pass."""
        if not self._update_posted and self.screen_stack:
            self._update_posted = True
            self.fleet_screen.call_later(
                self.update_view
            )  # not by the app, which may be waiting for the past

    def update_view(self) -> None:
        """Show the feed's present state."""
        self._update_posted = False
        super().update_view()

    @property
    def fleet_screen(self) -> FleetScreen:
        """The screen behind all others."""
        first = self.screen_stack[0]
        assert isinstance(first, FleetScreen)  # noqa: S101 - get_default_screen made it
        return first

    def show_node(self, node: str, gpu: int | None = None) -> None:
        """Open a node's screen with the cursor on this GPU position."""
        self._show(NodeScreen(node, gpu))

    def show_gpu(self, node: str, gpu: int) -> None:
        """Open a GPU's screen by its position in the node."""
        self._show(GpuScreen(node, gpu))

    def show_metric(self, metric: str) -> None:
        """Show a metric in the heatmap, by its column name."""
        self.action_fleet()
        self.fleet_screen.action_metric(metric)

    def show_order(self, order: Order) -> None:
        """Sort the heatmap."""
        self.action_fleet()
        self.fleet_screen.sort(order)

    def show_session(self, session: Session) -> None:
        """Open a session's screen."""
        from gswarm_tui.tui.screens.session import SessionScreen

        self._show(SessionScreen(session))

    def show_comparison(self, sessions: Sequence[Session]) -> None:
        """Compare sessions with the first of them."""
        from gswarm_tui.tui.screens.comparison import ComparisonScreen

        self._show(ComparisonScreen(sessions))

    def action_fleet(self) -> None:
        """Show the fleet."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_sessions(self) -> None:
        """Show the sessions."""
        self._show(SessionsScreen())

    def action_events(self) -> None:
        """Show the events."""
        self._show(EventsScreen())

    def action_sql(self) -> None:
        """Show the SQL screen."""
        self._show(self.sql_screen())

    def _show(self, screen: ViewerScreen) -> None:
        """Put a screen in front; an open one of its kind closes, and those in front of that."""
        kinds = [type(each) for each in self.screen_stack]
        if type(screen) in kinds:
            for _ in kinds[kinds.index(type(screen)) :]:
                self.pop_screen()
        self.push_screen(screen)

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note; only the live app can."""
