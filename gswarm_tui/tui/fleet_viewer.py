"""Base of the apps that show a fleet: navigation between screens, and playback of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from gswarm_tui.common.time_input import SEEK_HINT, SeekTimeError, parse_seek_time
from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField
from gswarm_tui.tui.screens.events import EventsScreen
from gswarm_tui.tui.screens.fleet import FleetScreen
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.host import Feed
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.screens.sessions import SessionsScreen
from gswarm_tui.tui.viewer import Viewer, ViewerOptions

REPEAT_S = 2.0
"""While playing, going back to an event skips those in the last seconds: they were shown just now."""


class FleetOptions(ViewerOptions, total=False):
    """Options of an app that shows a fleet: ``title`` names the job, ``metric`` is the first one shown."""

    title: str
    metric: str


class FleetViewer(Viewer):
    """App that navigates between the fleet's screens and controls a ``player``, if it has one."""

    def __init__(
        self,
        feed: Feed,
        mode: str,
        *,
        title: str = "",
        metric: str = "util_pct",
        **options: Unpack[ViewerOptions],
    ) -> None:
        super().__init__(feed, mode, **options)
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
            # Not by the app, which may be waiting for the past.
            self.fleet_screen.call_later(self.update_view)

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

    # Playback

    def begin_playing(self, player: Player) -> None:
        """Play a recording."""
        self.player = player
        player.flushed.append(self.request_update)
        self.run_worker(player.run(), group="player", exclusive=True)

    def end_playing(self) -> None:
        """Stop playing."""
        self.player = None
        self.workers.cancel_group(self, "player")

    async def action_play(self) -> None:
        """Play or pause."""
        if self.player is not None:
            self.player.toggle()
            self.update_view()

    def action_step(self, by: int) -> None:
        """Step to the next or previous interval and pause."""
        if self.player is not None:
            self.player.step(by)
            self.update_view()

    def action_skip(self, seconds: int) -> None:
        """Skip forward or back."""
        if self.player is not None:
            self.player.skip(seconds)
            self.update_view()

    def action_jump(self, by: int) -> None:
        """Go to the next or previous event."""
        if (player := self.player) is None:
            return
        at = player.wanted - (0 if player.playhead.paused or by > 0 else REPEAT_S * player.playhead.speed)
        stop = player.timeline.after(at) if by > 0 else player.timeline.before(at)
        if stop is None or stop.at != player.playhead.clamp(stop.at):
            self.show_notice("no later event" if by > 0 else "no earlier event")
            return
        player.seek(stop.at)
        self.update_view()
        self.show_notice(stop.description)

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        if self.player is not None:
            self.player.playhead.change_speed(by)
            self.update_view()

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
        if self.player is not None:
            self.player.seek(at)
            self.update_view()

    async def action_go_to(self) -> None:
        """Ask for a time and go there."""
        self.push_screen(
            FormDialog("go to time", [FormField("time", "", SEEK_HINT, self._time_error)]), self._go_to
        )

    def _time_error(self, text: str) -> str:
        try:
            self._parse_time(text)
        except SeekTimeError as error:
            return str(error)
        return ""

    def _parse_time(self, text: str) -> float:
        """Return the time that a text means here. Raises SeekTimeError."""
        if (player := self.player) is None:
            return self.feed.now()
        head = player.playhead
        return parse_seek_time(text, at=player.now(), start=head.start, end=head.end, timezone=self.timezone)

    def _go_to(self, fields: tuple[str, ...] | None) -> None:
        if fields is not None and self.player is not None:
            self.player.seek(self._parse_time(fields[0]))
            self.update_view()
