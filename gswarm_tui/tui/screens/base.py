"""What all places have in common: the hub, the footer and when to look at the fleet again."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.events import Event, Resize
from textual.screen import Screen

from gswarm_tui.fleet.sessions import Session
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.hub import Hub
from gswarm_tui.tui.themes import Palette, palette

if TYPE_CHECKING:
    from gswarm_tui.tui.app import GswarmApp


class Place(Screen[None], inherit_bindings=False):
    """A screen of the app that shows the fleet live.

    A subclass names its ``PLACE`` (``actions.PLACES``), takes ``BINDINGS = bindings_of(PLACE)`` and
    overrides ``draw``, which ``look`` calls: after each tick of the hub, once a second and when the screen
    comes to the front.
    """

    PLACE: ClassVar[str]

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self.hub = hub

    @property
    def fleet(self) -> Fleet:
        """The fleet's state."""
        return self.hub.fleet

    @property
    def swarm(self) -> GswarmApp:
        """The app, by its own type."""
        return cast("GswarmApp", self.app)

    @property
    def colours(self) -> Palette:
        """The styles of the present theme."""
        return palette(self.app.theme)

    def look(self) -> None:
        """Show the fleet as it is now, unless the widgets aren't there yet or are being taken away."""
        if self.is_mounted and self.is_attached and self in self.app.screen_stack and self.size:
            self.draw()

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
        self.call_later(self.look)

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was in front."""
        self.look()
