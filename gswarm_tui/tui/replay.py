"""App that plays a finished recording. It has no hub and can't change the recording."""

from __future__ import annotations

from typing import Unpack

from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import REPLAY
from gswarm_tui.tui.feeds import PlayedFeed
from gswarm_tui.tui.viewer import Viewer, ViewerOptions


class ReplayApp(Viewer):
    """App over a player; ``file`` names the recording in the header."""

    def __init__(self, player: Player, file: str, **options: Unpack[ViewerOptions]) -> None:
        super().__init__(PlayedFeed(player, file, options.get("timezone")), REPLAY, **options)
        self._first_player = player

    def on_mount(self) -> None:
        """Start playing."""
        self.begin_playing(self._first_player)
