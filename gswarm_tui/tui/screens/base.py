"""Base of all screens: timeline, footer and updates; and of the apps that show them."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack, cast

from textual.app import ComposeResult
from textual.screen import Screen

from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import LIVE, PAST, bindings_of, possible
from gswarm_tui.tui.drawing.spans import Line, Span
from gswarm_tui.tui.drawing.text import clean
from gswarm_tui.tui.screens.titles import title_line
from gswarm_tui.tui.textual_internals.app import TerminalApp
from gswarm_tui.tui.widgets.lines import Bar, Footer, ViewBar, footer_line
from gswarm_tui.tui.widgets.table import TableView
from gswarm_tui.tui.widgets.timeline import Timeline

if TYPE_CHECKING:
    from gswarm_tui.analysis.queries import RecordingQueries
    from gswarm_tui.runs.finding_runs import Report
    from gswarm_tui.runs.line import RunLine

NOTICE_S, UNTIL_READ_S = 4.0, 10.0


class ViewerScreen(Screen[None], inherit_bindings=False):
    """Screen that shows what its app does: the live fleet, its past, or a recording.

    A subclass names its ``SCREEN`` (``actions.SCREENS``), from which its keys follow. Its docstring is for
    users: the help begins with it. It overrides ``compose_body``, what is between title and footer, and
    ``draw``, which ``update_view`` calls after each tick, once a second, and when the screen comes to the
    front.
    ``reset`` drops what a subclass keeps of a fleet: a jump in time brings another one. ``open_queries``
    connects to the recording.
    """

    SCREEN: ClassVar[str]
    # A scrollbar of the screen may make room for the row whose lack made it appear, without end.
    DEFAULT_CSS = "ViewerScreen { overflow: hidden; }"

    def __init_subclass__(cls, **options: Any) -> None:
        """Bind the keys of the table of actions."""
        if "SCREEN" in vars(cls):
            cls.BINDINGS = bindings_of(cls.SCREEN)
        super().__init_subclass__(**options)

    def __init__(self) -> None:
        super().__init__()
        self._drawn_fleet: Fleet | None = None
        self._update_pending = False
        self._queries: RecordingQueries | None = None

    @property
    def fleet(self) -> Fleet:
        """The fleet's state."""
        return self.viewer.fleet

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
            if timeline.show(self.viewer.player, self.viewer.timezone):
                self.update_after_layout()
            viewer = self.viewer
            state = {"typing": self.typing, "recorded": viewer.recorded, "read_only": viewer.read_only}
            keys = footer_line(self.SCREEN, self.size.width, viewer.mode, **state)
            self.query_one(Footer).show(keys)
            self.draw()

    @property
    def time_shown(self) -> str:
        """The time that is shown: "now", or the time of day in a recording."""
        if self.viewer.player is None:
            return "now"
        return f"{self.viewer.local(self.viewer.now()):%H:%M:%S}"

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
    def typing(self) -> bool:
        """Whether keys type text now."""
        return False

    def compose(self) -> ComposeResult:
        """Title, what the screen shows, timeline, footer."""
        yield Bar(id="title")
        yield from self.compose_body()
        yield Timeline()
        yield Footer()

    @abstractmethod
    def compose_body(self) -> ComposeResult:
        """Yield what is between title and footer."""

    def show_title(self, left: list[Span], model: str = "", below: Sequence[Line] = ()) -> None:
        """Show the title and the recorder's state (``title_line``), and lines below it."""
        state = self.viewer.recording_state()
        title = title_line(left, self.fleet, state, self.size.width, model)
        self.query_one("#title", Bar).show(title, *below)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Allow only actions of this screen in this mode."""
        here = possible(action, self.viewer.mode, self.SCREEN, self.viewer.read_only)
        return here and super().check_action(action, parameters)

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

    def action_back(self) -> None:
        """Go back to the previous screen."""
        self.app.pop_screen()

    def action_ask_job(self) -> None:
        """Show how the job is asked which rank is behind."""
        self.viewer.show_asking()

    async def action_quit(self) -> None:
        """Quit the app."""
        await self.app.action_quit()

    def on_mount(self) -> None:
        """Draw as soon as all widgets exist."""
        self.call_later(self.update_view)

    def on_resize(self) -> None:
        """Fit into the new size."""
        self.update_after_layout()

    def on_canvas_resized(self) -> None:
        """Draw into the new space."""
        self.update_after_layout()

    def on_screen_resume(self) -> None:
        """Draw what changed while another screen was in front."""
        self.update_view()


class ViewerOptions(TypedDict, total=False):
    """Options of every app.

    Args:
        theme: Name of the first theme.
        timezone: Zone of clock times; None is the machine's own.
        open_queries: Opens a connection for queries; None where nothing is recorded.
        history: Earlier queries.
        title: Name of the job.
        notice: Sentence shown at the start.
        metric: First metric shown.
        runs: Returns all runs of this user, and what couldn't be read; reports them while it reads.
    """

    theme: str
    timezone: tzinfo | None
    open_queries: Callable[[], RecordingQueries] | None
    history: QueryHistory
    title: str
    notice: str
    metric: str
    runs: Callable[[Report], tuple[list[RunLine], list[str]]]


class ViewerApp(TerminalApp):
    """The app as its screens use it. Screens only read the ``fleet``; times are Unix seconds.
    ``player`` is None while the live fleet is shown. A ``read_only`` app has no actions that change the
    recording.
    """

    def __init__(self, mode: str, **options: Unpack[ViewerOptions]) -> None:
        super().__init__()
        self.mode = mode
        self.read_only = False
        self.timezone = options.get("timezone")
        self.open_queries = options.get("open_queries")
        self.player: Player | None = None

    @property
    @abstractmethod
    def fleet(self) -> Fleet:
        """The fleet's state; another object after a jump in time."""

    @property
    def sessions(self) -> list[Session]:
        """All sessions; the fleet of a replay lacks those that start after the time shown."""
        begun, player = self.fleet.sessions.sessions, self.player
        if player is None or self.mode == PAST:
            return list(begun.values())
        known = player.timeline.sessions
        every = [Session(s.session_id, s.name, s.start, s.note, s.end or player.end) for s in known]
        return [begun.get(one.session_id, one) for one in every]

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether the recording has ended."""

    @abstractmethod
    def now(self) -> float:
        """Return the time that is shown."""

    @abstractmethod
    def recording_state(self) -> list[Span]:
        """Return the recording's state for the header; the first two spans are the most important."""

    def local(self, at: float) -> datetime:
        """Return a Unix time in the timezone of clock times."""
        return datetime.fromtimestamp(at, self.timezone)

    @property
    def recorded(self) -> bool:
        """Whether what is shown is or was recorded."""
        return True

    @property
    def can_start_session(self) -> bool:
        """Whether a session can be started now."""
        return self.mode in (LIVE, PAST) and self.recorded and not self.read_only

    def show(self, screen: ViewerScreen) -> None:
        """Put a screen in front; an open one of its kind closes, and those in front of that."""
        kinds = [type(each) for each in self.screen_stack]
        if type(screen) in kinds:
            for _ in kinds[kinds.index(type(screen)) :]:
                self.pop_screen()
        self.push_screen(screen)

    def show_notice(self, sentence: str, *, error: bool = False, seconds: float | None = None) -> None:
        """Show a notice for a few seconds in the place of the last one, over the recorder's state."""
        self.clear_notifications()
        severity: Literal["error", "information"] = "error" if error else "information"
        seconds = seconds or (UNTIL_READ_S if error else NOTICE_S)
        self.notify(clean(sentence), severity=severity, timeout=seconds, markup=False)

    def change_session(self, session_id: str, *, name: str | None = None, note: str | None = None) -> None:
        """Rename a session or replace its note."""

    def dismiss_finding(self, finding_id: str, *, dismissed: bool) -> None:
        """Dismiss a finding in this recording, or undo that."""

    def shows_run(self, run: RunLine) -> bool:
        """Return whether a run is the recording on the screen."""
        return False

    def show_asking(self) -> None:
        """Show how the job is asked which rank is behind; nothing is asked yet."""

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
