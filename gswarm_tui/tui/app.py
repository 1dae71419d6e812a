"""The app: joins the hub to the places, and carries out what is possible everywhere."""

from __future__ import annotations

from datetime import tzinfo
from typing import ClassVar

from textual.app import App

from gswarm_tui.fleet.order import Order
from gswarm_tui.fleet.sessions import Session, suggest_name
from gswarm_tui.fleet.since import SinceError, parse_since, split_since
from gswarm_tui.hub import Hub
from gswarm_tui.tui.actions import bindings_everywhere
from gswarm_tui.tui.commands import Palette, SwarmCommands
from gswarm_tui.tui.dialogs import Ask, Confirm, Field, Pick
from gswarm_tui.tui.format import clock, plural
from gswarm_tui.tui.screens.base import Place
from gswarm_tui.tui.screens.events import EventsScreen
from gswarm_tui.tui.screens.fleet import FleetScreen
from gswarm_tui.tui.screens.gpu import GpuScreen
from gswarm_tui.tui.screens.help import HelpScreen
from gswarm_tui.tui.screens.node import NodeScreen
from gswarm_tui.tui.screens.sessions import SessionsScreen
from gswarm_tui.tui.text import clean
from gswarm_tui.tui.themes import DARK, THEME_NAMES, themes

