"""Playback keys of an app: play, pause, step and go to a time of a recording."""

from __future__ import annotations

from gswarm_tui.common.time_input import SEEK_HINT, SeekTimeError, parse_seek_time
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.fleet_viewer import FleetViewer
from gswarm_tui.tui.screens.dialogs import FormDialog, FormField

REPEAT_S = 2.0
"""While it plays, the event that was shown last has passed already: going back skips this much."""


class PlayingViewer(FleetViewer):
    """Controls a ``player``; without one the keys do nothing."""

    def begin_playing(self, player: Player) -> None:
        """Play a recording."""
        self.player = player
        player.flushed.append(self.request_update)
        self.run_worker(player.run(), group="player", exclusive=True)

    def end_playing(self) -> None:
        """Stop playing."""
        self.player = None
        self.workers.cancel_group(self, "player")

    async def action_play(self) -> None:
        """Play or pause."""
        if self.player is not None:
            self.player.toggle()
            self.update_view()

    def action_step(self, by: int) -> None:
        """Step to the next or previous interval and pause."""
        if self.player is not None:
            self.player.step(by)
            self.update_view()

    def action_skip(self, seconds: int) -> None:
        """Skip forward or back."""
        if self.player is not None:
            self.player.skip(seconds)
            self.update_view()

    def action_turn(self, by: int) -> None:
        """Go to the next or previous event."""
        if (player := self.player) is None:
            return
        at = player.wanted - (0 if player.playhead.paused or by > 0 else REPEAT_S * player.playhead.speed)
        stop = player.timeline.after(at) if by > 0 else player.timeline.before(at)
        if stop is None or stop.at != player.playhead.clamp(stop.at):
            self.show_notice("no later event" if by > 0 else "no earlier event")
            return
        player.seek(stop.at)
        self.update_view()
        self.show_notice(stop.description)

    def action_speed(self, by: int) -> None:
        """Play faster or slower."""
        if self.player is not None:
            self.player.playhead.change_speed(by)
            self.update_view()

    async def go_to_time(self, at: float) -> None:
        """Show the fleet at a time of the recording."""
        if self.player is not None:
            self.player.seek(at)
            self.update_view()

    async def action_go_to(self) -> None:
        """Ask for a time and go there."""
        self.push_screen(
            FormDialog("go to time", [FormField("time", "", SEEK_HINT, self._time_error)]), self._go_to
        )

    def _time_error(self, text: str) -> str:
        try:
            self._parse_time(text)
        except SeekTimeError as error:
            return str(error)
        return ""

    def _parse_time(self, text: str) -> float:
        """Return the time that a text means here. Raises SeekTimeError."""
        if (player := self.player) is None:
            return self.feed.now()
        head = player.playhead
        return parse_seek_time(text, at=player.now(), start=head.start, end=head.end, timezone=self.timezone)

    def _go_to(self, fields: tuple[str, ...] | None) -> None:
        if fields is not None and self.player is not None:
            self.player.seek(self._parse_time(fields[0]))
            self.update_view()
