"""What all places have in common: the feed, the timeline, the footer and when to look at the fleet again."""

from __future__ import annotations

from typing import ClassVar, cast

from textual.app import ComposeResult
from textual.events import Event, Resize
from textual.screen import Screen

from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.tui.actions import possible
from gswarm_tui.tui.drawing.themes import Palette, palette
from gswarm_tui.tui.screens.host import Feed, ViewerApp
from gswarm_tui.tui.widgets.footer import Footer
from gswarm_tui.tui.widgets.timeline import Timeline


class ViewerScreen(Screen[None], inherit_bindings=False):
    """A screen of the app that shows the fleet, as it is or as it was.

    A subclass names its ``SCREEN`` (``actions.SCREENS``), takes ``BINDINGS = bindings_of(SCREEN)``, ends its
    ``compose`` with ``foot`` and overrides ``draw``, which ``look`` calls: after each tick, once a second and
    when the screen comes to the front. What it remembers of a fleet it drops in ``forget``: after a jump in
    time there is another one.
    """

    SCREEN: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._looked_at: Fleet | None = None
        self._update_pending = False

    @property
    def feed(self) -> Feed:
        """What is shown."""
        return self.viewer.feed

    @property
    def fleet(self) -> Fleet:
        """The fleet's state."""
        return self.feed.fleet

    @property
    def viewer(self) -> ViewerApp:
        """The app."""
        return cast("ViewerApp", self.app)

    @property
    def colours(self) -> Palette:
        """The styles of the present theme."""
        return palette(self.app.theme)

    def update_view(self) -> None:
        """Show the fleet as it is now, unless the widgets aren't there yet or are being taken away."""
        if not self.app.is_running:  # an app that ends takes them away one by one
            return
        if self.is_mounted and self.is_attached and self in self.app.screen_stack and self.size:
            if self.fleet is not self._looked_at:
                self._looked_at = self.fleet
                self.reset()
            timeline = self.query_one(Timeline)
            if timeline.show(self.viewer.player, self.viewer.timezone):
                self.update_after_layout()
            self.query_one(Footer).show_mode(self.viewer.mode, typing=self.typing)
            self.draw()

    def update_after_layout(self) -> None:
        """Look when all parts have their new sizes, once for all that ask for it."""
        if not self._update_pending:
            self._update_pending = True
            self.call_after_refresh(self._update_after_layout)

    def _update_after_layout(self) -> None:
        self._update_pending = False
        self.update_view()

    @property
    def lines(self) -> int:
        """How many lines there are without a timeline."""
        return self.size.height - self.query_one(Timeline).size.height

    @property
    def typing(self) -> bool:
        """Whether letters are a text now, and no keys."""
        return False

    def compose_footer(self) -> ComposeResult:
        """The timeline, where there is one, and the keys."""
        yield Timeline()
        yield Footer(self.SCREEN)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what makes sense in this mode is possible."""
        return possible(action, self.viewer.mode) and super().check_action(action, parameters)

    def on_timeline_sought(self, event: Timeline.Sought) -> None:
        """A time was clicked: go there."""
        if self.viewer.player is not None:
            self.viewer.player.seek(event.at)

    def reset(self) -> None:
        """There is another fleet: what was remembered of the one before doesn't hold."""

    def draw(self) -> None:
        """Show the fleet as it is now; called on the app's own task, cheap when nothing changed."""

    def chosen_session(self) -> Session | None:
        """The session that a key means here, None where the person is to be asked."""
        return None

    def action_back(self) -> None:
        """Go to the screen before."""
        self.app.pop_screen()

    async def on_event(self, event: Event) -> None:
        """Heed only the newest size: of two under way, each lays the screen out and calls for the other."""
        if not isinstance(event, Resize) or event.size == self.app.size:
            await super().on_event(event)

    def on_mount(self) -> None:
        """Look for the first time, as soon as all widgets are there."""
        self.call_later(self.update_view)

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was in front."""
        self.update_view()
