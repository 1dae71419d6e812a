"""What happened, newest last."""

from __future__ import annotations

from textual.app import ComposeResult

from gswarm_tui.tui.actions import EVENTS, bindings_of
from gswarm_tui.tui.screens.base import Place
from gswarm_tui.tui.widgets.footer import Footer


class EventsScreen(Place):
    """What happened, newest last."""

    PLACE = EVENTS
    BINDINGS = bindings_of(PLACE)

    def compose(self) -> ComposeResult:
        """The footer's keys."""
        yield Footer(self.PLACE)
