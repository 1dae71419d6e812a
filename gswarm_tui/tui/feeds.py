"""Feeds of the screens: a recorder's fleet and its past, or a finished recording."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import PurePath
from typing import Any, Protocol

from gswarm_tui.common.quantities import count, elapsed, file_size
from gswarm_tui.control.intents import Intent
from gswarm_tui.fleet.state import Fleet
from gswarm_tui.link.hub import Run
from gswarm_tui.playback.player import Player
from gswarm_tui.tui.drawing.spans import Span
from gswarm_tui.tui.drawing.text import clean


class RecorderClient(Run, Protocol):
    """Client of a recorder, as the screens need it; ``control/recorder.py`` has the meaning of all."""

    place: str
    read_only: bool
    connected: bool
    ended: bool
    gone: bool
    alone: bool
    interruption: str

    @property
    def flushed(self) -> list[Callable[[], None]]:
        """Callbacks for changes of the fleet."""

    async def carry_out(self, intent: Intent) -> dict[str, Any]:
        """Let the recorder carry out an intent; return its result. Raises RecorderError."""


class LiveFeed:
    """Feed of a recorder's fleet, now or in the past.

    The ``player`` shows the past, None for now; ``reading`` while that is being opened. ``starts_it``: the
    screen belongs to the recorder, so the header doesn't say that it is attached.
    """

    loading = ""

    def __init__(self, run: RecorderClient, zone: tzinfo | None, *, starts_it: bool) -> None:
        self.player: Player | None = None
        self.reading = False
        self._run = run
        self._zone = zone
        self._starts_it = starts_it

    @property
    def fleet(self) -> Fleet:
        """The fleet, which is another one after a reconnect."""
        return self._run.fleet if self.player is None else self.player.fleet

    @property
    def ended(self) -> bool:
        """Whether the recording has ended."""
        return self._run.ended

    def now(self) -> float:
        """Return the time that is shown."""
        return self._run.now() if self.player is None else self.player.now()

    def state(self) -> list[Span]:
        """Return the recorder's state, and how far back the player is."""
        if self.reading:
            return [Span(" PAST ", "chip"), Span(" reading the recording …")]
        state = self._recorder_state()
        if (player := self.player) is None:
            return state
        if player.problem:
            return [Span("╳ ", "error"), Span(clean(player.problem), "error")]
        if self._run.recorder is not None and not self._run.recorder.error and not self._run.interruption:
            state = [Span("● ", "error"), Span("recording continues"), *state[2:]]
        moment = datetime.fromtimestamp(player.wanted, self._zone)
        return [
            Span(" PAST ", "chip"),
            Span(f" {elapsed(self._run.now() - player.wanted)} ago", "title"),
            Span(f" · {moment:%H:%M:%S}{_ellipsis(player)}"),
            Span(" · "),
            *state,
        ]

    def _recorder_state(self) -> list[Span]:
        """Return "● rec 00:12:31 · 1.2 M rows · 14 MB", or why nothing is recorded or known."""
        run = self._run
        if run.interruption:
            return [Span("╳ ", "error"), Span(clean(run.interruption), "error")]
        if not run.connected:
            return [Span("○ starting …", "dim")]
        if (recorder := run.recorder) is None:
            return [Span("○ not recording", "dim")]
        if recorder.error:  # only the file name, so that the remedy fits
            words = recorder.error.replace(recorder.path, PurePath(recorder.path).name)
            return [Span("╳ ", "error"), Span(clean(words), "error")]
        rows = "row" if recorder.rows == 1 else "rows"
        words = f" · {count(recorder.rows)} {rows} · {file_size(recorder.file_bytes)}"
        since = f"rec {elapsed(run.now() - run.started_at)}"
        if not self._starts_it:
            place = f" to {clean(run.place)}" if run.place else ""
            since = f"attached{place}{', read-only' * run.read_only} · {since}"
        elif run.alone:
            since += " · nobody else can attach"
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
            Span(f" {moment:%d %b %Y}{_ellipsis(self._player)}", "text"),
            Span(f" · {speed_text(self._player)}", "dim"),
            Span(f" · {self._file}", "dim"),
        ]


def _ellipsis(player: Player) -> str:
    """Return an ellipsis while the requested time is being read."""
    return "" if player.wanted == player.now() else " …"


def speed_text(player: Player) -> str:
    """Return "4×", "paused" or "end of the recording"."""
    if player.playhead.paused:
        return "end of the recording" if player.now() >= player.end else "paused"
    return f"{player.playhead.speed:g}×"
