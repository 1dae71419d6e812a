"""Base of all apps: theme, clock, notices and the screens that need only a recording."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo
from typing import TYPE_CHECKING, ClassVar, TypedDict, Unpack

from gswarm_tui.common.colours import DARK, THEME_NAMES
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import bindings_everywhere, possible
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.drawing.themes import themes
from gswarm_tui.tui.palette import ActionPalette, ActionProvider
from gswarm_tui.tui.screens.base import ViewerScreen
from gswarm_tui.tui.screens.help import HelpScreen
from gswarm_tui.tui.screens.host import Feed
from gswarm_tui.tui.textual_internals.app import TerminalApp
from gswarm_tui.tui.textual_internals.driver import hang_up_if_terminal_closed

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.tui.screens.sql import SqlScreen, SqlState

UPDATE_EVERY_S = 1.0
"""Ages on the screen grow without new frames."""


class ViewerOptions(TypedDict, total=False):
    """Options of every app.

    Args:
        theme: Name of the first theme.
        timezone: Zone of clock times; None is the machine's own.
        open_queries: Opens a connection for queries; None where nothing is recorded.
        history: Earlier queries.
    """

    theme: str
    timezone: tzinfo | None
    open_queries: Callable[[], RecordingQueries] | None
    history: QueryHistory


class Viewer(TerminalApp):
    """Shows a ``feed`` in one of ``actions.MODES``. ``run_async`` returns why the app ended."""

    BINDINGS = bindings_everywhere()
    COMMANDS: ClassVar = {ActionProvider}
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    * { scrollbar-size-vertical: 1; }
    SearchIcon { display: none; }
    ToastRack { margin-bottom: 3; }
    """

    def __init__(self, feed: Feed, mode: str, **options: Unpack[ViewerOptions]) -> None:
        super().__init__()
        self.feed = feed
        self.mode = mode
        self.timezone = options.get("timezone")
        self.open_queries = options.get("open_queries")
        self.player: Player | None = None
        self._query_history = options.get("history") or QueryHistory(None)
        self._sql_state: SqlState | None = None
        self._first_theme = options.get("theme", DARK)
        self._updated_at = 0.0
        for each in themes():
            self.register_theme(each)

    def on_mount(self) -> None:
        """Set the theme and update ages."""
        self.theme = self._first_theme
        self.set_interval(UPDATE_EVERY_S, self._update_ages)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow only actions of this mode."""
        return possible(action, self.mode) and super().check_action(action, parameters)

    def _update_ages(self) -> None:
        """Update the view unless ticks do so already."""
        hang_up_if_terminal_closed()
        if self.feed.now() - self._updated_at >= 1.5 * UPDATE_EVERY_S:
            self.update_view()

    def update_view(self) -> None:
        """Show the feed's present state."""
        self._updated_at = self.feed.now()
        if self.screen_stack:
            self.front.update_view()

    @property
    def front(self) -> ViewerScreen:
        """The screen in front, or the one behind a dialog."""
        return next(s for s in reversed(self.screen_stack) if isinstance(s, ViewerScreen))

    def sql_screen(self) -> SqlScreen:
        """Return a SQL screen that shows the last query and its result."""
        from gswarm_tui.tui.screens.sql import SqlScreen, SqlState  # the editor takes 20 ms and 0.7 MB

        self._sql_state = self._sql_state or SqlState(self._query_history)
        return SqlScreen(self._sql_state)

    def action_help(self) -> None:
        """Show all keys and signs."""
        self.push_screen(HelpScreen(self.front.SCREEN, self.mode))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        if not isinstance(self.screen, ActionPalette):
            self.push_screen(ActionPalette(placeholder="Search commands, metrics, nodes …"))

    def action_theme(self) -> None:
        """Switch to the next theme."""
        known = self.theme if self.theme in THEME_NAMES else THEME_NAMES[-1]
        self.theme = THEME_NAMES[(THEME_NAMES.index(known) + 1) % len(THEME_NAMES)]

    def show_notice(self, sentence: str, *, error: bool = False) -> None:
        """Show a notice for a few seconds in the place of the last one."""
        self.clear_notifications()
        self.notify(clean(sentence), severity="error" if error else "information", timeout=4, markup=False)

    async def action_quit(self) -> None:
        """Quit."""
        self.request_quit("quit")

    def request_quit(self, reason: str) -> None:
        """End the app without a question, as after SIGTERM or when the terminal closes."""
        self.exit(reason)
