"""What screens look at, and only read: a fleet at a time, live, looked back at or replayed."""

from __future__ import annotations

from datetime import datetime, tzinfo

from gswarm_tui.common.quantities import clock
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.hub import Hub
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.drawing.fleet_lines import recording
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean


class LiveFeed:
    """The hub's fleet, as it is now; ``reading`` while the past is opened."""

    def __init__(self, hub: Hub, *, reading: bool = False) -> None:
        self._hub = hub
        self._reading = reading

    @property
    def fleet(self) -> Fleet:
        """The fleet that links feed."""
        return self._hub.fleet

    @property
    def started_at(self) -> float:
        """When this run began."""
        return self._hub.started_at

    def now(self) -> float:
        """The head's clock."""
        return self._hub.now()

    def state(self) -> list[Span]:
        """How the recording goes."""
        if self._reading:
            return [Span(" PAST ", "chip"), Span(" reading the recording …")]
        return recording(self._hub.recorder, self._hub.started_at, self._hub.now())


class PlayedFeed:
    """A recording's fleet, where its player is."""

    def __init__(self, player: Player, file: str, zone: tzinfo | None) -> None:
        self._player = player
        self._file = clean(file)
        self._zone = zone

    @property
    def fleet(self) -> Fleet:
        """The fleet as it was."""
        return self._player.fleet

    @property
    def started_at(self) -> float:
        """When the recording began."""
        return self._player.playhead.start

    def now(self) -> float:
        """The time of the recording."""
        return self._player.now()

    def state(self) -> list[Span]:
        """That it is a replay, of which time, how fast, of which file."""
        if self._player.problem:
            return [Span("╳ ", "error"), Span(clean(self._player.problem), "error")]
        moment = datetime.fromtimestamp(self._player.wanted, self._zone)
        return [
            Span(" REPLAY ", "chip"),
            Span(f" {moment:%H:%M:%S}", "title"),
            Span(f" {moment:%d %b %Y}{self._under_way}", "text"),
            Span(f" · {speed_words(self._player)}", "dim"),
            Span(f" · {self._file}", "dim"),
        ]

    @property
    def _under_way(self) -> str:
        """After the time that one has asked for, while that is read."""
        return "" if self._player.wanted == self.now() else " …"


class PastFeed(PlayedFeed):
    """What a running recording holds already, while the hub goes on."""

    def __init__(self, player: Player, hub: Hub, zone: tzinfo | None) -> None:
        super().__init__(player, "", zone)
        self._hub = hub

    def state(self) -> list[Span]:
        """That it is the past, how far back, and that recording goes on."""
        if self._player.problem:
            return super().state()
        moment = datetime.fromtimestamp(self._player.wanted, self._zone)
        goes_on = recording(self._hub.recorder, self._hub.started_at, self._hub.now())
        if self._hub.recorder is not None and not self._hub.recorder.error:
            goes_on = [Span("● ", "error"), Span("recording goes on"), *goes_on[2:]]
        return [
            Span(" PAST ", "chip"),
            Span(f" {clock(self._hub.now() - self._player.wanted)} ago", "title"),
            Span(f" · {moment:%H:%M:%S}{self._under_way}"),
            Span(" · "),
            *goes_on,
        ]


def speed_words(player: Player) -> str:
    """ "paused", "4×", or that the end is reached."""
    if player.playhead.paused:
        return "end of the recording" if player.now() >= player.end else "paused"
    return f"{player.playhead.speed:g}×"
