"""Feeds of the screens: the live fleet, its past, or a finished recording."""

from __future__ import annotations

from datetime import datetime, tzinfo
from pathlib import PurePath

from gswarm_tui.common.quantities import count, elapsed, file_size
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import LiveRun
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean


class LiveFeed:
    """Feed of a run's fleet; ``reading`` while the past is being opened."""

    loading = ""

    def __init__(self, run: LiveRun, *, reading: bool = False) -> None:
        self._run = run
        self._reading = reading

    @property
    def fleet(self) -> Fleet:
        """The fleet, which is another one after a viewer has reconnected."""
        return self._run.fleet

    @property
    def ended(self) -> bool:
        """Whether the recording has ended, as only a viewer sees."""
        return self._run.ended

    def now(self) -> float:
        """Return the run's time."""
        return self._run.now()

    def state(self) -> list[Span]:
        """Return the recorder's state."""
        if self._reading:
            return [Span(" PAST ", "chip"), Span(" reading the recording …")]
        return _recorder_state(self._run)


def _recorder_state(run: LiveRun) -> list[Span]:
    """Return "● rec 00:12:31 · 1.2 M rows · 14 MB", or why nothing is recorded, or the state isn't known."""
    if run.interruption:
        return [Span("╳ ", "error"), Span(clean(run.interruption), "error")]
    if (recorder := run.recorder) is None:
        return [Span("○ not recording", "dim")]
    if recorder.error:  # only the file name, so that the remedy fits
        words = recorder.error.replace(recorder.path, PurePath(recorder.path).name)
        return [Span("╳ ", "error"), Span(clean(words), "error")]
    rows = "row" if recorder.rows == 1 else "rows"
    words = f" · {count(recorder.rows)} {rows} · {file_size(recorder.file_bytes)}"
    since = f"rec {elapsed(run.now() - run.started_at)}"
    if (place := run.place) is not None:
        since = f"attached{' to ' * bool(place)}{clean(place)}{', read-only' * run.read_only} · {since}"
    return [Span("● ", "error"), Span(since), Span(words, "dim")]


class PlayedFeed:
    """Feed of a recording, at its player's position."""

    def __init__(self, player: Player, file: str, zone: tzinfo | None) -> None:
        self._player = player
        self._file = clean(file)
        self._zone = zone

    @property
    def fleet(self) -> Fleet:
        """The fleet at the player's position."""
        return self._player.fleet

    @property
    def loading(self) -> str:
        """Text on the recording that is being loaded; empty once its first fleet is shown."""
        if self._player.opened:
            return ""
        head = self._player.playhead
        return f"Loading {elapsed(head.end - head.start)} of {self._file} …"

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""
        return True

    def now(self) -> float:
        """Return the player's position."""
        return self._player.now()

    def state(self) -> list[Span]:
        """Return time, speed and file of the replay."""
        if self._player.problem:
            return [Span("╳ ", "error"), Span(clean(self._player.problem), "error")]
        moment = datetime.fromtimestamp(self._player.wanted, self._zone)
        return [
            Span(" REPLAY ", "chip"),
            Span(f" {moment:%H:%M:%S}", "title"),
            Span(f" {moment:%d %b %Y}{self._ellipsis}", "text"),
            Span(f" · {speed_text(self._player)}", "dim"),
            Span(f" · {self._file}", "dim"),
        ]

    @property
    def _ellipsis(self) -> str:
        """An ellipsis while the requested time is being read."""
        return "" if self._player.wanted == self.now() else " …"


class PastFeed(PlayedFeed):
    """Feed of a running recording's past, while recording continues."""

    def __init__(self, player: Player, run: LiveRun, zone: tzinfo | None) -> None:
        super().__init__(player, "", zone)
        self._run = run

    @property
    def ended(self) -> bool:
        """Whether the recording has ended, as only a viewer sees."""
        return self._run.ended

    def state(self) -> list[Span]:
        """Return how far back the player is, and the recorder's state."""
        if self._player.problem:
            return super().state()
        moment = datetime.fromtimestamp(self._player.wanted, self._zone)
        recorder_state = _recorder_state(self._run)
        if self._run.recorder is not None and not self._run.recorder.error and not self._run.interruption:
            recorder_state = [Span("● ", "error"), Span("recording continues"), *recorder_state[2:]]
        return [
            Span(" PAST ", "chip"),
            Span(f" {elapsed(self._run.now() - self._player.wanted)} ago", "title"),
            Span(f" · {moment:%H:%M:%S}{self._ellipsis}"),
            Span(" · "),
            *recorder_state,
        ]


def speed_text(player: Player) -> str:
    """Return "4×", "paused" or "end of the recording"."""
    if player.playhead.paused:
        return "end of the recording" if player.now() >= player.end else "paused"
    return f"{player.playhead.speed:g}×"
