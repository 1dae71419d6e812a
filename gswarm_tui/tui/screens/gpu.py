"""One GPU: all metrics and their history."""

from __future__ import annotations

from textual.app import ComposeResult

from gswarm_tui.hub import Hub
from gswarm_tui.tui.actions import GPU, bindings_of
from gswarm_tui.tui.screens.base import Place
from gswarm_tui.tui.widgets.footer import Footer


class GpuScreen(Place):
    """One GPU: all metrics and their history."""

    PLACE = GPU
    BINDINGS = bindings_of(PLACE)

    def __init__(self, hub: Hub, node: str, gpu: int) -> None:
        super().__init__(hub)
        self.node, self.gpu = node, gpu

    def compose(self) -> ComposeResult:
        """The footer's keys."""
        yield Footer(self.PLACE)
