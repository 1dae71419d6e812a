"""All sessions of the recording."""

from __future__ import annotations

from textual.app import ComposeResult

from gswarm_tui.tui.actions import SESSIONS, bindings_of
from gswarm_tui.tui.screens.base import Place
from gswarm_tui.tui.widgets.footer import Footer


class SessionsScreen(Place):
    """All sessions of the recording."""

    PLACE = SESSIONS
    BINDINGS = bindings_of(PLACE)

    def compose(self) -> ComposeResult:
        """The footer's keys."""
        yield Footer(self.PLACE)
