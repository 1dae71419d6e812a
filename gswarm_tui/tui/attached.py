"""App of a viewer: the live app over a run whose recorder is another process."""

from __future__ import annotations

from collections.abc import Mapping

from textual.actions import ActionParseResult
from textual.dom import DOMNode

from gswarm_tui.tui.actions import changes_recording
from gswarm_tui.tui.app import GswarmApp
from gswarm_tui.tui.viewer import Viewer

READ_ONLY = "this screen is read-only: it shows the recording and changes nothing"


class AttachedApp(GswarmApp):
    """Live app that ends without ending the recording, and so without a question."""

    @property
    def read_only(self) -> bool:
        """Whether the recorder refuses this viewer's changes."""
        return self.live.read_only

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action of a key, a click or the palette, unless it changes what is read-only."""
        if self.read_only and changes_recording(action if isinstance(action, str) else action[1]):
            self.show_notice(READ_ONLY)
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def name_interval(self, start: float, end: float) -> None:
        """Ask for the name of a past interval, and save it as a session."""
        if self.read_only:
            self.show_notice(READ_ONLY)
        else:
            super().name_interval(start, end)

    async def action_quit(self) -> None:
        """End this viewer."""
        self.request_quit("quit")

    def action_detach(self) -> None:
        """Explain how to leave."""
        self.show_notice("q closes this screen; recording continues")

    def request_quit(self, reason: str) -> None:
        """End this viewer, as after SIGTERM or when the terminal closes; sessions continue."""
        Viewer.request_quit(self, reason)
