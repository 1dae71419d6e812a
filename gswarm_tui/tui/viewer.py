"""The app around a feed: its places, how it looks, and how a recording is played in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING, ClassVar

from rich.console import RenderableType
from textual.app import App
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste
from textual.screen import Screen

from gswarm_tui.common.colours import DARK, THEME_NAMES
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.common.time_input import SEEK_HINT, SeekTimeError, parse_seek_time
from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import bindings_everywhere, possible
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.themes import themes
from gswarm_tui.tui.feeds import Feed
from gswarm_tui.tui.palette import ActionPalette, ActionProvider
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField
from gswarm_tui.tui.screens.events import EventsScreen
from gswarm_tui.tui.screens.fleet import FleetScreen
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.help import HelpScreen
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.screens.sessions import SessionsScreen
from gswarm_tui.tui.textual_internals.compositor import TerminalCells
from gswarm_tui.tui.textual_internals.driver import (
    DetachableDriver,
    handle_stop_and_continue,
    hang_up_if_terminal_closed,
)
from gswarm_tui.tui.textual_internals.key_queue import KeyQueue

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.tui.screens.sql import SqlState

LOOK_EVERY_S = 1.0
PASSED_S = 2.0


class Viewer(App[str], inherit_bindings=False):
    """Shows a ``feed``; with a ``player`` it is a recording's. ``run_async`` answers why it ended.

    ``mode`` is one of those in ``actions``. ``title`` names the job and its nodes for the header, ``metric``
    is what the fleet shows first, ``timezone`` is for clock times (None is the machine's own). ``desk`` gives
    each place that asks the recording something to ask; None where nothing is recorded. ``asked`` is what
    was asked before.
    """

    BINDINGS = bindings_everywhere()
    COMMANDS: ClassVar = {ActionProvider}
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    * { scrollbar-size-vertical: 1; }
    SearchIcon { display: none; }
    ToastRack { margin-bottom: 3; }
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
        desk: Callable[[], RecordingQueries] | None = None,
        asked: QueryHistory | None = None,
    ) -> None:
        super().__init__()
        self.desk = desk
        self._query_history = asked or QueryHistory(None)
        self._sql_state: SqlState | None = None
        self.feed = feed
        self.mode = mode
        self.player: Player | None = None
        self.job = clean(title)
        self.timezone = timezone
        self._first_theme = theme
        self._first_metric = metric
        self._look_posted = False
        self._looked_at = 0.0
        self._terminal = TerminalCells()
        self._keys = KeyQueue(self, super().on_event)
        for each in themes():
            self.register_theme(each)

    def get_driver_class(self) -> type[Driver]:
        """Textual's, as one that outlives its terminal."""
        usual = super().get_driver_class()
        return DetachableDriver if usual is LinuxDriver else usual

    def get_default_screen(self) -> ViewerScreen:
        """The fleet is what everything starts from."""
        return FleetScreen(self.job, self._first_metric)

    def on_mount(self) -> None:
        """Show the theme, and ages as they grow."""
        self.theme = self._first_theme
        self.app_resume_signal.subscribe(self, lambda _: self.action_redraw())
        handle_stop_and_continue(self._driver)
        self.set_interval(LOOK_EVERY_S, self._look_for_ages)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what makes sense in this mode is possible."""
        return possible(action, self.mode) and super().check_action(action, parameters)

    async def on_event(self, event: Event) -> None:
        """Deal with keys one after the other."""
        if isinstance(event, (Key, Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    def look_soon(self) -> None:
        """Something changed: look once, however many changes a slow terminal lets pass."""
        if not self._look_posted and self.screen_stack:
            self._look_posted = True
            self.fleet_screen.call_later(self.look)  # not by the app, which may be waiting for the past

    def _look_for_ages(self) -> None:
        """Ages grow though nothing comes; where ticks come, these look."""
        hang_up_if_terminal_closed()
        if self.feed.now() - self._looked_at >= 1.5 * LOOK_EVERY_S:
            self.look()

    def look(self) -> None:
        """Show what the feed shows now."""
        self._look_posted = False
        self._looked_at = self.feed.now()
        if self.screen_stack:
            self.place.look()

    def on_resize(self) -> None:
        """The terminal moved what is on it about as it likes, also one that is as large as before again."""
        self.action_redraw()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        """Write what Textual drew, as far as it isn't on the terminal already."""
        super()._display(screen, self._terminal.changes(renderable))

    # Places

    @property
    def place(self) -> ViewerScreen:
        """The place in front, or the one behind a dialog."""
        return next(s for s in reversed(self.screen_stack) if isinstance(s, ViewerScreen))

    def show_node(self, node: str, gpu: int | None = None) -> None:
        """Go to a node; ``gpu`` is the position that its cursor begins on."""
        self._go(NodeScreen(node, gpu))

    def show_gpu(self, node: str, gpu: int) -> None:
        """Go to a GPU by its position in the node."""
        self._go(GpuScreen(node, gpu))

    def show_metric(self, metric: str) -> None:
        """Go to the fleet and show a metric by its column name."""
        self.action_fleet()
        self.fleet_screen.action_metric(metric)

    def show_order(self, order: Order) -> None:
        """Go to the fleet and sort it."""
        self.action_fleet()
        self.fleet_screen.sort(order)

    @property
    def fleet_screen(self) -> FleetScreen:
        """The place behind all others."""
        first = self.screen_stack[0]
        assert isinstance(first, FleetScreen)  # noqa: S101 - get_default_screen made it
        return first

    def action_fleet(self) -> None:
        """Go to the fleet."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_sessions(self) -> None:
        """Go to the sessions."""
        self._go(SessionsScreen())

    def action_events(self) -> None:
        """Go to the events."""
        self._go(EventsScreen())

    def show_session(self, session: Session) -> None:
        """Go to a session."""
        from gswarm_tui.tui.screens.session import SessionScreen

        self._go(SessionScreen(session))

    def show_comparison(self, sessions: Sequence[Session]) -> None:
        """Show sessions beside the first of them."""
        from gswarm_tui.tui.screens.comparison import ComparisonScreen

        self._go(ComparisonScreen(sessions))

    def action_sql(self) -> None:
        """Go to the SQL place."""
        from gswarm_tui.tui.screens.sql import SqlScreen, SqlState  # the editor takes 20 ms and 0.7 MB

        self._sql_state = self._sql_state or SqlState(self._query_history)
        self._go(SqlScreen(self._sql_state))

    def action_help(self) -> None:
        """Show all keys and signs."""
        self.push_screen(HelpScreen(self.place.PLACE, self.mode))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        if not isinstance(self.screen, ActionPalette):
            self.push_screen(ActionPalette(placeholder="a command, a metric, a node …"))

    def _go(self, place: ViewerScreen) -> None:
        """Put a place in front; one of its kind that is there already is taken away with all before it."""
        kinds = [type(screen) for screen in self.screen_stack]
        if type(place) in kinds:
            for _ in kinds[kinds.index(type(place)) :]:
                self.pop_screen()
        self.push_screen(place)

    # Looks

    def action_redraw(self) -> None:
        """Draw all of the screen, whatever is on the terminal."""
        self._terminal.forget()
        if self.screen_stack:
            self.screen.refresh()

    def action_theme(self) -> None:
        """Take the next theme."""
        known = self.theme if self.theme in THEME_NAMES else THEME_NAMES[-1]
        self.theme = THEME_NAMES[(THEME_NAMES.index(known) + 1) % len(THEME_NAMES)]

    def say(self, sentence: str, *, wrong: bool = False) -> None:
        """A short word to the person in the place of the last, gone after a few seconds."""
        self.clear_notifications()
        self.notify(clean(sentence), severity="error" if wrong else "information", timeout=4, markup=False)

    # Playing

    def begin_playing(self, player: Player) -> None:
        """Play a recording from now on."""
        self.player = player
        player.flushed.append(self.look_soon)
        self.run_worker(player.run(), group="player", exclusive=True)

    def end_playing(self) -> None:
        """Play no longer."""
        self.player = None
        self.workers.cancel_group(self, "player")

    async def action_play(self) -> None:
        """Play, or pause."""
        if self.player is not None:
            self.player.toggle()
            self.look()

    def action_step(self, by: int) -> None:
        """Go to the next interval, or the one before, and stay there."""
        if self.player is not None:
            self.player.step(by)
            self.look()

    def action_skip(self, seconds: int) -> None:
        """Go on or back by so many seconds."""
        if self.player is not None:
            self.player.skip(seconds)
            self.look()

    def action_turn(self, by: int) -> None:
        """Go to the next event, or the one before."""
        if (player := self.player) is None:
            return
        # While it plays, the event that was gone to last has passed already.
        here = player.wanted - (0 if player.playhead.paused or by > 0 else PASSED_S * player.playhead.speed)
        stop = player.track.after(here) if by > 0 else player.track.before(here)
        if stop is None or stop.at != player.playhead.within(stop.at):
            self.say("no event after this one" if by > 0 else "no event before this one")
            return
        player.seek(stop.at)
        self.look()
        self.say(stop.words)

    async def visit(self, at: float) -> None:
        """Go to a time."""
        if self.player is not None:
            self.player.seek(at)
            self.look()

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        if self.player is not None:
            self.player.playhead.change_speed(by)
            self.look()

    async def action_go_to(self) -> None:
        """Ask for a time, and go there."""
        self.push_screen(
            FormDialog("go to a time", [FormField("time", "", SEEK_HINT, self._wrong_goto)]), self._go_to
        )

    def _wrong_goto(self, text: str) -> str:
        try:
            self._goto(text)
        except SeekTimeError as wrong:
            return str(wrong)
        return ""

    def _goto(self, text: str) -> float:
        """The time that a text means here. Raises GotoError."""
        if (player := self.player) is None:
            return self.feed.now()
        head = player.playhead
        return parse_seek_time(text, at=player.now(), start=head.start, end=head.end, timezone=self.timezone)

    def _go_to(self, answer: tuple[str, ...] | None) -> None:
        if answer is not None and self.player is not None:
            self.player.seek(self._goto(answer[0]))
            self.look()

    # What only a live one can do

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or rewrite its note; nothing of a recording that is played changes."""

    # The end

    async def action_quit(self) -> None:
        """Quit."""
        self.request_quit("quit")

    def request_quit(self, reason: str) -> None:
        """End the app without a question, as when the terminal was closed or on SIGTERM."""
        self.exit(reason)
