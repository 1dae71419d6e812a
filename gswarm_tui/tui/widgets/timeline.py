"""The timeline: where in a recording one is, its sessions, and what happened along it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime, tzinfo

from textual.events import Click, Leave, MouseMove
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gswarm_agent.frame import ERROR, WARNING
from gswarm_tui.common.quantities import clock
from gswarm_tui.playback.player import Player
from gswarm_tui.playback.timeline import KINDS, MARK, ReplayTimeline, SessionRange
from gswarm_tui.tui.drawing.spans import Line, Span, strip_of
from gswarm_tui.tui.drawing.text import clean, clip, pad, width
from gswarm_tui.tui.drawing.themes import palette

SIGNS = {MARK: ("◆", "accent"), WARNING: ("▲", "warning"), ERROR: ("╳", "error")}
NARROW = 60
PLAYING, PAUSED, ENDED = "►", "‖", "■"


@dataclass(frozen=True)
class TimelineState:
    """All that a timeline shows. Times are Unix seconds; ``pointed`` is where the mouse is."""

    start: float
    end: float
    at: float
    sign: str
    speed: float
    track: ReplayTimeline
    zone: tzinfo | None = None
    pointed: float | None = None


@dataclass(frozen=True)
class TrackScale:
    """The cells of a timeline's track, from ``left`` on, ``cells`` of them, and what time each stands for."""

    left: int
    cells: int
    start: float
    end: float

    def cell_of(self, at: float) -> int:
        """The cell that a time falls into; those outside are put to the nearer end."""
        share = (at - self.start) / max(self.end - self.start, 1e-9)
        return min(max(int(share * self.cells), 0), self.cells - 1)

    def time_of(self, x: int) -> float:
        """The time in the middle of a cell of the widget; the ends are the ends."""
        cell = min(max(x - self.left, 0), self.cells - 1)
        if cell in (0, self.cells - 1):
            return self.start if cell == 0 else self.end
        return self.start + (self.end - self.start) * (cell + 0.5) / self.cells


def track_scale(look: TimelineState, cells: int) -> TrackScale:
    """How a width is divided: times stand at both sides where there is room for them."""
    left, right = (13, 11) if cells >= NARROW else (1, 1)
    return TrackScale(left, max(1, cells - left - right), look.start, look.end)


def timeline_lines(look: TimelineState, cells: int) -> tuple[Line, Line]:
    """The track with what happened, then the sessions; at the left the position, at the right the end."""
    room = track_scale(look, cells)
    upper = _track(look, room)
    lower = _lane(look, room)
    if not room.left > 1:
        return [Span(" "), *upper], [Span(" "), *lower]
    at, end = (datetime.fromtimestamp(time, look.zone) for time in (look.at, look.end))
    whole = clock(look.at - look.start)
    if look.pointed is not None:
        whole = f"→ {datetime.fromtimestamp(look.pointed, look.zone):%H:%M:%S}"
    return (
        [
            Span(f" {look.sign} ", "accent"),
            Span(f"{at:%H:%M:%S}  ", "title"),
            *upper,
            Span(f"  {end:%H:%M:%S} ", "dim"),
        ],
        [
            Span(f" {pad(whole, 10, right=True)}  ", "dim"),
            *lower,
            Span(pad(f"{look.speed:g}× ", 11, right=True), "title"),
        ],
    )


def _track(look: TimelineState, room: TrackScale) -> list[Span]:
    here = room.cell_of(look.at)
    cells = [("━", "key") if cell < here else ("─", "faint") for cell in range(room.cells)]
    kinds: dict[int, str] = {}
    for stop in look.track.between(look.start, look.end + 1e-6):
        cell = room.cell_of(stop.at)
        if stop.kind in SIGNS and KINDS.index(stop.kind) > KINDS.index(kinds.get(cell, KINDS[0])):
            kinds[cell] = stop.kind
    for cell, kind in kinds.items():
        cells[cell] = SIGNS[kind]
    cells[here] = ("●", "title")
    return _joined(cells)


