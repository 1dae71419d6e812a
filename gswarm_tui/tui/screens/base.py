"""Base of all screens: feed, timeline, footer and updates; and the app as screens see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

from textual.app import ComposeResult
from textual.events import Event, Resize
from textual.screen import Screen

from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import possible
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.widgets.footer import Footer, footer_line
from gswarm_tui.tui.widgets.table import TableView
from gswarm_tui.tui.widgets.timeline import Timeline
from gswarm_tui.tui.widgets.view_bar import ViewBar

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries


class Feed(Protocol):
    """The fleet that screens show, live or recorded. Screens only read it; times are Unix seconds."""

    @property
    def fleet(self) -> Fleet:
        """The fleet's state; another object after a jump in time."""

    @property
    def loading(self) -> str:
        """Text on the recording that is being loaded; empty once its first fleet is shown."""

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""

    def now(self) -> float:
        """Return the time that is shown."""

    def state(self) -> list[Span]:
        """Return the recording's state for the header; the first two spans are the most important."""


class ViewerApp(Protocol):
    """The app as its screens use it, so that they never import it.

    ``open_queries`` opens a connection for queries; None where nothing is recorded. ``player`` is None while
    the screen shows the live fleet. ``timezone`` None is the machine's own. ``begun`` is where a session of a
    finished recording begins that has no end yet. ``picked_sessions`` are the ids of those to compare.
    """

    feed: Feed
    mode: str
    player: Player | None
    timezone: tzinfo | None
    open_queries: Callable[[], RecordingQueries] | None
    begun: float | None
    picked_sessions: set[str]

    @property
    def recorded(self) -> bool:
        """Whether what is shown is or was recorded."""

    @property
    def read_only(self) -> bool:
        """Whether actions that change the recording are refused."""

    @property
    def can_start_session(self) -> bool:
        """Whether a session can be started now: something is recorded, and the screen isn't read-only."""

    def show_notice(self, sentence: str, *, error: bool = False) -> None:
        """Show a short notice for a few seconds."""

    def leave_notice(self) -> None:
        """Remove the notice when its screen is left, unless it is an error."""

    def show(self, screen: ViewerScreen) -> None:
        """Put a screen in front, in the place of an open one of its kind."""

    def show_metric(self, metric: str) -> None:
        """Show a metric of the catalogue in the heatmap."""

    def show_order(self, order: Order) -> None:
        """Sort the heatmap."""

    def show_filter(self, text: str) -> None:
        """Show only the GPUs of the heatmap that a filter selects."""

    def write_session_files(self, session: Session) -> None:
        """Write plot and report of a session."""

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note."""

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""


class ViewerScreen(Screen[None], inherit_bindings=False):
    """Screen that shows the feed.

    A subclass names its ``SCREEN`` (``actions.SCREENS``), sets ``BINDINGS = bindings_of(SCREEN)``, ends its
    ``compose`` with ``compose_footer`` and overrides ``draw``. ``update_view`` calls it after each tick, once
    a second, and when the screen comes to the front. ``reset`` drops what a subclass keeps of a fleet: a jump
    in time brings another one. ``open_queries`` connects to the recording.
    """

    SCREEN: ClassVar[str]
    # A scrollbar of the screen may make room for the row whose lack made it appear, without end.
    DEFAULT_CSS = "ViewerScreen { overflow: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self._drawn_fleet: Fleet | None = None
        self._update_pending = False
        self._queries: RecordingQueries | None = None

    @property
    def feed(self) -> Feed:
        """The feed to show."""
        return self.viewer.feed

    @property
    def fleet(self) -> Fleet:
        """The fleet's state."""
        return self.feed.fleet

    @property
    def viewer(self) -> ViewerApp:
        """The app."""
        return cast("ViewerApp", self.app)

    def update_view(self) -> None:
        """Draw the present state, unless the widgets don't exist yet or are being removed."""
        if not self.app.is_running:  # an app that ends removes them one by one
            return
        if self.is_mounted and self.is_attached and self in self.app.screen_stack and self.size:
            if self.fleet is not self._drawn_fleet:
                self._drawn_fleet = self.fleet
                self.reset()
            timeline = self.query_one(Timeline)
            if timeline.show(self.viewer.player, self.viewer.timezone, self.viewer.begun):
                self.update_after_layout()
            viewer = self.viewer
            keys = footer_line(
                self.SCREEN,
                self.size.width,
                viewer.mode,
                typing=self.typing,
                recorded=viewer.recorded,
                read_only=viewer.read_only,
                view=next((bar.picked for bar in self.query(ViewBar)), ""),
            )
            self.query_one(Footer).show(keys)
            self.draw()

    @property
    def time_shown(self) -> str:
        """The time that is shown: "now", or the time of day in a recording."""
        if self.viewer.player is None:
            return "now"
        return f"{datetime.fromtimestamp(self.feed.now(), self.viewer.timezone):%H:%M:%S}"

    def update_after_layout(self) -> None:
        """Update once when all widgets have their new sizes."""
        if not self._update_pending:
            self._update_pending = True
            self.call_after_refresh(self._update_after_layout)

    def _update_after_layout(self) -> None:
        self._update_pending = False
        self.update_view()

    @property
    def lines(self) -> int:
        """Lines above the timeline."""
        return self.size.height - self.query_one(Timeline).size.height

    @property
    def hidden(self) -> list[str]:
        """Names of columns that are left out for lack of room."""
        return []

    @property
    def typing(self) -> bool:
        """Whether keys type text now."""
        return False

    def compose_footer(self) -> ComposeResult:
        """Yield the timeline and the footer."""
        yield Timeline()
        yield Footer()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow only actions of this screen in this mode."""
        return possible(action, self.viewer.mode, self.SCREEN) and super().check_action(action, parameters)

    def on_timeline_sought(self, event: Timeline.Sought) -> None:
        """Go to the time that was clicked."""
        if self.viewer.player is not None:
            self.viewer.player.seek(event.at)

    def reset(self) -> None:
        """Drop the state of another fleet."""

    def draw(self) -> None:
        """Draw the present state, on the app's task; cheap when nothing changed."""

    def chosen_session(self) -> Session | None:
        """Return the session that keys apply to, None to ask the user."""
        return None

    def open_queries(self) -> RecordingQueries | None:
        """Return the screen's connection for queries, opened once; None where nothing is recorded."""
        if self._queries is None and self.viewer.open_queries is not None:
            self._queries = self.viewer.open_queries()
        return self._queries

    def on_unmount(self) -> None:
        """Close the connection; cancelling its query may take a moment."""
        if self._queries is not None:
            asyncio.get_running_loop().run_in_executor(None, self._queries.close)

    @property
    def view(self) -> str:
        """The view that is selected in the screen's view bar."""
        return self.query_one(ViewBar).picked

    def on_view_bar_picked(self) -> None:
        """Show the view."""
        self.update_view()
        self.update_after_layout()

    def action_step_view(self, by: int) -> None:
        """Show the next view."""
        self.query_one(ViewBar).step(by)

    def action_move(self, where: str) -> None:
        """Move the cursor of the screen's table."""
        self.query_one(TableView).move(where)

    def action_open(self) -> Awaitable[None] | None:
        """Open the row under the cursor."""
        self.query_one(TableView).choose()
        return None

    def action_write_files(self) -> None:
        """Write plot and report of the screen's session."""
        if (session := self.chosen_session()) is not None:
            self.viewer.write_session_files(session)
        else:
            self.viewer.show_notice("no session to plot yet")

    def action_back(self) -> None:
        """Go back to the previous screen."""
        self.app.pop_screen()

    async def action_quit(self) -> None:
        """Quit the app."""
        await self.app.action_quit()

    async def on_event(self, event: Event) -> None:
        """Drop outdated sizes: several queued ones would switch the layout back and forth."""
        if not isinstance(event, Resize) or event.size == self.app.size:
            await super().on_event(event)

    def on_mount(self) -> None:
        """Draw as soon as all widgets exist."""
        self.call_later(self.update_view)

    def on_resize(self) -> None:
        """Fit into the new size."""
        self.update_after_layout()

    def on_canvas_resized(self) -> None:
        """Draw into the new space."""
        self.update_after_layout()

    def on_screen_suspend(self) -> None:
        """Take the screen's notice away with it."""
        self.viewer.leave_notice()

    def on_screen_resume(self) -> None:
        """Draw what changed while another screen was in front."""
        self.update_view()
