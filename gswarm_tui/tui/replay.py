"""App that plays a finished recording. It has no hub and can't change the recording."""

from __future__ import annotations

from collections.abc import Callable
from datetime import tzinfo

from gswarm_tui.analysis.queries import RecordingQueries
from gswarm_tui.common.colours import DARK
from gswarm_tui.common.query_history import QueryHistory
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.actions import REPLAY
from gswarm_tui.tui.feeds import PlayedFeed
from gswarm_tui.tui.playing import PlayingViewer


class ReplayApp(PlayingViewer):
    """App over a player; ``file`` names the recording in the header."""

    def __init__(
        self,
        player: Player,
        file: str,
        *,
        title: str = "",
        theme: str = DARK,
        metric: str = "util_pct",
        timezone: tzinfo | None = None,
        open_queries: Callable[[], RecordingQueries] | None = None,
        history: QueryHistory | None = None,
    ) -> None:
        super().__init__(
            PlayedFeed(player, file, timezone),
            REPLAY,
            title=title,
            theme=theme,
            metric=metric,
            timezone=timezone,
            open_queries=open_queries,
            history=history,
        )
        self._first_player = player

    def on_mount(self) -> None:
        """Start playing."""
        self.begin_playing(self._first_player)