def _lane(look: TimelineState, room: TrackScale) -> list[Span]:
    """The sessions in one line, shorter ones on top of longer ones; the one played now stands out."""
    cells = [(" ", "text")] * room.cells
    owners: list[SessionRange | None] = [None] * room.cells
    inside = [s for s in look.track.sessions if s.start < look.end and (s.end or look.end) > look.start]
    for session in sorted(inside, key=lambda s: (s.end or look.end) - s.start, reverse=True):
        first, last = room.cell_of(session.start), room.cell_of(session.end or look.end)
        cells[first : last + 1] = _bar(session, last + 1 - first, look)
        owners[first : last + 1] = [session] * (last + 1 - first)
    at = 0
    for owner, run in itertools.groupby(owners):
        length = len(list(run))
        if owner is not None:
            _name(cells, owner, at, length, look)
        at += length
    return _joined(cells)


def _is_current(session: SessionRange, look: TimelineState) -> bool:
    return session.start <= look.at and (session.end is None or look.at < session.end)


def _bar(session: SessionRange, length: int, look: TimelineState) -> list[tuple[str, str]]:
    """One session, "├──────┤", in so many cells; an end that lies outside, or is to come, is open."""
    role, line = ("title", "dim") if _is_current(session, look) else ("dim", "faint")
    if length == 1:
        return [("┃", role)]
    begins = "├" if session.start >= look.start else "╌"
    ends = "╌" if session.end is None or session.end > look.end else "┤"
    return [(begins, role), *[("─", line)] * (length - 2), (ends, role)]


def _name(
    cells: list[tuple[str, str]], session: SessionRange, at: int, length: int, look: TimelineState
) -> None:
    """Write a session's name into cells that are its own, where there is room for most of it."""
    whole = clean(session.name)
    name = clip(whole, length - 4)
    if len(name) == width(name) and width(name) >= min(6, width(whole)):
        role = "title" if _is_current(session, look) else "dim"
        cells[at + 1 : at + 3 + len(name)] = [(letter, role) for letter in f" {name} "]


def _joined(cells: list[tuple[str, str]]) -> list[Span]:
    spans: list[Span] = []
    for text, role in cells:
        if spans and spans[-1].role == role:
            spans[-1] = Span(spans[-1].text + text, role)
        else:
            spans.append(Span(text, role))
    return spans


class Timeline(Widget, can_focus=False):
    """Two lines above the footer, while a recording is played; a click goes to a time."""

    DEFAULT_CSS = """
    Timeline { dock: bottom; height: 2; margin-bottom: 1; width: 1fr; display: none; }
    Timeline.playing { display: block; }
    """

    class Sought(Message):
        """A time was clicked."""

        def __init__(self, at: float) -> None:
            super().__init__()
            self.at = at

    def __init__(self) -> None:
        super().__init__()
        self._look: TimelineState | None = None
        self._pointed: int | None = None

    def show(self, player: Player | None, zone: tzinfo | None) -> bool:
        """Show where a player is; without one there is no timeline. Whether it came or went."""
        changed = self.has_class("playing") is (player is None)
        self.set_class(player is not None, "playing")
        look = None
        if player is not None:
            head, at = player.playhead, player.now()
            paused = ENDED if at >= player.end and not player.source.running else PAUSED
            look = TimelineState(
                head.start,
                player.end,
                at,
                paused if head.paused else PLAYING,
                head.speed,
                player.timeline,
                zone,
            )
        if look != self._look:
            self._look = look
            self.refresh()
        return changed

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Track and sessions."""
        return 2

    def render_line(self, y: int) -> Strip:
        """Draw one of the two lines."""
        if self._look is None:
            return Strip.blank(self.size.width)
        look = self._look
        if self._pointed is not None:
            pointed = track_scale(look, self.size.width).time_of(self._pointed)
            look = TimelineState(**(vars(look) | {"pointed": pointed}))
        line = timeline_lines(look, self.size.width)[y]
        return strip_of(line, self.size.width, palette(self.app.theme))

    def on_click(self, event: Click) -> None:
        """Go to what was clicked."""
        if self._look is not None:
            self.post_message(self.Sought(track_scale(self._look, self.size.width).time_of(event.x)))

    def on_mouse_move(self, event: MouseMove) -> None:
        """Tell the time under the mouse."""
        self._pointed = event.x
        self.refresh()

    def on_leave(self, event: Leave) -> None:
        """The mouse is elsewhere."""
        del event
        self._pointed = None
        self.refresh()
