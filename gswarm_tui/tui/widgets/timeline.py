"""Timeline of a recording: position, sessions, events and marks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo

from textual.events import Click
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gswarm_agent.frame import ERROR, WARNING
from gswarm_tui.common.quantities import elapsed
from gswarm_tui.playback.player import Player
from gswarm_tui.playback.timeline import KINDS, MARK, ReplayTimeline
from gswarm_tui.tui.drawing.spans import Line, Span, Spans, drawn, joined_cells
from gswarm_tui.tui.drawing.text import clean, clip, pad
from gswarm_tui.tui.drawing.text import width as cells_of

SIGNS = {MARK: ("◆", "accent"), WARNING: ("▲", "warning"), ERROR: ("╳", "error")}
LEFT, RIGHT = 13, 11
"""Cells beside the track, for the position and the end."""
NAME_LEAST = 6
"""Cells of a session's name; a shorter part of it isn't written."""
PLAYING, PAUSED, ENDED = "►", "‖", "■"


@dataclass(frozen=True)
class TimelineState:
    """Content of a timeline. Times are Unix seconds."""

    start: float
    end: float
    at: float
    sign: str
    speed: float
    track: ReplayTimeline
    zone: tzinfo | None

    def cell_of(self, at: float, cells: int) -> int:
        """Return the cell of a time on a track of ``cells``; times outside map to the nearer end."""
        share = (at - self.start) / max(self.end - self.start, 1e-9)
        return min(max(int(share * cells), 0), cells - 1)


def timeline_lines(state: TimelineState, width: int) -> tuple[Line, Line]:
    """Return the lines of the track and of the sessions, with position and end beside them."""
    cells = max(1, width - LEFT - RIGHT)
    at, end = (datetime.fromtimestamp(time, state.zone) for time in (state.at, state.end))
    position = [Span(f" {state.sign} ", "accent"), Span(f"{at:%H:%M:%S}  ", "title")]
    played = Span(f" {pad(elapsed(state.at - state.start), 10, right=True)}  ", "dim")
    speed = Span(pad(f"{state.speed:g}× ", RIGHT, right=True), "title")
    track = [*position, *_track(state, cells), Span(f"  {end:%H:%M:%S} ", "dim")]
    return track, [played, *_sessions(state, cells), speed]


def _track(state: TimelineState, width: int) -> Spans:
    here = state.cell_of(state.at, width)
    cells = [("━", "key") if cell < here else ("─", "faint") for cell in range(width)]
    stops = state.track.between(state.start, state.end + 1e-6)
    for stop in sorted(stops, key=lambda stop: KINDS.index(stop.kind)):
        if stop.kind in SIGNS:
            cells[state.cell_of(stop.at, width)] = SIGNS[stop.kind]
    cells[here] = ("●", "title")
    return joined_cells(cells)


def _sessions(state: TimelineState, width: int) -> Spans:
    """Draw the sessions in one line, shorter ones above longer ones; the played ones are bright."""
    cells = [(" ", "text")] * width
    inside = [s for s in state.track.sessions if s.start < state.end and (s.end or state.end) > state.start]
    for session in sorted(inside, key=lambda s: (s.end or state.end) - s.start, reverse=True):
        first, last = (state.cell_of(at, width) for at in (session.start, session.end or state.end))
        current = session.start <= state.at < (session.end or state.end)
        bright, faint = ("title", "dim") if current else ("dim", "faint")
        name = clip(clean(session.name), last - first - 3)
        fits = len(name) == cells_of(name) >= min(NAME_LEAST, cells_of(clean(session.name)))
        bar = f"├ {name} " if fits else "├"
        bar = bar.ljust(last - first, "─") + "┤" if last > first else "┃"
        cells[first : last + 1] = [(char, faint if char == "─" else bright) for char in bar]
    return joined_cells(cells)


class Timeline(Widget, can_focus=False):
    """Two lines above the footer while a recording is played; a click goes to its time."""

    DEFAULT_CSS = """
    Timeline { dock: bottom; height: 2; margin-bottom: 1; width: 1fr; display: none; }
    Timeline.playing { display: block; }
    """

    @dataclass
    class Sought(Message):
        """A time was clicked."""

        at: float

    def __init__(self) -> None:
        super().__init__()
        self._state: TimelineState | None = None

    def show(self, player: Player | None, zone: tzinfo | None) -> bool:
        """Show a player's position, hide without one; whether that changed the visibility."""
        changed = self.has_class("playing") is (player is None)
        self.set_class(player is not None, "playing")
        state = None
        if player is not None:
            head, at = player.playhead, player.now()
            paused = ENDED if at >= player.end and not player.source.running else PAUSED
            sign = paused if head.paused else PLAYING
            state = TimelineState(head.start, player.end, at, sign, head.speed, player.timeline, zone)
        if state != self._state:
            self._state = state
            self.refresh()
        return changed

    def render_line(self, y: int) -> Strip:
        """Draw one of the two lines."""
        if self._state is None:
            return Strip.blank(self.size.width)
        line = timeline_lines(self._state, self.size.width)[y]
        return drawn(tuple(line), self.size.width, self.app.theme)

    def on_click(self, event: Click) -> None:
        """Go to the clicked time."""
        if self._state is not None:
            # The outer cells of the track and those beside them are the exact ends.
            share = min(max((event.x - LEFT) / max(1, self.size.width - LEFT - RIGHT - 1), 0), 1)
            start, end = self._state.start, self._state.end
            self.post_message(self.Sought(start + (end - start) * share))
