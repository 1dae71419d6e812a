"""Timeline of a recording: position, sessions, events and marks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, tzinfo
from operator import itemgetter

from textual.events import Click
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gswarm_agent.frame import ERROR, WARNING
from gswarm_tui.common.quantities import elapsed
from gswarm_tui.playback.player import Player
from gswarm_tui.playback.timeline import KINDS, MARK, ReplayTimeline, SessionRange
from gswarm_tui.tui.drawing.spans import Line, Span, Spans, drawn, joined_cells
from gswarm_tui.tui.drawing.text import clean, clip, pad, width

SIGNS = {MARK: ("◆", "accent"), WARNING: ("▲", "warning"), ERROR: ("╳", "error")}
NARROW = 60
NAME_MARGIN = 4
"""Cells around a session's name: its ends and a blank on both sides."""
PLAYING, PAUSED, ENDED = "►", "‖", "■"


@dataclass(frozen=True)
class TimelineState:
    """Content of a timeline. Times are Unix seconds.

    ``chosen`` is the time from the begin of a new session to where it would end now.
    """

    start: float
    end: float
    at: float
    sign: str
    speed: float
    track: ReplayTimeline
    zone: tzinfo | None = None
    chosen: tuple[float, float] | None = None


@dataclass(frozen=True)
class TrackScale:
    """Maps times to the cells of a timeline's track: ``cells`` of them, from ``left``."""

    left: int
    cells: int
    start: float
    end: float

    def cell_of(self, at: float) -> int:
        """Return the cell of a time; times outside map to the nearer end."""
        share = (at - self.start) / max(self.end - self.start, 1e-9)
        return min(max(int(share * self.cells), 0), self.cells - 1)

    def time_of(self, x: int) -> float:
        """Return the time in the middle of a cell; the outer cells are the exact ends."""
        cell = min(max(x - self.left, 0), self.cells - 1)
        if cell in (0, self.cells - 1):
            return self.start if cell == 0 else self.end
        return self.start + (self.end - self.start) * (cell + 0.5) / self.cells


def track_scale(state: TimelineState, cells: int) -> TrackScale:
    """Return the track within a width, with space for times at both sides where it fits."""
    left, right = (13, 11) if cells >= NARROW else (1, 1)
    return TrackScale(left, max(1, cells - left - right), state.start, state.end)


def timeline_lines(state: TimelineState, cells: int) -> tuple[Line, Line]:
    """Return the lines of the track and of the sessions, with position and end beside them."""
    room = track_scale(state, cells)
    upper = _track(state, room)
    lower = _lane(state, room)
    if not room.left > 1:
        return [Span(" "), *upper], [Span(" "), *lower]
    at, end = (datetime.fromtimestamp(time, state.zone) for time in (state.at, state.end))
    whole = elapsed(state.at - state.start)
    return (
        [
            Span(f" {state.sign} ", "accent"),
            Span(f"{at:%H:%M:%S}  ", "title"),
            *upper,
            Span(f"  {end:%H:%M:%S} ", "dim"),
        ],
        [
            Span(f" {pad(whole, 10, right=True)}  ", "dim"),
            *lower,
            Span(pad(f"{state.speed:g}× ", 11, right=True), "title"),
        ],
    )


def _track(state: TimelineState, room: TrackScale) -> Spans:
    here = room.cell_of(state.at)
    cells = [("━", "key") if cell < here else ("─", "faint") for cell in range(room.cells)]
    kinds: dict[int, str] = {}
    for stop in state.track.between(state.start, state.end + 1e-6):
        cell = room.cell_of(stop.at)
        if stop.kind in SIGNS and KINDS.index(stop.kind) > KINDS.index(kinds.get(cell, KINDS[0])):
            kinds[cell] = stop.kind
    for cell, kind in kinds.items():
        cells[cell] = SIGNS[kind]
    cells[here] = ("●", "title")
    return joined_cells(cells)


def _lane(state: TimelineState, room: TrackScale) -> Spans:
    """Draw the sessions in one line, shorter ones above longer ones; the played one is bright.

    A session is named once: where its whole name fits first, else shortened in its longest visible part, else
    not at all.
    """
    cells = [(" ", "text")] * room.cells
    owners: list[SessionRange | None] = [None] * room.cells
    inside = [s for s in state.track.sessions if s.start < state.end and (s.end or state.end) > state.start]
    for session in sorted(inside, key=lambda s: (s.end or state.end) - s.start, reverse=True):
        first, last = room.cell_of(session.start), room.cell_of(session.end or state.end)
        cells[first : last + 1] = _bar(session, last + 1 - first, state)
        owners[first : last + 1] = [session] * (last + 1 - first)
    if state.chosen is not None:
        first, last = sorted(map(room.cell_of, state.chosen))
        bar = ["├", *"─" * (last - first - 1), "┤"] if last > first else ["┃"]
        cells[first : last + 1] = [(sign, "accent") for sign in bar]
        owners[first : last + 1] = [None] * (last + 1 - first)
    runs: dict[SessionRange, list[tuple[int, int]]] = {}
    at = 0
    for owner, run in itertools.groupby(owners):
        length = len(list(run))
        if owner is not None:
            runs.setdefault(owner, []).append((at, length))
        at += length
    for session, parts in runs.items():
        whole = width(clean(session.name)) + NAME_MARGIN
        fits = (part for part in parts if part[1] >= whole)
        _name(cells, session, *next(fits, max(parts, key=itemgetter(1))), state)
    return joined_cells(cells)


def _is_current(session: SessionRange, state: TimelineState) -> bool:
    return session.start <= state.at and (session.end is None or state.at < session.end)


def _bar(session: SessionRange, length: int, state: TimelineState) -> list[tuple[str, str]]:
    """Draw a session, "├──────┤"; an end outside the track is open."""
    role, line = ("title", "dim") if _is_current(session, state) else ("dim", "faint")
    if length == 1:
        return [("┃", role)]
    begins = "├" if session.start >= state.start else "╌"
    ends = "╌" if session.end is None or session.end > state.end else "┤"
    return [(begins, role), *[("─", line)] * (length - 2), (ends, role)]


def _name(
    cells: list[tuple[str, str]], session: SessionRange, at: int, length: int, state: TimelineState
) -> None:
    """Write a session's name into its cells if most of it fits."""
    whole = clean(session.name)
    name = clip(whole, length - NAME_MARGIN)
    if len(name) == width(name) and width(name) >= min(6, width(whole)):
        role = "title" if _is_current(session, state) else "dim"
        cells[at + 1 : at + 3 + len(name)] = [(letter, role) for letter in f" {name} "]


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

    def show(self, player: Player | None, zone: tzinfo | None, begun: float | None = None) -> bool:
        """Show a player's position, hide without one; whether that changed the visibility.

        ``begun`` is where a new session begins that ends at the position.
        """
        changed = self.has_class("playing") is (player is None)
        self.set_class(player is not None, "playing")
        state = None
        if player is not None:
            head, at = player.playhead, player.now()
            paused = ENDED if at >= player.end and not player.source.running else PAUSED
            state = TimelineState(
                head.start,
                player.end,
                at,
                paused if head.paused else PLAYING,
                head.speed,
                player.timeline,
                zone,
                chosen=None if begun is None else (begun, at),
            )
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
            self.post_message(self.Sought(track_scale(self._state, self.size.width).time_of(event.x)))
