"""Base of all apps: theme, clock, navigation between screens, and playback; and the app of ``sql`` alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from textual.events import Key

from gswarm_tui.common.colours import DARK, THEME_NAMES
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.common.time_input import TIME_FORMS, parse_time
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import QUERY, bindings_of, possible, reason_for_no_effect
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.themes import themes
from gswarm_tui.tui.palette import palette_entries
from gswarm_tui.tui.screens.base import UNTIL_READ_S, ViewerApp, ViewerOptions, ViewerScreen
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField, PickDialog, ask
from gswarm_tui.tui.screens.events import EventsScreen
from gswarm_tui.tui.screens.findings import FindingsScreen
from gswarm_tui.tui.screens.fleet import FleetScreen
from gswarm_tui.tui.screens.help import HelpScreen
from gswarm_tui.tui.screens.sessions import SessionsScreen
from gswarm_tui.tui.textual_internals.driver import hang_up_if_terminal_closed

if TYPE_CHECKING:
    from gswarm_tui.tui.screens.sql import SqlScreen, SqlState

UPDATE_EVERY_S = 1.0
"""Ages on the screen grow without new frames."""
REPEAT_S = 2.0
"""While playing, going back to an event skips those in the last seconds: they were shown just now."""


class Viewer(ViewerApp):
    """Shows a fleet in one of ``actions.MODES``, and controls a ``player``, if it has one.

    ``run_async`` returns why the app ended.
    """

    BINDINGS = bindings_of()
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    * { scrollbar-size-vertical: 1; }
    ToastRack { dock: top; align: right top; margin: 0; overflow-y: hidden; }
    RunsScreen ToastRack { dock: bottom; align: right bottom; margin-bottom: 1; }
    Toast { width: auto; max-width: 100%; padding: 0 1; margin: 0; }
    """

    def __init__(self, mode: str, **options: Unpack[ViewerOptions]) -> None:
        super().__init__(mode, **options)
        self._options = options
        self._sql_state: SqlState | None = None
        self._updated_at = 0.0
        self._update_posted = False
        for each in themes():
            self.register_theme(each)

    def on_mount(self) -> None:
        """Set the theme and update ages."""
        self.theme = self._options.get("theme", DARK)
        self.set_interval(UPDATE_EVERY_S, self._update_ages)

    def on_ready(self) -> None:
        """Show the notice."""
        if notice := self._options.get("notice"):
            self.show_notice(notice, seconds=UNTIL_READ_S)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow only actions of this mode and of the screen in front."""
        here = possible(action, self.mode, self.front.SCREEN, self.read_only)
        return here and super().check_action(action, parameters)

    def on_key(self, event: Key) -> None:
        """Explain a key that has no effect on this screen or in this mode."""
        here = self.screen
        if isinstance(here, ViewerScreen) and event.key not in here.active_bindings:
            reason = reason_for_no_effect(event.key, here.SCREEN, self.mode, read_only=self.read_only)
            if reason:
                self.show_notice(reason)

    def _update_ages(self) -> None:
        """Update the view unless ticks do so already."""
        hang_up_if_terminal_closed()
        if self.now() - self._updated_at >= 1.5 * UPDATE_EVERY_S:
            self.update_view()

    def request_update(self) -> None:
        """Update the view soon, once for all requests that a slow terminal lets pass."""
        if not self._update_posted and self.screen_stack:
            self._update_posted = True
            # Not by the app, which may be waiting for the past.
            self.screen_stack[0].call_later(self.update_view)

    def update_view(self) -> None:
        """Show the present state."""
        self._update_posted = False
        self._updated_at = self.now()
        if self.screen_stack:
            self.front.update_view()

    @property
    def front(self) -> ViewerScreen:
        """The screen in front, or the one behind a dialog."""
        return next(s for s in reversed(self.screen_stack) if isinstance(s, ViewerScreen))

    # Screens

    def get_default_screen(self) -> ViewerScreen:
        """Start with the fleet's screen."""
        return FleetScreen(clean(self._options.get("title", "")), self._options.get("metric", "util_pct"))

    @property
    def fleet_screen(self) -> FleetScreen:
        """The screen behind all others, where a fleet is shown."""
        first = self.screen_stack[0]
        assert isinstance(first, FleetScreen)  # noqa: S101 - SqlApp has no action that comes here
        return first

    def action_show_metric(self, metric: str) -> None:
        """Show a metric in the heatmap, by its column name."""
        self.action_fleet()
        self.fleet_screen.action_metric(metric)

    def action_fleet(self) -> None:
        """Show the fleet."""
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_findings(self) -> None:
        """Show the findings."""
        self.show(FindingsScreen())

    def action_sessions(self) -> None:
        """Show the sessions."""
        self.show(SessionsScreen())

    def action_runs(self) -> None:
        """Show all runs of this user."""
        from gswarm_tui.tui.screens.runs import RunsScreen

        self.show(RunsScreen(self._options.get("runs")))

    def action_events(self) -> None:
        """Show the events."""
        self.show(EventsScreen())

    def action_sql(self) -> None:
        """Show the SQL screen."""
        self.show(self.sql_screen())

    def sql_screen(self) -> SqlScreen:
        """Return a SQL screen that shows the last query and its result."""
        from gswarm_tui.tui.screens.sql import SqlScreen, SqlState  # the editor takes 20 ms and 0.7 MB

        self._sql_state = self._sql_state or SqlState(self._options.get("history") or QueryHistory(None))
        return SqlScreen(self._sql_state)

    def action_help(self) -> None:
        """Show all keys and signs."""
        self.push_screen(HelpScreen(type(self.front), self.mode))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        dialog = PickDialog("commands, metrics, nodes", list(palette_entries(self.front)))
        ask(self, dialog, self.call_later)

    def action_theme(self, name: str = "") -> None:
        """Switch to a theme by its name, or to the next."""
        self.theme = name or THEME_NAMES[(THEME_NAMES.index(self.theme) + 1) % len(THEME_NAMES)]
        self.show_notice(f"theme {self.theme}")

    async def action_quit(self) -> None:
        """Quit."""
        self.request_quit("quit")

    def request_quit(self, reason: str) -> None:
        """End the app without a question, as after SIGTERM or when the terminal closes."""
        self.exit(reason)

    # Playback

    def begin_playing(self, player: Player) -> None:
        """Play a recording."""
        self.player = player
        player.flushed.append(self.request_update)
        self.run_worker(player.run(), group="player", exclusive=True)

    def end_playing(self) -> None:
        """Stop playing."""
        if self.player is not None:
            # The traceback of the cancelled task holds the player until the next garbage collection.
            self.player.fleet = Fleet(())
        self.player = None
        self.workers.cancel_group(self, "player")

    def _control(self, change: Callable[[Player], object]) -> None:
        """Change what is played, and show it."""
        if self.player is not None:
            change(self.player)
            self.update_view()

    async def action_play(self) -> None:
        """Play or pause."""
        self._control(Player.toggle)

    def action_step(self, by: int) -> None:
        """Step to the next or previous interval and pause."""
        self._control(lambda player: player.step(by))

    def action_skip(self, seconds: int) -> None:
        """Skip forward or back."""
        self._control(lambda player: player.skip(seconds))

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
        self._control(lambda player: player.playhead.change_speed(by))

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
        self._control(lambda player: player.seek(at))

    async def action_go_to(self) -> None:
        """Ask for a time and go there."""
        dialog = FormDialog("go to time", [FormField("time", "", TIME_FORMS, self.parse_time)])
        ask(self, dialog, lambda answer: self.run_worker(self.go_to_time(self.parse_time(answer[0]))))

    def parse_time(self, text: str) -> float:
        """Return the time of the recording that a text means. Raises TimeInputError."""
        if (player := self.player) is None:
            return self.now()
        head = player.playhead
        return parse_time(text, start=head.start, end=head.end, timezone=self.timezone)


def ellipsis(player: Player) -> str:
    """Return an ellipsis while the requested time is being read."""
    return "" if player.wanted == player.now() else " …"


class SqlApp(Viewer):
    """App that shows only the SQL screen; ``running`` recordings are queried through their head."""

    def __init__(self, *, running: bool, **options: Unpack[ViewerOptions]) -> None:
        super().__init__(QUERY, **options)
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
