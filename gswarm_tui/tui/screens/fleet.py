"""The fleet: nodes × GPUs, one metric as colour."""

from __future__ import annotations

from textual.app import ComposeResult

from gswarm_tui.hub import Hub
from gswarm_tui.tui.actions import FLEET, bindings_of
from gswarm_tui.tui.screens.base import Place
from gswarm_tui.tui.widgets.footer import Footer


class FleetScreen(Place):
    """The first place: all nodes and GPUs."""

    PLACE = FLEET
    BINDINGS = bindings_of(PLACE)

    def __init__(self, hub: Hub, job: str) -> None:
        super().__init__(hub)
        self._job = job

    def compose(self) -> ComposeResult:
        """The footer's keys."""
        yield Footer(self.PLACE)

    def back(self) -> None:
        """There is nothing before the fleet."""
