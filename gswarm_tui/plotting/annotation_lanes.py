"""The lines above the panels: other sessions as brackets, marks with their labels, events by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes

from gswarm_tui.plotting import style
from gswarm_tui.plotting.annotations import Incident, OverlappingSession, PlotMark, kind_label
from gswarm_tui.plotting.panels import clipped

LANE_IN = 0.135
MOST_SESSION_LANES = 5
MOST_LINES = 60
_LONGEST = 26
_PLACES = 2000
_LETTER_PT = style.SMALL * 0.56


@dataclass(frozen=True)
class Lane:
    """One line: its name, with brackets, labels at times, or ticks with their severity."""

    name: str
    brackets: tuple[OverlappingSession, ...] = ()
    labels: tuple[tuple[float, str], ...] = ()
    ticks: tuple[tuple[float, str], ...] = ()


def build_lanes(
    others: Sequence[OverlappingSession],
    marks: Sequence[PlotMark],
    troubles: Sequence[Incident],
    seconds: float,
    width_in: float,
) -> list[Lane]:
    """What there is to draw, from above. Sessions that overlap are on lines of their own."""
    a_letter = _LETTER_PT / 72 / width_in * max(seconds, 1e-9)
    found = _session_lanes(others, a_letter, seconds)
    if marks:
        found.append(Lane("marks", labels=tuple((mark.at, clipped(mark.label, _LONGEST)) for mark in marks)))
    kinds: dict[str, list[tuple[float, str]]] = {}
    for trouble in troubles:
        kinds.setdefault(kind_label(trouble), []).append((trouble.at, trouble.severity))
    return found + [Lane(word, ticks=tuple(ticks)) for word, ticks in kinds.items()]


def _session_lanes(others: Sequence[OverlappingSession], a_letter: float, seconds: float) -> list[Lane]:
    rows: list[list[OverlappingSession]] = []
    ends: list[float] = []
    for other in others:
        needed = _label_place(other, a_letter, seconds)[1]
        row = next((at for at, end in enumerate(ends) if end <= other.begin), len(ends))
        if row == len(ends):
            if row == MOST_SESSION_LANES:
                break
            rows.append([])
            ends.append(0.0)
        rows[row].append(other)
        ends[row] = max(other.end, needed) + a_letter
    left_out = len(others) - sum(map(len, rows))
    names = ["sessions", *[""] * len(rows)]
    if left_out and rows:
        names[len(rows) - 1] = f"{left_out} more"
    return [Lane(names[at], brackets=tuple(row)) for at, row in enumerate(rows)]


def _label_place(other: OverlappingSession, a_letter: float, seconds: float) -> tuple[float, float]:
    """Where a bracket's name begins and ends: in it, else behind it, else before the end of the picture."""
    length = (len(clipped(other.name, _LONGEST)) + 2) * a_letter
    if length <= other.end - other.begin:
        begin = (other.begin + other.end - length) / 2
    else:
        begin = max(0.0, min(other.end, seconds - length))
    return begin, begin + length


def draw_lanes(axes: Axes, found: Sequence[Lane], seconds: float, width_in: float) -> None:
    """Draw the lines; y goes down, a lane each."""
    a_letter = _LETTER_PT / 72 / width_in * max(seconds, 1e-9)
    axes.set_ylim(len(found), 0)
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for at, lane in enumerate(found):
        y = at + 0.5
        if lane.name:
            axes.annotate(
                lane.name,
                (0, y),
                xycoords=("axes fraction", "data"),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center_baseline",
                fontsize=style.SMALL,
                color=style.DIM,
            )
        for other in lane.brackets:
            _bracket(axes, other, y, a_letter, seconds)
        _labels(axes, lane.labels, y, a_letter, seconds)
        for severity in {severity for _, severity in lane.ticks}:
            times = [when for when, of in lane.ticks if of == severity]
            colour = style.SEVERITY.get(severity, style.DIM)
            axes.vlines(_apart(times, seconds), y - 0.36, y + 0.36, color=colour, linewidth=1.0)
        if lane.ticks:
            axes.annotate(
                f"× {len(lane.ticks)}",
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(4, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=style.SMALL,
                color=style.DIM,
            )


def _bracket(axes: Axes, other: OverlappingSession, y: float, a_letter: float, seconds: float) -> None:
    axes.vlines([other.begin, other.end], y - 0.25, y + 0.25, color=style.DIM, linewidth=0.6)
    begin, end = _label_place(other, a_letter, seconds)
    inside = begin >= other.begin and end <= other.end
    pieces = ((other.begin, begin), (end, other.end)) if inside else ((other.begin, other.end),)
    for piece in pieces:
        axes.hlines(y, *piece, color=style.DIM, linewidth=0.6)
    axes.text(
        (begin + end) / 2 if inside else begin + a_letter,
        y,
        clipped(other.name, _LONGEST),
        ha="center" if inside else "left",
        va="center_baseline",
        fontsize=style.SMALL,
    )


def _labels(
    axes: Axes, labels: Sequence[tuple[float, str]], y: float, a_letter: float, seconds: float
) -> None:
    """Ticks with their labels behind them; of ticks that stand close, some labels above short ticks."""
    shown = _with_room(labels, a_letter, seconds)
    close = len(shown) < len(labels)
    times = _apart([at for at, _ in labels], seconds)
    axes.vlines(times, y + (0.32 if close else -0.36), y + 0.5, color=style.INK, linewidth=0.6)
    for at, label in shown:
        x, middle = (at, y - 0.1) if close else (at + a_letter * 0.5, y)
        axes.text(x, middle, label, va="center_baseline", fontsize=style.SMALL)


def _apart(times: Sequence[float], seconds: float) -> list[float]:
    """Of times that can't be told apart in the picture, one each."""
    return list({round(at / max(seconds, 1e-9) * _PLACES): at for at in times}.values())


def _with_room(
    labels: Sequence[tuple[float, str]], a_letter: float, seconds: float
) -> list[tuple[float, str]]:
    """The labels that can stand beside each other and don't leave the picture."""
    found, free_from = [], 0.0
    every = _every(labels, a_letter) if labels else 1
    for at, label in labels[::every]:
        needed = (len(label) + 1) * a_letter
        if at >= free_from and at + needed <= seconds + 4 * a_letter:
            found.append((at, label))
            free_from = at + needed
    return found


def _every(labels: Sequence[tuple[float, str]], a_letter: float) -> int:
    """Of marks that stand close, every so many gets a label, so that they are evenly thinned."""
    spaces = sorted(b[0] - a[0] for a, b in pairwise(labels)) or [1.0]
    usual = max(spaces[len(spaces) // 2], 1e-9)
    longest = max((len(label) + 1) * a_letter for _, label in labels)
    return max(1, -int(-longest // usual))