INTERVALS_MS = (100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
LOOK_EVERY_S = 1.0


class GswarmApp(App[str], inherit_bindings=False):
    """The terminal app over a hub. ``run_async`` answers why it ended, in one word or a sentence.

    It never starts or stops links or the recorder: whoever made them does, after it ended. ``title`` names
    the job and its nodes for the header, ``metric`` is what the fleet shows first, ``timezone`` is for clock
    times (None is the machine's own).
    """

    BINDINGS = bindings_everywhere()
    COMMANDS: ClassVar = {SwarmCommands}
    ENABLE_COMMAND_PALETTE = True
    CSS = """
    * { scrollbar-size-vertical: 1; }
    SearchIcon { display: none; }
    """

    def __init__(
        self,
        hub: Hub,
        *,
        title: str = "",
        theme: str = DARK,
        metric: str = "util_pct",
        timezone: tzinfo | None = None,
    ) -> None:
        super().__init__()
        self.hub = hub
        self.job = clean(title)
        self.timezone = timezone
        self._first_theme = theme
        self._first_metric = metric
        self._look_posted = False
        self._looked_at = 0.0
        for each in themes():
            self.register_theme(each)

    def get_default_screen(self) -> Place:
        """The fleet is what everything starts from."""
        return FleetScreen(self.hub, self.job, self._first_metric)

    def on_mount(self) -> None:
        """Follow the hub."""
        self.theme = self._first_theme
        self.hub.flushed.append(self._flushed)
        self.set_interval(LOOK_EVERY_S, self._look_for_ages)

    def on_unmount(self) -> None:
        """Leave the hub alone."""
        if self._flushed in self.hub.flushed:
            self.hub.flushed.remove(self._flushed)

    def _flushed(self) -> None:
        """The hub ticked, on its own task: look once, however many ticks a slow terminal lets pass."""
        if not self._look_posted:
            self._look_posted = True
            self.call_later(self._look)

    def _look_for_ages(self) -> None:
        """Ages grow though no hub ticks; a look at the same second would change nothing."""
        if self.hub.now() - self._looked_at >= LOOK_EVERY_S / 2:
            self._look()

    def _look(self) -> None:
        self._look_posted = False
        self._looked_at = self.hub.now()
        if self.screen_stack:
            self.place.look()

    # Places

    @property
    def place(self) -> Place:
        """The place in front, or the one behind a dialog."""
        return next(s for s in reversed(self.screen_stack) if isinstance(s, Place))

    def show_node(self, node: str, gpu: int | None = None) -> None:
        """Go to a node; ``gpu`` is the position that its cursor begins on."""
        self._go(NodeScreen(self.hub, node, gpu))

    def show_gpu(self, node: str, gpu: int) -> None:
        """Go to a GPU by its position in the node."""
        self._go(GpuScreen(self.hub, node, gpu))

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
        self._go(SessionsScreen(self.hub))

    def action_events(self) -> None:
        """Go to the events."""
        self._go(EventsScreen(self.hub))

    def action_help(self) -> None:
        """Show all keys and signs."""
        self.push_screen(HelpScreen(self.place.PLACE))

    def action_command_palette(self) -> None:
        """Find a command by its name."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette(placeholder="a command, a metric, a node …"))

    def _go(self, place: Place) -> None:
        """Put a place in front; one of its kind that is there already is taken away with all before it."""
        kinds = [type(screen) for screen in self.screen_stack]
        if type(place) in kinds:
            for _ in kinds[kinds.index(type(place)) :]:
                self.pop_screen()
        self.push_screen(place)

    # Looks and rates

    def action_theme(self) -> None:
        """Take the next theme."""
        known = self.theme if self.theme in THEME_NAMES else THEME_NAMES[-1]
        self.theme = THEME_NAMES[(THEME_NAMES.index(known) + 1) % len(THEME_NAMES)]

    def action_faster(self) -> None:
        """Sample more often."""
        now = round(self.hub.fleet.interval_s * 1000)
        self._set_interval(max((ms for ms in INTERVALS_MS if ms < now), default=INTERVALS_MS[0]))

    def action_slower(self) -> None:
        """Sample less often."""
        now = round(self.hub.fleet.interval_s * 1000)
        self._set_interval(min((ms for ms in INTERVALS_MS if ms > now), default=INTERVALS_MS[-1]))

    def _set_interval(self, interval_ms: int) -> None:
        self.hub.set_interval(interval_ms)
        self.say(f"sampling every {interval_ms / 1000:g} s")

    def say(self, sentence: str, *, wrong: bool = False) -> None:
        """A short word to the person, gone after a few seconds."""
        self.notify(clean(sentence), severity="error" if wrong else "information", timeout=4, markup=False)

    # Sessions

    def action_start_session(self) -> None:
        """Ask for a session's name and start, and begin it."""
        self.push_screen(
            Ask(
                "start a session",
                [
                    Field("name", suggest_name(s.name for s in self.hub.fleet.sessions.sessions.values())),
                    Field("started", "now", "now, 30s, 2m, 14:05: recording never stops", self._wrong_since),
                ],
            ),
            self._start_session,
        )

    def _wrong_since(self, text: str) -> str:
        now = self.hub.now()
        try:
            at = parse_since(text, now, self.timezone)
        except SinceError as wrong:
            return str(wrong)
        if at < self.hub.started_at:
            return f"recording began {clock(now - self.hub.started_at)} ago, a session can't begin before it"
        return ""

    def _start_session(self, answer: tuple[str, ...] | None) -> None:
        if answer is None:
            return
        line, started = answer
        name, since = split_since(line)
        if since and self._wrong_since(since):
            name, since = line.strip(), ""
        taken = (s.name for s in self.hub.fleet.sessions.sessions.values())
        at = parse_since(since or started, self.hub.now(), self.timezone)
        self.hub.start_session(name or suggest_name(taken), started_at=at)
        self._look()

    def action_stop_session(self) -> None:
        """End the session that is meant here, the only one, or the one that the person picks."""
        running = self.hub.fleet.sessions.running
        chosen = self.place.chosen_session()
        if chosen is not None and not chosen.running:
            self.say(f"{chosen.name} has ended already")
        elif chosen is not None:
            self._stop_session(chosen.session_id)
        elif not running:
            self.say("no session is running; s starts one")
        elif len(running) == 1:
            self._stop_session(running[0].session_id)
        else:
            self.push_screen(
                Pick("stop which session?", [self._option(s) for s in running]), self._stop_session
            )

    def _option(self, session: Session) -> tuple[str, str]:
        return session.session_id, f"{clock(session.seconds(self.hub.now()))}  {session.name}"

    def _stop_session(self, session_id: str | None) -> None:
        session = self.hub.fleet.sessions.sessions.get(session_id or "")
        if session is None or not session.running:
            return
        self.hub.stop_session(session.session_id)
        self.say(f"stopped {session.name} after {clock(session.seconds(self.hub.now()))}")
        self._look()

    # The end

    def action_quit(self) -> None:  # type: ignore[override]  # as above
        """Quit; while sessions run, ask once."""
        running = self.hub.fleet.sessions.running
        if not running:
            self.request_quit("quit")
            return
        names = ", ".join(s.name for s in running[:5]) + (" …" if len(running) > 5 else "")
        self.push_screen(
            Confirm(
                "quit?",
                [
                    f"{plural(len(running), 'session')} running: {names}",
                    "They end now, and the recording is closed.",
                ],
                "end and quit",
            ),
            lambda yes: self.request_quit("quit") if yes else None,
        )

    def request_quit(self, reason: str) -> None:
        """End all sessions and the app without a question, as when the terminal was closed or on SIGTERM."""
        self.hub.stop_all_sessions()
        self.exit(reason)
