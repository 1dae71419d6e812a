"""App of a viewer: the live app over a run whose recorder is another process."""

from __future__ import annotations

from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.viewer import Viewer


class AttachedApp(GswarmApp):
    """Live app that ends without ending the recording, and so without a question."""

    async def action_quit(self) -> None:
        """End this viewer."""
        self.request_quit("quit")

    def action_detach(self) -> None:
        """Explain how to leave."""
        self.show_notice("q closes this screen; recording continues")

    def request_quit(self, reason: str) -> None:
        """End this viewer, as after SIGTERM or when the terminal closes; sessions continue."""
        Viewer.request_quit(self, reason)
